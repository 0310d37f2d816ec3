"""Lengths that honest updates can show, and who stays in the sum of a measured round, by all that can be opened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from protocol.errors import ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters
from protocol.rounds.judgement import (
    Judgement,
    RequesterFacts,
    RoundRule,
    judge,
    judge_sum,
    largest_product,
    longest_distance,
    longest_norm,
    too_long,
)
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Measured, RuleState, SiteFacts

# --- judging ----------------------------------------------------------------------------------------------------------

NAMES = ("user", "c1", "c2", "c3")
PARAMETERS = StudyParameters(dimension=9, clip_norm=2.0, weight_grid=8, least_contributors=2)
REQUESTER = RequesterFacts("user", 1.5, 0.5, 0.25)
SITES = tuple(SiteFacts(name=name, samples=10) for name in NAMES[1:])


@dataclass(frozen=True)
class FirstTwo(FedAvg):
    """Selects the first two that passed."""

    def select(self, state: RuleState, measured: Measured) -> tuple[str, ...]:
        return measured.took_part[:2]


def judged(
    sites: tuple[OpenedSite, ...], opens: Needs, spec: RuleSpec | None = None, rule: FedAvg | None = None
) -> Judgement:
    spec = spec or RuleSpec(name=RuleName.FEDAVG)
    rule = rule or FedAvg(8, spec.norm_bound)
    numerators = dict.fromkeys(NAMES, 8)
    state = rule.init(SITES)
    return judge(sites, REQUESTER, numerators, RoundRule(spec, rule, state, PARAMETERS), round=4, opens=opens)


def opened(opens: Needs, failing: tuple[str, ...] = (), **values: float) -> tuple[OpenedSite, ...]:
    """One number of every contributor, 1 unless it is given; none of a site that fails the range check."""
    made = []
    for name in NAMES:
        number = values.get(name, 1.0)
        if name == "user" or name in failing or opens is Needs.NOTHING:
            made.append(OpenedSite(name, name not in failing))
        elif opens is Needs.INNER_PRODUCTS:
            made.append(OpenedSite(name, True, inner_product=number))
        else:
            made.append(OpenedSite(name, True, distance=number))
    return tuple(made)


@pytest.mark.parametrize(
    "opens", [Needs.NOTHING, Needs.DISTANCES, Needs.NORMS, Needs.WEIGHTED_NORMS, Needs.INNER_PRODUCTS]
)
def test_everybody_in_range_stays_and_the_rule_sees_what_was_opened(opens: Needs) -> None:
    judgement = judged(opened(opens), opens)
    measured = judgement.measured
    assert (judgement.failed, judgement.not_selected) == ((), ())
    assert measured.took_part == NAMES[1:]
    assert (measured.round, measured.requester_norm) == (4, 1.5)
    assert (measured.probe_norm, measured.requester_inner_product) == (0.5, 0.25)
    ones = tuple((name, 1.0) for name in NAMES[1:])
    assert measured.distances == (ones if opens is Needs.DISTANCES else ())
    assert measured.norms == (ones if opens in (Needs.NORMS, Needs.WEIGHTED_NORMS) else ())
    assert measured.inner_products == (ones if opens is Needs.INNER_PRODUCTS else ())


def test_a_failed_range_check_leaves_out_and_is_named() -> None:
    judgement = judged(opened(Needs.DISTANCES, failing=("c2",)), Needs.DISTANCES)
    assert judgement.failed == ("c2",)
    assert judgement.measured.took_part == ("c1", "c3")
    assert dict(judgement.measured.distances) == {"c1": 1.0, "c3": 1.0}
    assert judgement.releases(2)
    assert not judgement.releases(3)


def test_without_the_requester_nothing_is_released() -> None:
    judgement = judged(opened(Needs.NOTHING, failing=("user",)), Needs.NOTHING)
    assert judgement.failed == ("user",)
    assert not judgement.releases(1)


@pytest.mark.parametrize(
    ("opens", "limit"),
    [
        (Needs.DISTANCES, longest_distance(PARAMETERS, 8, REQUESTER.norm)),
        (Needs.NORMS, longest_norm(PARAMETERS, 8)),
        (Needs.WEIGHTED_NORMS, longest_norm(PARAMETERS, 8, 2**0.5)),
        (Needs.INNER_PRODUCTS, largest_product(PARAMETERS, 8, REQUESTER.probe_norm)),
    ],
)
def test_what_clipping_cannot_give_fails(opens: Needs, limit: float) -> None:
    assert judged(opened(opens, c1=limit * (1 - 1e-9)), opens).failed == ()
    assert judged(opened(opens, c1=limit * (1 + 1e-9)), opens).failed == ("c1",)


def test_beyond_the_norm_bound_is_a_failed_check() -> None:
    spec = RuleSpec(name=RuleName.FEDAVG, norm_bound=1.2)
    judgement = judged(opened(Needs.NORMS, c3=1.3), Needs.NORMS, spec)
    assert (judgement.failed, judgement.measured.took_part) == (("c3",), ("c1", "c2"))


def test_who_is_not_selected_has_not_failed() -> None:
    judgement = judged(opened(Needs.NOTHING), Needs.NOTHING, rule=FirstTwo(8))
    assert (judgement.failed, judgement.not_selected) == ((), ("c3",))
    assert judgement.measured.took_part == ("c1", "c2")


def test_pairs_of_sites_that_passed_are_seen_and_the_others_not() -> None:
    far = longest_distance(PARAMETERS, 8, REQUESTER.norm) * 1.01
    sites = (
        OpenedSite("user", True),
        OpenedSite("c1", True, pairs=(("user", 1.0),)),
        OpenedSite("c2", True, pairs=(("user", far), ("c1", 2.0))),
        OpenedSite("c3", True, pairs=(("user", 1.0), ("c1", 0.5), ("c2", 0.25))),
    )
    judgement = judged(sites, Needs.PAIRS)
    assert judgement.failed == ("c2",)
    assert [(p.first, p.second, p.distance) for p in judgement.measured.pairs] == [
        ("user", "c1", 1.0),
        ("user", "c3", 1.0),
        ("c1", "c3", 0.5),
    ]


def test_a_missing_norm_breaks_the_protocol() -> None:
    spec = RuleSpec(name=RuleName.FEDAVG, norm_bound=1.2)
    with pytest.raises(ProtocolViolation, match="no norm"):
        judged(opened(Needs.NOTHING), Needs.NOTHING, spec)


# --- allowed lengths --------------------------------------------------------------------------------------------------

EXACT = StudyParameters(dimension=1000, clip_norm=4.0, least_contributors=3)
SKETCHED = EXACT.model_copy(update={"dimension": 5000})
SPREAD = 1 + 6 / np.sqrt(1024)


def test_a_distance_is_both_norms_and_the_rounding() -> None:
    """One unit 2^-f a coordinate for the site's, w for the requester's, a half for the query's, over the weight."""
    unit = np.sqrt(1000) / EXACT.scale
    assert longest_distance(EXACT, 32, 1.5) == pytest.approx(5.5 + 2.5 * unit, rel=1e-12)
    assert longest_distance(EXACT, 16, 1.5) == pytest.approx(5.5 + 4 * unit, rel=1e-12)


