"""Refusals of a requester's announcement and release set, without a running server."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import AnnouncementMismatch, MalformedMessage, MoietyError, ProtocolViolation, WrongRound
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    PrivacySpec,
    Purpose,
    RoundState,
    RuleName,
    RuleSpec,
    Signed,
    Study,
    StudyProtection,
    sign,
)
from protocol.parameters import Needs
from protocol.roster.chain import RosterChain
from protocol.rounds.agreement import check_said
from protocol.rounds.evidence import sum_of_numerators
from protocol.rounds.side_b import Reply, answer
from protocol.rounds.states import Attempt, RoundKey, SetSigned, Standing, Unchosen, Undecided
from protocol.sharing import Side
from servers.studies import _require_products, create
from tests.kit.round_messages import agreed_set, release_set
from tests.unit.parties import REQUESTER, SITES, announcement, parties, study
from tests.unit.policy.lists import weight_list

ROSTER = parties().roster.message
SERVER = SimpleNamespace(roster=ROSTER, chain=RosterChain(parties().roster))
NOW_S = 1_999_999_999.0
EROSION = study(ROSTER.digest())


def under(rule: RuleName) -> Study:
    return EROSION.model_copy(update={"rule": RuleSpec(name=rule)})


def said(of: Study, message: Announcement, number: int = 1, last: Any = None) -> None:
    """Raises: what the announcement is refused for"""
    check_said(message, number, of, of.digest(), ROSTER, last, NOW_S)


def refused_unless(accepted: bool, error: type[MoietyError], detail: str) -> AbstractContextManager[object]:
    return nullcontext() if accepted else pytest.raises(error, match=detail)


@pytest.mark.parametrize(
    ("rule", "opens", "accepted"),
    [
        (RuleName.WEIGHT_EROSION, Needs.DISTANCES, True),
        (RuleName.WEIGHT_EROSION, Needs.NOTHING, True),
        (RuleName.MULTI_KRUM, Needs.PAIRS, True),
        (RuleName.INFLUENCE, Needs.INNER_PRODUCTS, True),
        (RuleName.FEDAVG, Needs.NOTHING, True),
        (RuleName.LOCAL, Needs.NOTHING, True),
        *((RuleName.WEIGHT_EROSION, opens, False) for opens in (Needs.NORMS, Needs.PAIRS, Needs.INNER_PRODUCTS)),
        *((RuleName.MULTI_KRUM, opens, False) for opens in (Needs.DISTANCES, Needs.NORMS, Needs.INNER_PRODUCTS)),
        *((rule, opens, False) for rule in (RuleName.FEDAVG, RuleName.LOCAL) for opens in Needs if opens != "nothing"),
    ],
)
def test_a_round_opens_what_the_rule_needs_and_nothing_else(rule: RuleName, opens: Needs, accepted: bool) -> None:
    of = under(rule)
    message = announcement(of.digest(), opens=opens)
    found = f"would open {opens.value}, the rule '{rule.value}' needs {of.rule.needs.value}; announce that"
    with refused_unless(accepted, MalformedMessage, found):
        said(of, message)


@pytest.mark.parametrize(
    ("rule", "purpose", "number", "accepted"),
    [
        (RuleName.WFEDAVG, Purpose.COUNTS, 8, True),
        (RuleName.WFEDAVG, Purpose.COUNTS, 9, False),
        (RuleName.WFEDAVG, Purpose.UPDATE, 13, True),
        (RuleName.WFEDAVG, Purpose.UPDATE, 14, False),
        (RuleName.FEDAVG, Purpose.UPDATE, 5, True),
        (RuleName.FEDAVG, Purpose.UPDATE, 6, False),
    ],
)
def test_rounds_of_class_counts_come_on_top_of_the_studys_rounds(
    rule: RuleName, purpose: Purpose, number: int, accepted: bool
) -> None:
    """The study has five rounds, and eight tries to sum its class counts."""
    of = under(rule)
    message = announcement(of.digest(), number, opens=Needs.NOTHING, purpose=purpose)
    with refused_unless(accepted, WrongRound, f"at most {number - 1} rounds of {purpose.value}"):
        said(of, message, number)


@pytest.mark.parametrize(
    ("number", "changes", "error", "detail"),
    [
        (1, {"study_digest": "9" * 64}, AnnouncementMismatch, "another digest"),
        (2, {}, WrongRound, "for round 1, the address names round 2"),
        (1, {"listed": tuple(reversed(SITES[1:]))}, MalformedMessage, "in the roster's order"),
        (1, {"closes_at_s": 2_100_000_000}, MalformedMessage, "check the clock"),
    ],
)
def test_an_announcement_of_another_round_order_or_time(
    number: int, changes: dict[str, Any], error: type[MoietyError], detail: str
) -> None:
    message = announcement(EROSION.digest()).model_copy(update=changes)
    with pytest.raises(error, match=detail):
        said(EROSION, message, number)


def test_a_study_has_one_ckks_key() -> None:
    of = under(RuleName.FEDAVG).model_copy(update={"protection": StudyProtection.CKKS})
    one, other = (
        announcement(of.digest(), opens=Needs.NOTHING, ckks_key_id=key * 32, least_contributors=3) for key in "34"
    )
    last: Any = SimpleNamespace(announcement=one)
    with pytest.raises(MalformedMessage, match="it has one key"):
        said(of, other, last=last)


def test_nobody_is_released_without_a_weight() -> None:
    past: Any = SimpleNamespace(
        weight_list=weight_list({"b": 3}),
        release_set=SimpleNamespace(message=SimpleNamespace(sites=(REQUESTER, "c"))),
    )
    with pytest.raises(ProtocolViolation, match="'c' was released without a weight"):
        sum_of_numerators(past, ROSTER)


def test_class_counts_are_refused_under_a_rule_that_does_not_use_them() -> None:
    of = under(RuleName.FEDAVG)
    message = announcement(of.digest(), 1, opens=Needs.NOTHING, purpose=Purpose.COUNTS)
    with pytest.raises(MalformedMessage, match="sums class counts, which this study does not"):
        said(of, message)


@pytest.mark.parametrize(
    ("rule", "detail"),
    [
        (RuleSpec(name=RuleName.MULTI_KRUM), "needs 5 sites with the requester, found 4"),
        (RuleSpec(name=RuleName.FEDAVG, distance_penalty=0.5), "distance_penalty"),
    ],
)
def test_a_study_whose_rule_does_not_take_its_sites_or_options_is_refused(rule: RuleSpec, detail: str) -> None:
    of = EROSION.model_copy(update={"rule": rule})
    with pytest.raises(MalformedMessage, match=detail):
        create(SERVER, sign(of, REQUESTER, parties().keys[REQUESTER].signing))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "sketch", "accepted"),
    [
        (RuleName.MULTI_KRUM, 2**16, True),
        (RuleName.MULTI_KRUM, 2**17, False),
        (RuleName.MALLOWS, 2**16, True),
        (RuleName.MALLOWS, 2**17, False),
        (RuleName.INFLUENCE, 2**17, True),
        (RuleName.WEIGHT_EROSION, 2**17, True),
    ],
)
def test_a_site_whose_products_would_not_fit_is_refused_before_round_1(
    rule: RuleName, sketch: int, accepted: bool
) -> None:
    """Otherwise the study would stand still at its first lock, when the correlations are asked for."""
    large = study(ROSTER.digest(), 200_000)
    parameters = large.parameters.model_copy(update={"sketch_length": sketch})
    of = large.model_copy(update={"rule": RuleSpec(name=rule), "parameters": parameters})
    detail = r"opens pairs: .* sketch_length 131072 .* take 393256 elements"
    with refused_unless(accepted, MalformedMessage, detail):
        _require_products(SERVER, of)  # type: ignore[arg-type]


DIGEST = "a" * 64
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
    """The first two contributors of the agreed sites are left out."""
    message = announcement(DIGEST, listed=OTHERS, least_contributors=1)
    attempt = Attempt(RoundKey(DIGEST, 1, 1), RoundState.MEASURED, message, 2e9)
    agreed = agreed_set(message, SITES)
    state = Standing(attempt, SetSigned(Signed[AgreedSet](message=agreed)), Unchosen(), Undecided())
    release = release_set(agreed, (REQUESTER, OTHERS[2]), failed_check=failed)
    with refused_unless(accepted, MalformedMessage, "failed_check names sites"):
        assert answer(state, release, ROSTER) is Reply.KEEP


def test_a_study_with_noise_of_the_servers_is_refused_before_it_is_stored() -> None:
    of = EROSION.model_copy(
        update={
            "rule": RuleSpec(name=RuleName.FEDAVG),
            "privacy": PrivacySpec(unit="site", noise_multiplier=2.0),
        }
    )
    nothing = SimpleNamespace(study_named=lambda _: None, alone=lambda _: nullcontext())
    server = SimpleNamespace(**vars(SERVER), side=Side.A, store=nothing)
    with pytest.raises(MalformedMessage, match=r"privacy.unit 'site'.*take unit = 'record'"):
        create(server, sign(of, REQUESTER, parties().keys[REQUESTER].signing))  # type: ignore[arg-type]
