"""Mallows averaging over rounds: what is averaged, who is listed, when sites are measured."""

from __future__ import annotations

import math

import pytest

from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec
from protocol.rules.interface import (
    ListTerms,
    Measured,
    PairDistance,
    RuleState,
    SamplingNoise,
    SiteFacts,
    measures_next,
    without,
)
from protocol.rules.mallows import Mallows
from protocol.rules.registry import rule_for

NAMES = ("c1", "c2", "c3")
GRID = 1024


def mallows(**options: object) -> Mallows:
    spec = RuleSpec.model_validate({"name": RuleName.MALLOWS, **options})
    rule = rule_for(spec, batch_size=8, grid=GRID, terms=ListTerms())
    assert isinstance(rule, Mallows)
    return rule


def measured(variance: float | None, took_part: tuple[str, ...] = NAMES, **far: float) -> Measured:
    """Sites at right angles to each other, one apart from the requester each, but for those ``far``."""
    away = {name: far.get(name, 1.0) for name in took_part}
    pairs = [PairDistance(first="user", second=name, distance=d) for name, d in away.items()]
    pairs += [
        PairDistance(first=one, second=other, distance=math.hypot(away[one], away[other]))
        for place, one in enumerate(took_part)
        for other in took_part[:place]
    ]
    return Measured(round=1, pairs=tuple(pairs), requester_norm=1.0, variance=variance, took_part=took_part)


def summed(took_part: tuple[str, ...] = NAMES) -> Measured:
    return Measured(round=2, requester_norm=1.0, took_part=took_part)


def started(rule: Mallows, names: tuple[str, ...] = NAMES) -> RuleState:
    return rule.admit(rule.init(()), tuple(SiteFacts(name=name, samples=8) for name in names))


def shares(rule: Mallows, state: RuleState) -> dict[str, float]:
    found = {w.site: w.numerator for w in rule.numerators(state)}
    total = rule.own_numerator(state) + sum(found.values())
    return {site: n / total for site, n in found.items()}


def test_sites_that_differ_by_noise_alone_are_averaged_evenly() -> None:
    """d_i0^2 = d_ij^2 = 2 v_0: FedAvg, a quarter each."""
    rule = mallows()
    alike = measured(0.5)
    same = tuple(pair.model_copy(update={"distance": 1.0}) for pair in alike.pairs)
    state = rule.apply(started(rule), alike.model_copy(update={"pairs": same}))
    assert shares(rule, state) == pytest.approx(dict.fromkeys(NAMES, 0.25), abs=1e-3)
    assert [site.alpha for site in state.sites] == [1.0] * 3


def test_a_site_that_is_far_is_not_listed_and_comes_back_when_it_is_near() -> None:
    rule = mallows()
    state = rule.apply(started(rule), measured(0.5, c3=100.0))
    assert set(shares(rule, state)) == {"c1", "c2"}
    assert rule.own_numerator(state) == GRID
    state = rule.apply(state.model_copy(update={"means": ()}), measured(0.5))
    assert set(shares(rule, state)) == set(NAMES)


def test_means_are_over_the_rounds_in_which_both_were_measured() -> None:
    rule = mallows()
    state = rule.apply(started(rule), measured(0.5, took_part=("c1", "c2"), c1=2.0))
    assert set(shares(rule, state)) <= {"c1", "c2"}, "a site that was never measured is not listed"
    state = rule.apply(state, measured(0.25, c1=3.0))
    found = {mean.of: (mean.value, mean.rounds) for mean in state.means}
    assert found["c1", "c1"] == (pytest.approx((4 / 0.5 + 9 / 0.25) / 2), 2)
    assert found["c3", "c3"] == (pytest.approx(1 / 0.25), 1)
    assert found["c1", "c2"] == (pytest.approx(0), 2)
    assert rule.apply(state, measured(0.0)).means == state.means, "no noise, nothing learned"


def test_sums_are_averaged_each_for_itself_so_a_round_without_noise_does_not_decide() -> None:
    ratios, sums = mallows(), mallows(averages="sums")
    fitted = measured(0.001, c1=0.5)
    found = {}
    for rule in (ratios, sums):
        state = started(rule)
        for round_measured in (measured(1.0, ("c1", "c2")), fitted):
            state = rule.apply(state, round_measured)
        found[rule.options.averages] = (state, shares(rule, state))
    state, weights = found["sums"]
    means = {mean.of: (mean.value, mean.rounds) for mean in state.means}
    assert means["c1", "c1"] == (pytest.approx((1 + 0.25) / 2), 2)
    assert means["c1", "c1", ""] == (pytest.approx((1 + 0.001) / 2), 2)
    assert means["c3", "c3"] == (pytest.approx(1), 1)
    assert means["c3", "c3", ""] == (pytest.approx(0.001), 1)
    assert weights["c1"] > 0.2 > 0.01 > found["ratios"][1].get("c1", 0.0)
    # one round alone is the same either way
    alone = [shares(rule, rule.apply(started(rule), measured(0.5, c1=1.5))) for rule in (ratios, sums)]
    assert alone[0] == pytest.approx(alone[1], abs=2 / GRID)
    assert sums.apply(state, measured(0.0)).means == state.means
    with pytest.raises(ProtocolViolation, match="noise is unknown"):
        sums.apply(started(sums), measured(None))


def test_sites_are_measured_first_and_then_every_so_many_rounds() -> None:
    rule = mallows(measure_every=3)
    state, due = started(rule), []
    for _ in range(7):
        due.append(measures_next(rule, state))
        state = rule.apply(state, measured(0.5) if due[-1] else summed())
    assert due == [True, False, False, True, False, False, True]
    assert [site.rounds for site in state.sites] == [4] * 3


def test_a_site_that_left_is_not_weighed() -> None:
    rule = mallows()
    state = rule.apply(started(rule), measured(0.5))
    assert set(shares(rule, without(state, ("c2",)))) == {"c1", "c3"}


def test_more_samples_are_less_noise() -> None:
    noise = SamplingNoise("local_sgd", 8, 16)
    assert noise.of(64) == pytest.approx((8 / 2) ** 2 * 16 / 64)
    assert SamplingNoise("gradient", 8, 16).of(64) == 1.0
    assert SamplingNoise("gradient", 128, 16).of(64) == pytest.approx(16 / 64)


def test_what_is_missing_is_named() -> None:
    rule = mallows()
    with pytest.raises(ProtocolViolation, match="noise is unknown"):
        rule.apply(started(rule), measured(None))
    torn = measured(0.5)
    for lost in torn.pairs:
        with pytest.raises(ProtocolViolation, match="no distance of"):
            rule.apply(started(rule), torn.model_copy(update={"pairs": tuple(p for p in torn.pairs if p != lost)}))
    with pytest.raises(ConfigurationError, match="variance_factor belongs to criterion 'raw'"):
        mallows(variance_factor=1.0)
