"""Sealed messages: round trips, every kind of tampering, streaming (docs/protocol.md 3)."""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.channel import sealing
from protocol.channel.sealing import CHUNK_BYTES, BodyReader, SealedReader
from protocol.errors import BrokenSeal, MalformedMessage, TooLarge, WrongRound
from tests.unit.wire.sealed import (
    BODY,
    BODY_PART,
    CONTENT_KEY,
    EDGES,
    HEADER,
    KEY,
    KEY_PART,
    OTHER,
    SALT,
    SEALED,
    SEALED_CHUNK,
    THREE,
    content,
    flipped,
    read,
    read_body,
    seal,
)

# Made once by this module: what was sealed must stay readable.
OLD_MESSAGE = """
TU9JRVRZAAEAAAAaeyJyb3VuZCI6Mywic2l0ZSI6Im5vcnRoIn0AAASwQ+L4Cz/jjwuOXv8wH6YS+ScjFYPYZa/fBPLVpyrYN7CPlfklvZbP3qRVd004TswC
cW4s+zECi++8a7d4Ev1PW+/KSsmjFLy7ifsMpAw36DSUXrmcVWe7E/1S2WrCLTpEu2D0u1kMOif1hJsmqFE/1UWbI47koCxgycN5T7el+QHsUkHyGVk0Zu+y
VejFd0e5Fh/RCFHWk1SfbXg25VkBm+rAmpuUKskRsRY+HI3dBIfGRLPtAjZMx7DpOMqfroAseYppmxyyZM9HF0LVpjf/4UPh9Ll4Vp8lEB/VWrI1ez426xSH
30kQTyP59n2io48DWyxlC7x+epvl8h5eqMaTbIhRstwkT7SVaWan8D99xxb9eZ5Z4Emqd7f6TGf9vw8QTOhd5govT5oFaSfBSzjxi01QVTGdyoPy68uBhVSE
A717P0r3iDQ7Mmv730dvC0zv8uuoqp17iIFVqEseMSWisUlrkD9Z2A/EOIGrfDrB3MyZ2jDy4x1yn5nM3213iikOjdq6xzuW2WXnQN+3U6c+IxMmXhxjStmc
bVTv1GuCsJQlVTzt3Whdnt7Xl8iIzPGcvIG/Jb5WEu3MeWQAm7CB9YPSbPb3PYBrU2qYHy1wF9zsXBzX4VZZBuVamqDQCbShj4yAFQvoKbZtfAe74yCaEwyH
HhwOGCQH1n+yT2j9iaSNKGchvZAjx64LPaJPabWuBAPxssfjNKMPYfVufOalXwKllHNCaVFsc23qqG4K55f1b8wH0T3b7fsqug1WU5NFjby31ReMTONqwjDL
TXvmTJKTTal3zgckmVgJBP0B0ZMq/qPOTKmy6/0sKmhIr/j9S0bodotfZYqYIqzlves9pZ2Ui3kyb/dfUcBk5WHTPZAgyeia5WrKReaUCBzhE/8pbmc2hj/U
+iTNDmB2WTqbR7IMzJFTamyCMeYxa3ZnDhCOpWTAgtTcBqKRtptR59QcA1Sy6+6oFBvtDOJMzE0oFnqZRG6/FEOZDaO7uSB253bYKBOtW84pn9oZkTpObRXZ
EK24qnuXj9BSpqIAg1KRjieqlZfYovlvTSeLP8X6MRDHNWZfslIDOd2spFwuUYF7X6PTJ2SzEh2nFuqmOQWPig8GlttGUptiJs6ZVMHSIvTLU9Olozytfiae
QNf3FDSa+ufY8jhYRn80ZnVHjU9fqPe8aveTk4vB4Z/Zg43nriQMax625ShvS7MyXIcC7Qigv7QbRAaAGM1Kl1CIhEyIaEpwpXb3zGZR9OpcVps1olQ/nfzo
YrfciTbNKMRP2Pqbt+UTg5HDWpVLuQ/pgXe9/qSG1/8Ce69MZfF0lFG1zbw3HRE5zrEzoVNK0Ub5B0xW9caUN+DsmsSU1iKvPGWZaBcukEjn3PycFvaXpuzX
TniegQahsakc7BS91b63EIz/+rZ94BWdxrNSQYyF7kHZ33GluyjVPy4WX3A0+I2T60Vov/6dLx2Qr3d7bp8z4Yz8xRhM1QFS1fsQGKNB5PCNVuBlCSyEjYRr
68WQnnj9UQpUArrxqUUo5tDUMw12vuoasMYP0tY8BoFF9ia2RhP8SMAxyfXyn3jAov6ilkXaiWVrh4htulDk1UwaMarlc02FQamY/PCgOIqJoUyauZ6KquHV
/S6meddm5IhC
"""


# --- small messages


