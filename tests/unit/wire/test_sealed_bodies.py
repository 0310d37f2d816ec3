"""The encrypted body of a sealed message: round trips, and every alteration of its chunks (docs/protocol.md 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocol.channel import sealing
from protocol.channel.sealing import CHUNK_BYTES, TAG_BYTES, BodyRange, KnownBody, encrypt_body
from protocol.errors import BrokenSeal, MalformedMessage, ProtocolViolation
from tests.unit.wire.sealed import BODY, CONTENT_KEY, EDGES, SEALED_CHUNK, THREE, content, flipped, read_body

# --- sealed bodies ----------------------------------------------------------------------------------------------------


def test_body_accepts_views_and_arrays_of_other_items() -> None:
    array: Any = np.arange(CHUNK_BYTES // 8 + 5, dtype=np.uint64)
    empty: Any = np.empty(0, dtype=np.uint64)
    pieces: list[Any] = [memoryview(array), memoryview(empty), bytearray(b"end"), b""]
    body = b"".join(sealing.encrypt_body(CONTENT_KEY, pieces))
    assert body == b"".join(sealing.encrypt_body(CONTENT_KEY, [array.tobytes() + b"end"]))
    assert read_body(body) == array.tobytes() + b"end"


def test_sender_may_reuse_its_buffer_between_pieces() -> None:
    def pieces() -> Iterator[bytearray]:
        buffer = bytearray(1000)
        for value in range(5):
            buffer[:] = bytes([value]) * 1000
            yield buffer

    expected = b"".join(bytes([value]) * 1000 for value in range(5))
    assert read_body(b"".join(sealing.encrypt_body(CONTENT_KEY, pieces()))) == expected


@pytest.mark.parametrize(
    "place", [0, CHUNK_BYTES, SEALED_CHUNK, 2 * SEALED_CHUNK, 2 * SEALED_CHUNK + 999, len(BODY) - 1]
)
def test_altered_body_is_refused(place: int) -> None:
    for bit in (0, 7):
        with pytest.raises(BrokenSeal, match="altered, reordered or cut off"):
            read_body(flipped(BODY, place, bit))


def chunks_of(body: bytes) -> list[bytes]:
    return [body[start : start + SEALED_CHUNK] for start in range(0, len(body), SEALED_CHUNK)]


def test_reordered_repeated_or_missing_chunks_are_refused() -> None:
    first, second, last = chunks_of(BODY)
    for wrong in (
        [second, first, last],
        [first, last],
        [second, last],
        [first, first, last],
        [first, first, second, last],
        [first, second],
        [first],
        [last],
        [first, second, last, last],
        [first, second, last, b"\x00"],
        [first, second, last, bytes(SEALED_CHUNK)],
    ):
        with pytest.raises(BrokenSeal):
            read_body(b"".join(wrong))


@pytest.mark.parametrize(
    "length", [0, 1, 15, 16, 17, SEALED_CHUNK - 1, SEALED_CHUNK, SEALED_CHUNK + 1, SEALED_CHUNK + 16]
)
def test_truncated_body_is_refused(length: int) -> None:
    with pytest.raises(BrokenSeal, match="cut off"):
        read_body(BODY[:length])


def test_whole_chunks_cut_at_the_end_are_refused_though_nothing_is_left_over() -> None:
    body = b"".join(sealing.encrypt_body(CONTENT_KEY, [content(2 * CHUNK_BYTES)]))
    assert len(body) == 2 * SEALED_CHUNK
    with pytest.raises(BrokenSeal, match="last chunk 0"):
        read_body(body[:SEALED_CHUNK])


def test_chunk_of_another_body_is_refused() -> None:
    other = b"".join(sealing.encrypt_body(b"o" * 32, [THREE]))
    first, _, last = chunks_of(BODY)
    with pytest.raises(BrokenSeal, match="chunk 1"):
        read_body(first + chunks_of(other)[1] + last)
    with pytest.raises(BrokenSeal, match="chunk 0"):
        read_body(other)


def test_a_body_has_one_form_only() -> None:
    full = content(CHUNK_BYTES)
    cipher = AESGCM(CONTENT_KEY)
    needless = cipher.encrypt(bytes(12), full, None) + cipher.encrypt(bytes(10) + b"\x01\x01", b"", None)
    with pytest.raises(BrokenSeal, match="empty chunk"):
        read_body(needless)


# --- body range -------------------------------------------------------------------------------------------------------

KEY = bytes(range(32))


def body(content: bytes) -> bytes:
    return b"".join(encrypt_body(KEY, [content]))


def reading(content: bytes, stored: bytes) -> BodyRange:
    return BodyRange(KEY, len(content), lambda offset, size: stored[offset : offset + size])


@pytest.mark.parametrize("size", [32, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 24])
def test_every_part_is_what_the_whole_holds_there(size: int) -> None:
    content = (b"moiety\x00\x01" * (size // 8 + 1))[:size]
    found = reading(content, body(content))
    at = (0, 8, CHUNK_BYTES - 8, CHUNK_BYTES, CHUNK_BYTES + 8, size)
    for start in at:
        for stop in at:
            if start <= stop <= size:
                assert bytes(found.bytes_at(start, stop)) == content[start:stop]


def test_an_empty_content_has_an_empty_part() -> None:
    assert bytes(reading(b"", body(b"")).bytes_at(0, 0)) == b""


def test_what_was_altered_moved_or_cut_off_does_not_open() -> None:
    content = bytes(3 * CHUNK_BYTES)
    stored = body(content)
    sealed = CHUNK_BYTES + TAG_BYTES
    swapped = stored[sealed : 2 * sealed] + stored[:sealed] + stored[2 * sealed :]
    with pytest.raises(BrokenSeal, match="chunk 0 of the sealed body"):
        reading(content, swapped).bytes_at(0, 8)
    with pytest.raises(BrokenSeal, match="last chunk 1"):
        reading(content[: 2 * CHUNK_BYTES], stored).bytes_at(CHUNK_BYTES, CHUNK_BYTES + 8)
    with pytest.raises(BrokenSeal, match="ends before its chunk 2"):
        reading(content, stored[: 2 * sealed]).bytes_at(0, 3 * CHUNK_BYTES)
    with pytest.raises(BrokenSeal, match="chunk 0"):
        BodyRange(bytes(32), 8, lambda offset, size: body(b"12345678")).bytes_at(0, 8)


def test_a_last_chunk_that_is_authentic_but_too_short_is_no_answer() -> None:
    with pytest.raises(BrokenSeal, match="ends before byte 16"):
        reading(bytes(16), body(bytes(8))).bytes_at(0, 16)


def test_a_part_that_is_not_there_and_a_wrong_key_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="no bytes 8 to 17"):
        reading(bytes(16), body(bytes(16))).bytes_at(8, 17)
    with pytest.raises(MalformedMessage):
        BodyRange(bytes(31), 8, lambda offset, size: b"")


# --- known body -------------------------------------------------------------------------------------------------------


def sealed_chunks(plaintext: bytes) -> list[bytes]:
    return list(encrypt_body(CONTENT_KEY, [plaintext]))


def opened(body: KnownBody, chunk: bytes) -> bytes:
    room = bytearray(body.next_bytes)
    body.open_into(room, chunk)
    return bytes(room)


@pytest.mark.parametrize("length", EDGES)
def test_opens_what_was_sealed_and_gives_the_sealed_bytes_back(length: int) -> None:
    plaintext, chunks = content(length), sealed_chunks(content(length))
    body, again = KnownBody(CONTENT_KEY, length), KnownBody(CONTENT_KEY, length)
    pieces = [opened(body, chunk) for chunk in chunks]
    assert b"".join(pieces) == plaintext
    assert (body.ended, body.done, body.next_bytes) == (True, len(chunks), 0)
    assert [again.sealed_again(piece) for piece in pieces] == chunks


def test_is_taken_up_behind_the_chunks_that_were_opened() -> None:
    plaintext = content(2 * CHUNK_BYTES + 9)
    chunks, body = sealed_chunks(plaintext), KnownBody(CONTENT_KEY, len(plaintext))
    assert body.sealed_again(plaintext[:CHUNK_BYTES]) == chunks[0]
    assert opened(body, chunks[1]) + opened(body, chunks[2]) == plaintext[CHUNK_BYTES:]


def test_a_chunk_that_does_not_open_can_be_sent_again() -> None:
    plaintext = content(CHUNK_BYTES + 5)
    chunks, body = sealed_chunks(plaintext), KnownBody(CONTENT_KEY, len(plaintext))
    elsewhere = sealed_chunks(plaintext[:CHUNK_BYTES])[0]  # a last chunk is none that others follow
    for wrong in (flipped(chunks[0], 77), elsewhere, chunks[0][:-1], chunks[0] + b"x"):
        with pytest.raises(BrokenSeal):
            opened(body, wrong)
    assert opened(body, chunks[0]) == plaintext[:CHUNK_BYTES]
    with pytest.raises(BrokenSeal):
        body.open_into(bytearray(4), chunks[1])
    assert opened(body, chunks[1]) == plaintext[CHUNK_BYTES:]


def test_nothing_comes_behind_the_end() -> None:
    chunks, body = sealed_chunks(b""), KnownBody(CONTENT_KEY, 0)
    with pytest.raises(BrokenSeal):
        body.sealed_again(b"x")
    assert opened(body, chunks[0]) == b""
    assert len(chunks[0]) < SEALED_CHUNK
    with pytest.raises(BrokenSeal):
        opened(body, chunks[0])
    with pytest.raises(BrokenSeal):
        body.sealed_again(b"")
    with pytest.raises(MalformedMessage):
        KnownBody(b"short", 1)
