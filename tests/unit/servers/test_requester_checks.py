"""What a server refuses of a requester's announcement and release set, without a running server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from protocol.errors import MalformedMessage
from protocol.wire.authentic import sign
from protocol.wire.messages import AgreedSet, CollectedContribution, ReleaseSet, RuleName, RuleSpec, Study
from servers.collection import _check_announced
from servers.releasing import _check_release_set
from servers.studies import create
from tests.unit.parties import REQUESTER, SITES, announcement, parties, study

ROSTER = parties().roster.message
SERVER = SimpleNamespace(roster=ROSTER, clock=lambda: 1_999_999_999.0)
EROSION = study(ROSTER.digest())


def under(rule: RuleName) -> Study:
    return EROSION.model_copy(update={"rule": RuleSpec(name=rule)})


@pytest.mark.parametrize(
    ("rule", "measured", "accepted"),
    [
        (RuleName.WEIGHT_EROSION, True, True),
        (RuleName.WEIGHT_EROSION, False, True),
        (RuleName.FEDAVG, False, True),
        (RuleName.LOCAL, False, True),
        (RuleName.FEDAVG, True, False),
        (RuleName.LOCAL, True, False),
    ],
)
def test_distances_are_opened_only_for_a_rule_that_needs_them(rule: RuleName, measured: bool, accepted: bool) -> None:
    of = under(rule)
    record = SimpleNamespace(digest=of.digest(), study=of)
    message = announcement(of.digest(), measured=measured)
    if accepted:
        _check_announced(SERVER, record, 1, message)  # type: ignore[arg-type]
        return
    with pytest.raises(MalformedMessage, match=f"the rule '{rule.value}' needs none; announce measured = false"):
        _check_announced(SERVER, record, 1, message)  # type: ignore[arg-type]


def test_a_study_whose_rule_does_not_take_its_options_is_refused_before_it_is_stored() -> None:
    of = EROSION.model_copy(update={"rule": RuleSpec(name=RuleName.FEDAVG, distance_penalty=0.5)})
    signed = sign(of, REQUESTER, parties().keys[REQUESTER].signing)
    with pytest.raises(MalformedMessage, match="distance_penalty"):
        create(SERVER, signed)  # type: ignore[arg-type]


DIGEST = "a" * 64
AGREED = AgreedSet(
    study_digest=DIGEST,
    round=1,
    attempt=1,
    announcement_digest=DIGEST,
    contributions=tuple(
        CollectedContribution(site=site, announcement_digest=DIGEST, commitment_a=DIGEST, commitment_b=DIGEST)
        for site in SITES
    ),
)
OTHERS = SITES[1:]


@pytest.mark.parametrize(
    ("failed", "accepted"),
    [
        ((), True),
        ((OTHERS[0],), True),
        ((OTHERS[0], OTHERS[1]), True),
        ((OTHERS[2],), False),
        ((OTHERS[1], OTHERS[0]), False),
        ((OTHERS[0], OTHERS[0]), False),
        (("hospital-9",), False),
    ],
)
def test_failed_check_names_only_sites_that_were_left_out(failed: tuple[str, ...], accepted: bool) -> None:
    """Of the agreed sites the first two contributors are left out."""
    message = announcement(DIGEST, listed=OTHERS, least_contributors=1)
    key = SimpleNamespace(study=DIGEST, round=1, attempt=1)
    record = SimpleNamespace(key=key, announcement=SimpleNamespace(message=message))
    release = ReleaseSet(
        study_digest=DIGEST,
        round=1,
        attempt=1,
        agreed_set_digest=AGREED.digest(),
        sites=(REQUESTER, OTHERS[2]),
        failed_check=failed,
    )
    if accepted:
        _check_release_set(SERVER, record, AGREED, release)  # type: ignore[arg-type]
        return
    with pytest.raises(MalformedMessage, match="failed_check names sites"):
        _check_release_set(SERVER, record, AGREED, release)  # type: ignore[arg-type]
