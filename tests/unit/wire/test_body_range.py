"""Parts of an encrypted body opened by themselves: the same bytes as the whole, and nothing that was altered."""

from __future__ import annotations

import pytest

from protocol.channel.sealing import CHUNK_BYTES, TAG_BYTES, BodyRange, encrypt_body
from protocol.errors import BrokenSeal, MalformedMessage, ProtocolViolation

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
