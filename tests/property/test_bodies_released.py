"""Outputs, masked sums and letters: what is written is read again; what is cut, longer, altered or foreign is not."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.arithmetic.ring import Ring, to_bytes
from protocol.errors import (
    AnnouncementMismatch,
    BrokenSeal,
    ErrorCode,
    MalformedMessage,
    RefusedMessage,
    TooLarge,
    TranscriptMismatch,
)
from protocol.messages import bodies, letter
from protocol.messages.control import Decline, OutputHeader, ShareKind
from protocol.messages.peer import MaskedSumHeader
from protocol.sharing import Side, round_seed_side
from tests.sealed_bodies import FEW, KEY, LENGTHS, OTHER, PIECES, SECRET, SITE, damaged, pieces, vector
from tests.unit.client_agent.federation import DIGEST, REQUESTER, ROSTER, study

# --- output and masked sum --------------------------------------------------------------------------------------------


def output_header(kind: ShareKind, length: int, release: str = DIGEST) -> OutputHeader:
    return OutputHeader(release_digest=release, side=Side.B, share_kind=kind, recipient="ab" * 16, length=length)


def read_vector(header: OutputHeader, body: bytes, size: int = 2**20) -> Ring:
    out = np.zeros(header.length, dtype=np.uint64)
    for start, piece in bodies.output_elements(header, bodies.read_output(header, KEY, pieces(body, size))):
        out[start : start + piece.size] = piece
    return out


@FEW
@given(LENGTHS, PIECES)
def test_an_output_is_read_as_it_was_written(length: int, size: int) -> None:
    x, header = vector(length), output_header(ShareKind.VECTOR, length)
    message = bodies.seal_output(header, [to_bytes(x)], KEY.public, SECRET)
    body = message.whole()
    assert len(body) == message.length
    assert len(body) <= bodies.most_output_bytes(header)
    np.testing.assert_array_equal(read_vector(header, body, size), x)
    assert bodies.output_content_bytes(header) == 8 * length


@FEW
@given(LENGTHS, PIECES)
def test_a_short_output_is_read_without_a_seal_of_its_own(length: int, size: int) -> None:
    length = min(length, bodies.SHORT_BYTES // 8)
    x, header = vector(length), output_header(ShareKind.VECTOR, length)
    body = bodies.frame_output(header, [to_bytes(x)])
    assert bodies.is_short_output(header)
    assert len(body) <= bodies.most_output_bytes(header)
    np.testing.assert_array_equal(read_vector(header, body, size), x)
    for other in (output_header(ShareKind.SEED, length), output_header(ShareKind.VECTOR, length, OTHER)):
        with pytest.raises(TranscriptMismatch):
            read_vector(other, body)
    for cut in (body[:-1], body[:4], body[:1]):
        with pytest.raises(MalformedMessage):
            read_vector(header, cut)


def test_a_long_output_is_read_under_its_seal_alone() -> None:
    length = bodies.SHORT_BYTES // 8
    for elements, short in ((length, True), (length + 1, False)):
        header = output_header(ShareKind.VECTOR, elements)
        assert bodies.is_short_output(header) is short
        body = bodies.frame_output(header, [bytes(8 * elements)])
        if short:
            read_vector(header, body)
        else:
            with pytest.raises(MalformedMessage, match="not a sealed message"):
                read_vector(header, body)


def test_the_side_that_masks_serves_the_seed() -> None:
    for number in (1, 2):
        assert bodies.output_kind(round_seed_side(number), number, 64) is ShareKind.SEED
        assert bodies.output_kind(round_seed_side(number).other, number, 64) is ShareKind.VECTOR
    header = output_header(ShareKind.SEED, 7)
    for size, refused in ((32, False), (31, True), (33, True), (0, True)):
        body = bodies.seal_output(header, [SECRET[:size]], KEY.public, SECRET).whole()
        if refused:
            with pytest.raises(MalformedMessage, match=f"a mask seed of {size} bytes, expected 32"):
                bodies.output_seed(header, bodies.read_output(header, KEY, [body]))
        else:
            assert bodies.output_seed(header, bodies.read_output(header, KEY, [body])) == SECRET[:size]
            assert len(body) <= bodies.most_output_bytes(header)


def test_another_output_than_the_expected_one_is_refused() -> None:
    header, content = output_header(ShareKind.VECTOR, 7), to_bytes(vector(7))
    body = bodies.seal_output(header, [content], KEY.public, SECRET).whole()
    for expected in (
        output_header(ShareKind.SEED, 7),
        output_header(ShareKind.VECTOR, 8),
        output_header(ShareKind.VECTOR, 7, OTHER),
    ):
        with pytest.raises(TranscriptMismatch, match="another release, kind or recipient"):
            read_vector(expected, body)
    for wrong in damaged(body):
        with pytest.raises((BrokenSeal, MalformedMessage, TooLarge)):
            read_vector(header, wrong)
    for short, text in ((content[:-8], "6 elements, expected 7"), (content[:-1], "6 elements, expected 7")):
        with pytest.raises(MalformedMessage, match=text):
            read_vector(header, bodies.seal_output(header, [short], KEY.public, SECRET).whole())
    with pytest.raises(MalformedMessage, match="more than 7 elements"):
        read_vector(header, bodies.seal_output(header, [content + bytes(8)], KEY.public, SECRET).whole())


@FEW
@given(LENGTHS, PIECES)
def test_a_masked_sum_is_read_as_it_was_written(length: int, size: int) -> None:
    x, header = vector(length), MaskedSumHeader(release_digest=DIGEST, length=length)
    body = bodies.seal_body(header, iter([to_bytes(x)]), KEY.public, SECRET).whole()
    assert len(body) == bodies.masked_sum_bytes(header) <= bodies.most_masked_sum_bytes(length)
    (reader, elements), out = bodies.masked_sum_readers(header, KEY), np.zeros(length, dtype=np.uint64)
    for content in bodies.open_body(reader, pieces(body, size)):
        start, found = elements.feed(content)
        out[start : start + found.size] = found
    elements.finish()
    np.testing.assert_array_equal(out, x)
    assert body.startswith(reader.head)


def test_another_masked_sum_than_the_expected_one_is_refused() -> None:
    header = MaskedSumHeader(release_digest=DIGEST, length=7)
    body = bodies.seal_body(header, iter([to_bytes(vector(7))]), KEY.public, SECRET).whole()
    for expected in (MaskedSumHeader(release_digest=OTHER, length=7), MaskedSumHeader(release_digest=DIGEST, length=8)):
        with pytest.raises(AnnouncementMismatch):
            bodies.masked_sum_readers(expected, KEY)[0].feed(body)
    for wrong in damaged(body):
        with pytest.raises(RefusedMessage):
            read_masked_sum(header, wrong)


def read_masked_sum(header: MaskedSumHeader, body: bytes) -> None:
    reader, elements = bodies.masked_sum_readers(header, KEY)
    for content in bodies.open_body(reader, [body]):
        elements.feed(content)
    elements.finish()


# --- letters ----------------------------------------------------------------------------------------------------------


@FEW
@given(st.text(max_size=300), st.integers(0, 9))
def test_a_letter_is_read_as_it_was_written_and_where_it_was_sent_only(reason: str, number: int) -> None:
    to = next(party for party in ROSTER.sites if party.name == REQUESTER)
    said = Decline(study_digest=DIGEST, round=1, site=SITE, code=ErrorCode.WRONG_ROUND, reason=letter.told(reason))
    body = letter.seal_letter(said, "decline", DIGEST, SITE, to, number)
    assert len(body) == letter.NOTICE_SEALED_BYTES

    def read(body: bytes, kind: str = "decline", sender: str = SITE, of: int = number) -> Decline:
        return letter.open_letter(body, Decline, kind, DIGEST, sender, REQUESTER, of, KEY)

    assert read(body) == said
    for wrong in damaged(body):
        with pytest.raises(BrokenSeal):
            read(wrong)
    for changes in ({"kind": "refusal"}, {"sender": "c1"}, {"of": number + 1}):
        with pytest.raises(BrokenSeal):
            read(body, **changes)


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    of = study()
    kept = np.random.default_rng(1).normal(size=of.model_dimension).astype("<f4")
    body, digest = letter.seal_checkpoint(kept.tobytes(), SECRET[:32]), hashlib.sha256(kept.tobytes()).hexdigest()
    assert len(body) == letter.most_bytes(letter.LetterKind.CHECKPOINT, of, 4)
    np.testing.assert_array_equal(letter.open_checkpoint(body, SECRET[:32], digest, of), kept)
    for wrong in damaged(body):
        with pytest.raises(BrokenSeal):
            letter.open_checkpoint(wrong, SECRET[:32], digest, of)
    with pytest.raises(BrokenSeal, match="not the one that the welcome names"):
        letter.open_checkpoint(body, SECRET[:32], OTHER, of)
    short = kept[:-1].tobytes()
    with pytest.raises(BrokenSeal, match="holds 3996 bytes, expected 4000"):
        letter.open_checkpoint(
            letter.seal_checkpoint(short, SECRET[:32]), SECRET[:32], hashlib.sha256(short).hexdigest(), of
        )
