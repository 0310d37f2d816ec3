"""The encrypted body of a sealed message: round trips, and every alteration of its chunks (docs/protocol.md 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocol.channel import sealing
from protocol.channel.sealing import CHUNK_BYTES
from protocol.errors import BrokenSeal
from tests.unit.wire.sealed import BODY, CONTENT_KEY, EDGES, SEALED_CHUNK, THREE, content, flipped, read_body


@pytest.mark.parametrize("length", EDGES)
def test_body_round_trip(length: int) -> None:
    plaintext = content(length)
    body = b"".join(sealing.encrypt_body(CONTENT_KEY, [plaintext]))
    assert len(body) == sealing.sealed_length(length)
    assert read_body(body) == plaintext


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