def test_small_round_trip() -> None:
    for plaintext in (b"", b"weights", content(100_000)):
        sealed = sealing.seal_small(plaintext, KEY.public, b"context")
        assert len(sealed) == sealing.sealed_small_length(len(plaintext))
        assert sealing.open_small(sealed, KEY, b"context") == plaintext


def test_small_is_fresh_each_time() -> None:
    assert sealing.seal_small(b"x", KEY.public, b"") != sealing.seal_small(b"x", KEY.public, b"")


def test_small_refusals() -> None:
    sealed = sealing.seal_small(b"weights", KEY.public, b"context")
    places = [0, 500, 1087, 1088, 1119, 1120, 1126, 1127, len(sealed) - 1]  # both encapsulations, text, tag
    bad = [flipped(sealed, place, place % 8) for place in places]
    bad += [sealed[:length] for length in (0, 1, 1119, 1120, 1135, len(sealed) - 1)] + [sealed + b"\x00"]
    for wrong in bad:
        with pytest.raises(BrokenSeal, match="does not open"):
            sealing.open_small(wrong, KEY, b"context")
    for info in (b"", b"contexT", b"context\x00"):
        with pytest.raises(BrokenSeal):
            sealing.open_small(sealed, KEY, info)
    with pytest.raises(BrokenSeal):
        sealing.open_small(sealed, OTHER, b"context")


def test_key_part_of_a_stream_does_not_open_as_a_small_message() -> None:
    with pytest.raises(BrokenSeal):
        sealing.open_small(SEALED[KEY_PART + 4 : BODY_PART], KEY, b"moiety/2 sealed body\x00" + HEADER)


# --- sealed messages


cuts = st.lists(st.integers(0, 3 * CHUNK_BYTES + 60), max_size=12)