def test_a_norm_is_the_clip_norm_and_one_rounding() -> None:
    unit = np.sqrt(1000) / EXACT.scale
    assert longest_norm(EXACT, 32) == pytest.approx(4 + unit, rel=1e-12)
    assert longest_norm(EXACT, 8, 2**0.5) == pytest.approx(4 * 2**0.5 + 4 * unit, rel=1e-12)


def test_a_product_is_that_of_the_norms() -> None:
    unit = np.sqrt(1000) / EXACT.scale
    assert largest_product(EXACT, 16, 0.5) == pytest.approx((4 + 2 * unit) * (0.5 + unit), rel=1e-12)


def test_a_sketch_widens_each_of_them_by_the_same_factor() -> None:
    wide = EXACT.model_copy(update={"dimension": 2048})
    for bound in (
        lambda p: longest_distance(p, 7, 1.0),
        lambda p: longest_norm(p, 7),
        lambda p: largest_product(p, 7, 1.0),
    ):
        assert bound(SKETCHED) / bound(wide) == pytest.approx(SPREAD, rel=1e-3)


def apart(*pairs: tuple[str, str], byzantine: int) -> frozenset[str]:
    """The sites left out where these pairs are too far apart, and all others near."""
    names = ("user", "c1", "c2", "c3", "c4")
    far = 3 * EXACT.clip_norm
    sites = [
        OpenedSite(name, True, pairs=tuple((o, far if (o, name) in pairs else 1.0) for o in names[:place]))
        for place, name in enumerate(names)
    ]
    return too_long(sites, "user", 1.0, 0.0, dict.fromkeys(names, 32), EXACT, Needs.PAIRS, byzantine)


