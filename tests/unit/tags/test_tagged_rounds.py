"""Rounds with tags: keys, lengths and sums (docs/protocol.md 15)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.arithmetic.kernels import multiply_into
from protocol.errors import AnnouncementMismatch, BadSignature, CommitmentMismatch, MalformedMessage, ProtocolViolation
from protocol.messages.bodies import content_bytes
from protocol.messages.control import Announcement, RuleName, RuleSpec, ShareKind, Study
from protocol.messages.purpose import Purpose, StudyProtection
from protocol.parameters import TAG_COORDINATES, Needs
from protocol.protection.registry import encoded_bytes, expected, output_header
from protocol.rounds.agreement import check_said
from protocol.rounds.evidence import check_release
from protocol.sharing import Side
from protocol.tags import (
    BLOCK,
    TagErrors,
    TagPair,
    TagSums,
    errors_of,
    mask_digest,
    require_seed,
    require_shown,
    seed_hash,
    shown_seed,
)
from tests.reference import tags as slow
from tests.unit.parties import SITES, announcement, study
from tests.unit.tags.halves import DIMENSION, ROSTER, STUDY, Release

# --- tagged rounds ----------------------------------------------------------------------------------------------------

PLAIN = study(ROSTER.digest(), DIMENSION).model_copy(update={"rule": RuleSpec(name=RuleName.MALLOWS)})
TAGGED = PLAIN.model_copy(update={"tags": True})
HASH = "7a" * 32


def told(purpose: Purpose, **changes: Any) -> Announcement:
    return announcement(STUDY, opens=purpose.plan.opened(Needs.NOTHING), purpose=purpose, **changes)


def said(of: Study, announced: Announcement) -> None:
    check_said(announced, announced.round, of, STUDY, ROSTER, None, 2e9)


def test_sums_have_tags_and_nothing_else_has() -> None:
    tagged = {purpose for purpose in Purpose if TAGGED.tagged(purpose)}
    assert tagged == {Purpose.UPDATE, Purpose.COUNTS, Purpose.SUMMARY}
    assert not any(PLAIN.tagged(purpose) for purpose in Purpose)
    assert TAGGED.shared_length(Purpose.UPDATE) == DIMENSION + TAG_COORDINATES
    assert TAGGED.shared_length(Purpose.MEASURE) == PLAIN.shared_length(Purpose.UPDATE) == DIMENSION


def test_a_study_without_tags_has_the_bytes_that_it_had() -> None:
    assert b"tags" not in PLAIN.canonical()
    assert Study.parse(TAGGED.canonical()).tags
    assert b"tag_seed" not in announcement(STUDY).canonical()


def test_no_tags_under_ckks() -> None:
    fields = {**dict(PLAIN), "tags": True, "protection": StudyProtection.CKKS, "rule": RuleSpec(name=RuleName.FEDAVG)}
    with pytest.raises(ValueError, match="check values of its own in every ciphertext: leave tags out"):
        Study(**fields)


@pytest.mark.parametrize("of", [PLAIN, TAGGED], ids=["without", "with tags"])
def test_a_round_is_announced_as_the_study_has_it(of: Study) -> None:
    right, wrong = (HASH, None) if of.tags else (None, HASH)
    said(of, told(Purpose.UPDATE, tag_seed_hash=right))
    with pytest.raises(MalformedMessage, match="seed of tags; by the study the round has"):
        said(of, told(Purpose.UPDATE, tag_seed_hash=wrong))
    said(of, told(Purpose.MEASURE))


def test_rounds_that_open_no_sum_of_shares_announce_no_seed() -> None:
    with pytest.raises(ValueError, match="only sums of shares carry tags"):
        told(Purpose.MEASURE, tag_seed_hash=HASH)
    with pytest.raises(ValueError, match="only sums of shares carry tags"):
        told(Purpose.UPDATE, tag_seed_hash=HASH, ckks_key_id="ab" * 16)


def test_what_is_shared_and_served_is_longer_by_its_tags() -> None:
    tagged, plain = told(Purpose.UPDATE, tag_seed_hash=HASH), told(Purpose.UPDATE)
    assert encoded_bytes(TAGGED, tagged) == encoded_bytes(PLAIN, plain), "an attempt adds tags of its own"
    parts = [expected(TAGGED, tagged, 1, SITES[1], ROSTER, side) for side in Side]
    assert {part.length for part in parts} == {DIMENSION + TAG_COORDINATES}
    assert max(content_bytes(part.kind, part.length) for part in parts) == 8 * (DIMENSION + TAG_COORDINATES)
    header = output_header(TAGGED, tagged, Release().release, Side.B, "ab" * 16)
    assert (header.share_kind, header.length) == (ShareKind.VECTOR, DIMENSION + TAG_COORDINATES)


def test_a_release_with_tags_is_evidence_only_with_its_go() -> None:
    of = Release()
    check_release(of.evidence(of.verdict()), ROSTER, STUDY)
    with pytest.raises(BadSignature, match="comes without the requester's go"):
        check_release(of.evidence(None), ROSTER, STUDY)
    with pytest.raises(AnnouncementMismatch, match="go is about another release"):
        check_release(of.evidence(Release(2).verdict()), ROSTER, STUDY)


# --- keys -------------------------------------------------------------------------------------------------------------

STUDY_DIGEST, SEED = "d" * 64, bytes(range(32))


def tagged(number: int = 1, seed: bytes = SEED) -> Announcement:
    return announcement(STUDY_DIGEST, number, tag_seed_hash=seed_hash(STUDY_DIGEST, number, seed))


def test_the_announced_seed_is_taken():
    assert require_seed(tagged(), SEED.hex()) == SEED
    assert require_seed(announcement(STUDY_DIGEST), None) is None
    assert require_shown(tagged(), shown_seed(SEED).hex()) == shown_seed(SEED)


@pytest.mark.parametrize(
    ("of", "seed"),
    [
        (tagged(), None),
        (announcement(STUDY_DIGEST), SEED.hex()),
        (tagged(), bytes(32).hex()),
        (tagged(seed=bytes(32)), SEED.hex()),
        (tagged(2).model_copy(update={"round": 1}), SEED.hex()),
    ],
    ids=["none", "one too many", "another", "another hash", "another round's"],
)
def test_another_seed_is_refused(of, seed):
    with pytest.raises(CommitmentMismatch, match="is not the announced one"):
        require_seed(of, seed)


@pytest.mark.parametrize("of", [tagged(), announcement(STUDY_DIGEST)], ids=["the drawn one", "one too many"])
def test_a_server_takes_the_shown_seed_alone(of):
    with pytest.raises(CommitmentMismatch, match="is not the announced one"):
        require_shown(of, SEED.hex())


def test_a_seed_has_32_bytes():
    with pytest.raises(MalformedMessage, match="a tag seed has 31 bytes"):
        seed_hash(STUDY_DIGEST, 1, bytes(31))


# --- sums -------------------------------------------------------------------------------------------------------------

KEY = bytes(range(32))


def zeros(length: int) -> np.ndarray:
    return np.zeros(length, dtype=np.uint64)


def test_a_long_vector_in_any_pieces(rng):
    x = rng.integers(0, 2**64, 600_001, dtype=np.uint64)
    sums = TagSums(KEY)
    for start in range(0, x.size, 70_000):
        sums.add(x[start : start + 70_000])
    tags = sums.values()[0]
    whole = np.concatenate([x, tags, zeros(2)])
    assert errors_of(KEY, whole.size, [lambda a, b: whole[a:b]] * 2).tolist() == [[0, 0], [0, 0]]


def test_over_several_blocks_tags_are_those_of_the_reference(rng):
    x = rng.integers(0, 2**64, 2 * BLOCK + 3, dtype=np.uint64)
    sums = TagSums(KEY)
    for piece in (x[:5], x[5 : BLOCK + 1], x[BLOCK + 1 :]):
        sums.add(piece)
    assert sums.values()[0].tolist() == slow.tags(KEY, x.tolist())


def test_each_pair_is_compared_with_its_own_tags(rng):
    x = rng.integers(0, 2**64, 9, dtype=np.uint64)
    for pair in TagPair:
        sums = TagSums(KEY)
        sums.add(x)
        behind = zeros(4)
        behind[2 * pair : 2 * pair + 2] = sums.values()[0]
        for other in TagPair:
            errors = TagErrors(KEY, 13, pair=other)
            errors.add(np.concatenate([x, behind]))
            assert bool(errors.values().any()) is (other is not pair)


def test_a_vector_of_another_length_is_refused():
    errors = TagErrors(KEY, 7)
    errors.add(zeros(6))
    with pytest.raises(ProtocolViolation, match="1 elements are missing"):
        errors.values()
    with pytest.raises(ProtocolViolation, match="goes on for 2 elements behind its tags"):
        errors.add(zeros(3))


def test_pieces_of_several_vectors_belong_together():
    with pytest.raises(ProtocolViolation, match="2 vectors take 2 pieces of one length"):
        TagSums(KEY, 2).add(zeros(3))
    with pytest.raises(ProtocolViolation, match=r"\[\(3,\), \(4,\)\]"):
        TagErrors(KEY, 9, 2).add(zeros(3), zeros(4))


def test_a_mask_seed_of_another_length_is_not_committed_to():
    with pytest.raises(MalformedMessage, match="a mask's seed has 31 bytes"):
        mask_digest(bytes(31))


def test_shifted_products():
    """A block of two elements; the vector begins with a block's second one."""
    words, scales = np.array([1, 10, 100], dtype=np.uint64), np.array([1, 1, 5, 7], dtype=np.uint64)
    totals = np.array([1, 2], dtype=np.uint64)
    multiply_into(totals, words, scales, np.array([2, 3, 4], dtype=np.uint64), 1)
    assert totals.tolist() == [1 + 2 * 10 + 5 * (3 + 40), 2 + 2 * 100 + 7 * (30 + 400)]
    with pytest.raises(ProtocolViolation, match="two products of a vector"):
        multiply_into(zeros(3), words, scales, zeros(2), 0)
    with pytest.raises(ProtocolViolation, match="two products of a vector"):
        multiply_into(totals, words, scales, zeros(2), 2)
    with pytest.raises(ProtocolViolation, match="take two scales a block"):
        multiply_into(totals, words, scales, zeros(4), 1)