def split(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(length=st.sampled_from(EDGES), sent=cuts, received=cuts)
def test_any_split_gives_the_same(length: int, sent: list[int], received: list[int]) -> None:
    plaintext = content(length)
    sealed = sealing.seal_message(HEADER, split(plaintext, sent), KEY.public, CONTENT_KEY, SALT).whole()
    assert len(sealed) == sealing.sealed_message_length(len(HEADER), length)
    assert sealed[BODY_PART:] == b"".join(sealing.encrypt_body(CONTENT_KEY, [plaintext]))
    reader = SealedReader(KEY)
    opened = [piece for part in split(sealed, received) for piece in reader.feed(part)]
    assert b"".join(opened) + reader.finish() == plaintext
    assert all(len(piece) == CHUNK_BYTES for piece in opened)


def test_readers_are_spent_after_an_end_or_an_error() -> None:
    body = BodyReader(CONTENT_KEY)
    body.feed(BODY)
    body.finish()
    message = SealedReader(KEY)
    message.feed(SEALED)
    message.finish()
    failed = BodyReader(CONTENT_KEY)
    with pytest.raises(BrokenSeal):
        failed.feed(flipped(BODY, 3))
    refused = SealedReader(KEY)
    with pytest.raises(MalformedMessage):
        refused.feed(b"no sealed message")
    for reader in (body, message, failed, refused):
        with pytest.raises(BrokenSeal, match="already ended or failed"):
            reader.feed(b"")
        with pytest.raises(BrokenSeal, match="already ended or failed"):
            reader.finish()


def test_wrong_lengths_of_secrets() -> None:
    with pytest.raises(MalformedMessage, match="content key has 31"):
        sealing.encrypt_body(b"k" * 31, [])
    with pytest.raises(MalformedMessage, match="content key has 33"):
        BodyReader(b"k" * 33)
    with pytest.raises(MalformedMessage, match="content key has 0"):
        sealing.seal_message(HEADER, [], KEY.public, b"", SALT)
    with pytest.raises(MalformedMessage, match="salt has 31"):
        sealing.seal_message(HEADER, [], KEY.public, CONTENT_KEY, SALT[1:])


def test_message_sealed_by_an_earlier_version_opens() -> None:
    reader = SealedReader(KEY)
    assert reader.feed(base64.b64decode(OLD_MESSAGE)) == []
    assert (reader.header, reader.salt, reader.finish()) == (HEADER, SALT, b"a few words")


def test_layout() -> None:
    assert SEALED[:8] == b"MOIETY\x00\x01"
    assert SEALED[8:12] == len(HEADER).to_bytes(4, "big")
    assert SEALED[12:KEY_PART] == HEADER
    assert SEALED[KEY_PART : KEY_PART + 4] == (1200).to_bytes(4, "big")
    assert read_body(BODY) == THREE
    assert THREE[:64] not in SEALED
    assert SALT not in SEALED


def test_header_is_shown_before_the_seal_is_opened() -> None:
    seen: list[bytes] = []
    reader = SealedReader(KEY, accept=seen.append)
    reader.feed(SEALED[: KEY_PART - 1])
    assert (reader.header, seen) == (None, [])
    reader.feed(SEALED[KEY_PART - 1 : KEY_PART])
    assert (reader.header, seen, reader.salt) == (HEADER, [HEADER], None)
    reader.feed(SEALED[KEY_PART : BODY_PART - 1])
    assert reader.salt is None
    reader.feed(SEALED[BODY_PART - 1 : BODY_PART])
    assert reader.salt == SALT
    assert b"".join(reader.feed(BODY)) + reader.finish() == THREE
    assert seen == [HEADER]


def test_refusal_by_accept_comes_before_the_key_is_used() -> None:
    def refuse(header: bytes) -> None:
        raise WrongRound(f"not now: {header.decode()}")

    reader = SealedReader(OTHER, accept=refuse)  # with the wrong key, so that opening would raise BrokenSeal instead
    with pytest.raises(WrongRound, match="not now"):
        reader.feed(SEALED)
    with pytest.raises(BrokenSeal, match="already ended or failed"):
        reader.feed(b"")


@pytest.mark.parametrize("place", [12, 20, KEY_PART - 1])
def test_altered_header_is_refused(place: int) -> None:
    with pytest.raises(BrokenSeal, match="does not open"):
        read(flipped(SEALED, place))


def test_body_of_another_message_is_refused() -> None:
    other = seal(THREE, content_key=b"o" * 32)
    with pytest.raises(BrokenSeal, match="chunk 0"):
        read(SEALED[:BODY_PART] + other[BODY_PART:])


@pytest.mark.parametrize("place", [4, 500, 1091, 1092, 1123, 1124, 1150, 1170, 1187, 1188, 1203])
def test_altered_key_part_is_refused(place: int) -> None:
    with pytest.raises(BrokenSeal, match="does not open"):
        read(flipped(SEALED, KEY_PART + place, place % 8))


@pytest.mark.parametrize("place", range(4))
def test_altered_length_of_the_key_part_is_refused(place: int) -> None:
    with pytest.raises(BrokenSeal, match="must be 1200"):
        read(flipped(SEALED, KEY_PART + place))


@pytest.mark.parametrize("place", range(8))
def test_other_magic_or_version_is_refused(place: int) -> None:
    with pytest.raises(MalformedMessage, match="not a sealed message of this version"):
        read(flipped(SEALED, place))


def test_altered_header_length_is_refused() -> None:
    for place in (8, 9):
        with pytest.raises(TooLarge):
            read(flipped(SEALED, place))
    for place in (10, 11):
        with pytest.raises(BrokenSeal):
            read(flipped(SEALED, place))


def test_message_to_another_key_is_refused() -> None:
    with pytest.raises(BrokenSeal, match="another key"):
        read(SEALED, OTHER)


@pytest.mark.parametrize("length", [0, 1, 8, 11, 12, 13, KEY_PART, KEY_PART + 4, BODY_PART - 1])
def test_truncation_before_the_body_is_refused(length: int) -> None:
    with pytest.raises(BrokenSeal, match="before its body"):
        read(SEALED[:length])


@pytest.mark.parametrize("length", [BODY_PART, BODY_PART + 5, BODY_PART + SEALED_CHUNK, len(SEALED) - 1])
def test_truncation_in_the_body_is_refused(length: int) -> None:
    with pytest.raises(BrokenSeal, match="cut off"):
        read(SEALED[:length])


@pytest.mark.parametrize("extra", [1, 16, SEALED_CHUNK])
def test_over_long_messages_are_refused(extra: int) -> None:
    with pytest.raises(BrokenSeal):
        read(SEALED + bytes(extra))
    with pytest.raises(BrokenSeal):
        read(seal(b"") + bytes(extra))


def test_header_lengths() -> None:
    longest = b"h" * sealing.MAX_HEADER_BYTES
    assert read(seal(b"x", header=longest)) == b"x"
    with pytest.raises(TooLarge, match="at most 65536"):
        seal(b"x", header=longest + b"h")
    with pytest.raises(MalformedMessage, match="empty header"):
        seal(b"x", header=b"")
    with pytest.raises(MalformedMessage, match="empty header"):
        read(sealing.MAGIC + bytes(4))
    seen: list[bytes] = []
    with pytest.raises(TooLarge, match="65537 bytes, at most 65536"):
        SealedReader(KEY, accept=seen.append).feed(sealing.MAGIC + (sealing.MAX_HEADER_BYTES + 1).to_bytes(4, "big"))
    assert seen == []


def test_streaming_keeps_memory_flat() -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(256):
            yield bytes(100_000)

    reader = SealedReader(KEY)
    tracemalloc.start()
    try:
        sealed = sealing.seal_message(HEADER, pieces(), KEY.public, CONTENT_KEY, SALT)
        assert reader.feed(sealed.head) == []
        total = sum(len(piece) for part in sealed.body for piece in reader.feed(part))
        total += len(reader.finish())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 25_600_000
    # At most at one time: both sides' buffers, a piece, and one sealed and one opened chunk with their predecessors.
    assert peak < 8 * SEALED_CHUNK
