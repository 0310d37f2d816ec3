"""Which rounds have tags, how long their vectors are, and that their release needs a go (docs/protocol.md 15)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import AnnouncementMismatch, BadSignature, MalformedMessage
from protocol.messages.contribution import content_bytes
from protocol.messages.control import Announcement, RuleName, RuleSpec, ShareKind, Study
from protocol.messages.purpose import Purpose, StudyProtection
from protocol.parameters import TAG_COORDINATES, Needs
from protocol.protection.registry import encoded_bytes, expected, output_header
from protocol.rounds.agreement import check_said
from protocol.rounds.evidence import check_release
from protocol.sharing import Side
from tests.unit.parties import SITES, announcement, study
from tests.unit.tags.halves import DIMENSION, ROSTER, STUDY, Release

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
