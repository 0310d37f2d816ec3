"""Who stays in the sum of a measured round, by everything that can be opened."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from client_agent.requester.measuring.allowed_lengths import largest_product, longest_distance, longest_norm
from client_agent.requester.measuring.judging import Judgement, RequesterFacts, RoundRule, judge
from protocol.errors import ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Measured, RuleState, SiteFacts

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
