"""An encrypted body of known length: chunk by chunk, tried again after a failure, taken up behind what was opened."""

from __future__ import annotations

import pytest

from protocol.channel.sealing import CHUNK_BYTES, KnownBody, encrypt_body
from protocol.errors import BrokenSeal, MalformedMessage
from tests.unit.wire.sealed import CONTENT_KEY, EDGES, SEALED_CHUNK, content, flipped


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
