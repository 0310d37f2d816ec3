"""Go and no go, and whom the signed statements name (docs/protocol.md 15)."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import AnnouncementMismatch, BadSignature, ProtocolViolation, TranscriptMismatch
from protocol.messages.control import Go, ShareKind, TagsFailed
from protocol.sharing import Side
from protocol.tags import (
    contradicted,
    judged,
    numbers,
    require_check,
    require_commitment,
    require_judged,
    require_own,
    words,
    wrong_tags,
)
from tests.unit.parties import REQUESTER
from tests.unit.tags.halves import ROSTER, Release, by, by_side

ROUNDS = pytest.mark.parametrize("number", [1, 2])


def test_words_are_ring_elements():
    for pair in ([0, 1], [2**64 - 1, 2**63]):
        ring = np.array(pair, dtype=np.uint64)
        assert numbers(words(ring)).tolist() == pair
        assert all(len(word) == 16 for word in words(ring))


@ROUNDS
def test_an_honest_release_gets_a_go_that_everybody_takes(number):
    of = Release(number)
    go = of.verdict()
    assert isinstance(go.message, Go)
    assert require_judged(go, of.release, ROSTER) == go.message
    kinds = [one.message.share_kind for one in go.message.commitments]
    assert kinds == ([ShareKind.SEED, ShareKind.VECTOR] if number == 1 else [ShareKind.VECTOR, ShareKind.SEED])
    for place, one in enumerate(go.message.commitments):
        require_own(go.message, one, go.message.checks[place])


@ROUNDS
def test_a_site_with_wrong_tags_is_named_and_nothing_is_served(number):
    of = Release(number, wrong=(0, 0, 5))
    failed = of.verdict()
    assert isinstance(failed.message, TagsFailed)
    stated = require_judged(failed, of.release, ROSTER)
    found = wrong_tags(stated, of.release, of.tag_shares(), ROSTER)
    assert (found.sites, found.server_lied) == (of.release.sites[2:], False)


@ROUNDS
def test_a_server_that_changes_the_sum_before_it_sees_the_seed_gets_no_go(number):
    of = Release(number, changed=1)
    stated = require_judged(of.verdict(), of.release, ROSTER)
    assert isinstance(stated, TagsFailed)
    found = wrong_tags(stated, of.release, of.tag_shares(), ROSTER)
    assert (found.sites, found.server_lied) == ((), True)


def test_a_server_that_blames_a_site_for_nothing_shows_that_a_server_lied():
    of, framed = Release(), Release(wrong=(0, 3, 0))
    failed = Release(changed=1).verdict().message
    found = wrong_tags(failed, of.release, (of.tag_shares()[0], framed.tag_shares()[1]), ROSTER)
    assert found.server_lied


@ROUNDS
def test_a_forged_check_is_contradicted_by_what_was_served(number):
    """The side with the vector changes it, and says what the right one would have had: go, and it is named by it."""
    of, honest = Release(number, changed=1), Release(number)
    liar = Side.B if number == 1 else Side.A
    forged = of.check(liar).model_copy(update={"values": honest.check(liar).values})
    a, b = (by_side(side, forged if side is liar else of.check(side)) for side in Side)
    go = by(REQUESTER, judged(of.release, of.signed_commitments(), (a, b)))
    stated = require_judged(go, of.release, ROSTER)
    assert isinstance(stated, Go)
    assert contradicted(stated, *of.errors(of.pad, of.vector)) == (liar,)
    assert contradicted(stated, *of.errors(of.pad, honest.vector)) == ()


def test_what_a_commitment_must_be():
    of = Release()
    mine = of.commitment(Side.A)
    assert require_commitment(by_side(Side.A, mine), of.release, Side.A, ROSTER) == mine
    with pytest.raises(BadSignature):
        require_commitment(by_side(Side.B, mine), of.release, Side.A, ROSTER)
    changes = (
        {"side": Side.B},
        {"share_kind": ShareKind.VECTOR},
        {"release_digest": "0" * 64},
        {"round": 2},
        {"attempt": 2},
        {"study_digest": "0" * 64},
    )
    for change in changes:
        with pytest.raises(AnnouncementMismatch, match="committed to another release"):
            require_commitment(by_side(Side.A, mine.model_copy(update=change)), of.release, Side.A, ROSTER)


def test_what_a_check_must_be():
    of = Release()
    mine = of.check(Side.B)
    assert require_check(by_side(Side.B, mine), of.commitment(Side.B), ROSTER) == mine
    with pytest.raises(BadSignature):
        require_check(by_side(Side.A, mine), of.commitment(Side.B), ROSTER)
    for change in ({"commitment_digest": "0" * 64}, {"side": Side.A}, {"attempt": 2}):
        with pytest.raises(AnnouncementMismatch, match="the tags of another half"):
            require_check(by_side(Side.B, mine.model_copy(update=change)), of.commitment(Side.B), ROSTER)


def test_a_verdict_says_what_the_checks_say_over_the_requesters_signature():
    of, other = Release(), Release(2)
    go, failed = of.verdict().message, Release(changed=1).verdict().message
    with pytest.raises(BadSignature):
        require_judged(by("hospital-1", go), of.release, ROSTER)
    with pytest.raises(AnnouncementMismatch, match="go is about another release"):
        require_judged(by(REQUESTER, go), other.release, ROSTER)
    with pytest.raises(ProtocolViolation, match="tags_failed: the servers' checks add up to zero"):
        require_judged(by(REQUESTER, TagsFailed(**dict(go))), of.release, ROSTER)
    with pytest.raises(ProtocolViolation, match="go: the servers' checks add up to an error"):
        require_judged(by(REQUESTER, Go(**dict(failed))), of.release, ROSTER)
    swapped = go.model_copy(update={"commitments": go.commitments[::-1]})
    with pytest.raises(BadSignature):
        require_judged(by(REQUESTER, swapped), of.release, ROSTER)


def test_a_server_takes_no_verdict_over_words_that_it_did_not_say():
    of, other = Release(), Release(changed=1)
    go = of.verdict().message
    (_, commitment), (_, check) = go.commitments, go.checks
    with pytest.raises(TranscriptMismatch, match="of side 'b' than it made"):
        require_own(go, by_side(Side.B, other.commitment(Side.B)), check)
    with pytest.raises(TranscriptMismatch):
        require_own(go, commitment, by_side(Side.B, other.check(Side.B)))


def test_tag_shares_are_of_the_release():
    of = Release(wrong=(0, 1, 0))
    failed, (a, b) = of.verdict().message, of.tag_shares()
    with pytest.raises(BadSignature):
        wrong_tags(failed, of.release, (b, a), ROSTER)
    for change in ({"sites": b.message.sites[:2], "values": b.message.values[:2]}, {"release_digest": "0" * 64}):
        with pytest.raises(AnnouncementMismatch, match="errors of another release's sites"):
            wrong_tags(failed, of.release, (a, by_side(Side.B, b.message.model_copy(update=change))), ROSTER)
    with pytest.raises(ValueError, match="3 sites and 2 values"):
        type(b.message)(**{**dict(b.message), "values": b.message.values[:2]})