def test_of_two_contributors_too_far_apart_neither_is_blamed() -> None:
    assert apart(("c1", "c2"), byzantine=1) == frozenset()


def test_who_is_too_far_from_more_than_can_be_dishonest_is_left_out() -> None:
    assert apart(("c1", "c2"), ("c1", "c3"), byzantine=1) == {"c1"}
    assert apart(("c1", "c2"), ("c1", "c3"), byzantine=2) == frozenset()
    assert apart(("c1", "c4"), ("c2", "c4"), ("c1", "c3"), ("c2", "c3"), byzantine=1) == {"c1", "c2", "c3", "c4"}


def test_a_pair_is_as_long_as_its_weights_allow() -> None:
    """w_1 C + w_2 C = 3 between contributors, w_1 C + ||g_0|| = 2 from the requester."""

    def left_out(from_requester: float, between: float) -> frozenset[str]:
        pairs = (("user", from_requester),), (("user", 1.0), ("c1", between))
        sites = [OpenedSite("user", True), *(OpenedSite(f"c{i}", True, pairs=p) for i, p in enumerate(pairs, 1))]
        return too_long(sites, "user", 1.0, 0.0, {"user": 32, "c1": 8, "c2": 16}, EXACT, Needs.PAIRS, 0)

    assert left_out(2.0, 3.0) == frozenset()
    assert left_out(2.1, 3.0) == {"c1"}
    assert left_out(2.0, 3.1) == {"c1", "c2"}


def test_the_requester_never_blames_itself() -> None:
    assert apart(("user", "c2"), ("user", "c3"), byzantine=1) == {"c2", "c3"}


@pytest.mark.parametrize("opens", [Needs.NORMS, Needs.DISTANCES])
def test_a_requester_of_weight_0_is_not_measured(opens: Needs) -> None:
    """Some rules give all weight to the others; its own length is no question."""
    sites = [OpenedSite("user", True, distance=9.0), OpenedSite("c1", True, distance=1.0)]
    sites.append(OpenedSite("c2", True, distance=9.0))
    numerators = {"user": 0, "c1": 32, "c2": 32}
    assert too_long(sites, "user", 1.0, 0.0, numerators, EXACT, opens, 0) == {"c2"}


def test_a_sum_of_data_keeps_everyone_that_is_in_range() -> None:
    sites = (OpenedSite("user", True), OpenedSite("c1", False), OpenedSite("c2", True))
    measured = Measured(round=4, requester_norm=0.0, took_part=("c2",))
    assert judge_sum(sites, "user", 4) == Judgement(
        measured=measured, failed=("c1",), not_selected=(), requester_passed=True
    )
    assert not judge_sum(sites, "c1", 4).requester_passed
