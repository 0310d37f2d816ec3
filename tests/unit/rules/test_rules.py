"""The rules are pure: every number below is worked out from the paper's formula by hand or with fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalOptimumReached, ProtocolViolation
from protocol.messages.control import ListedWeight
from protocol.parameters import Needs
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Measured, RuleState, SiteFacts
from protocol.rules.local import Local
from protocol.rules.weight_erosion import SecondWeight, WeightErosion

SITES = tuple(SiteFacts(name=name, samples=samples) for name, samples in (("b", 100), ("c", 40), ("d", 10)))


def erosion(p_d: float = 0.01, p_s: float = 0.2, batch: int = 10, grid: int = 32) -> WeightErosion:
    return WeightErosion(p_d, p_s, batch, grid)


def measured(round_number: int, *distances: tuple[str, float], norm: float = 2.0) -> Measured:
    return Measured(
        round=round_number, distances=distances, requester_norm=norm, took_part=tuple(name for name, _ in distances)
    )


def test_erosion_leaves_nobody_out_that_passed_the_checks() -> None:
    assert erosion().select(erosion().init(SITES), measured(1, ("b", 100.0), ("d", 0.0))) == ("b", "d")


def test_what_each_rule_declares() -> None:
    assert erosion().needs is Needs.DISTANCES
    assert FedAvg(32).needs is Needs.NOTHING
    assert Local().needs is Needs.NOTHING
    assert erosion().weights_never_rise


def test_r_counts_only_the_rounds_a_site_took_part_in() -> None:
    rule = erosion(p_d=0.01, p_s=1.0, batch=10)
    state = rule.init(SITES)
    for r in range(1, 6):
        state = rule.apply(state, measured(r, ("b", 0.0)))
    before = state.alpha_of("d")
    state = rule.apply(state, measured(6, ("d", 2.0)))
    assert before == 1.0
    assert state.alpha_of("d") == 0.99
    assert [s.rounds for s in state.sites] == [5, 0, 1]


def test_epochs_counted_in_batches_are_those_of_the_mnist_studys_code() -> None:
    # c: 40 samples are ceil(40 / 16) = 3 batches, so floor((r - 1) * 16 / 3) instead of floor((r - 1) * 16 / 40)
    rule = WeightErosion(0.001, 1.0, 16, 32, "batches")
    in_samples = WeightErosion(0.001, 1.0, 16, 32)
    state = by_samples = rule.init(SITES)
    alpha = by_sample_alpha = 1.0
    for r in range(1, 6):
        opened = measured(r, ("c", 2.0))
        state, by_samples = rule.apply(state, opened), in_samples.apply(by_samples, opened)
        alpha -= (1 + (r - 1) * 16 // 3) * 0.001
        by_sample_alpha -= (1 + (r - 1) * 16 // 40) * 0.001
        assert state.alpha_of("c") == alpha
        assert by_samples.alpha_of("c") == by_sample_alpha
    # five float64 products and differences of numbers below 1
    assert alpha == pytest.approx(1 - 0.001 * sum((1, 6, 11, 17, 22)), rel=0, abs=2.0**-49)


def test_a_second_weight_multiplies_what_is_handed_out_and_nothing_else() -> None:
    second = (SecondWeight(site="c", weight=0.5), SecondWeight(site="d", weight=0.25))
    rule, plain = WeightErosion(0.25, 0.0, 1, 32, "samples", second), erosion(p_d=0.25, p_s=0.0, batch=1)
    opened = measured(1, ("b", 2.0), ("c", 2.0), ("d", 0.0))
    state = rule.apply(rule.init(SITES), opened)
    assert state == plain.apply(plain.init(SITES), opened)
    assert [w.numerator for w in rule.numerators(state)] == [24, 12, 8]


def test_a_weight_is_zero_for_good_when_its_product_with_the_second_weight_rounds_to_zero() -> None:
    # 1/4 * 1/16 = 1/64, half a step of the grid: a tie goes to the even numerator, 0
    rule = WeightErosion(0.75, 0.0, 1, 32, "samples", (SecondWeight(site="c", weight=1 / 16),))
    state = rule.apply(rule.init(SITES), measured(1, ("b", 2.0), ("c", 2.0)))
    assert (state.alpha_of("b"), state.alpha_of("c")) == (0.25, 0.0)


@given(
    st.lists(st.lists(st.floats(0, 50) | st.none(), min_size=3, max_size=3), min_size=1, max_size=8),
    st.floats(0, 0.3),
    st.floats(0, 3),
    st.sampled_from(["samples", "batches"]),
)
def test_weights_of_erosion_never_rise_and_absent_sites_keep_theirs(
    rounds: list[list[float | None]], p_d: float, p_s: float, counted: Literal["samples", "batches"]
) -> None:
    rule = WeightErosion(p_d, p_s, 10, 32, counted)
    state = rule.init(SITES)
    for number, distances in enumerate(rounds, start=1):
        opened = measured(number, *((s.name, d) for s, d in zip(SITES, distances, strict=True) if d is not None))
        after = rule.apply(state, opened)
        for site, before, distance in zip(after.sites, state.sites, distances, strict=True):
            assert 0 <= site.alpha <= before.alpha
            assert site.rounds == before.rounds + (distance is not None)
            assert distance is not None or site == before
        listed = {w.site: w.numerator for w in rule.numerators(after)}
        assert all(listed.get(w.site, 0) <= w.numerator for w in rule.numerators(state))
        state = after


def test_a_late_joiners_participation_counts_from_its_own_first_round() -> None:
    rule = erosion(p_d=0.01, p_s=1.0, batch=10)
    state = rule.init(SITES[:2])
    for r in range(1, 4):
        state = rule.apply(state, measured(r, ("b", 2.0), ("c", 2.0)))
    joined = rule.admit(state, SITES)
    start = joined.alpha_of("d")
    assert start == (state.alpha_of("b") + state.alpha_of("c")) / 2
    # |S_d| = 10 = b: in its first round floor((1 - 1) * 10 / 10) = 0 passes are over, whatever the study's round
    after = rule.apply(joined, measured(4, ("d", 2.0)))
    assert after.alpha_of("d") == start - 0.01
    assert after.sites[2].rounds == 1


def test_weight_that_rounds_to_zero_is_zero_for_good_and_not_listed() -> None:
    rule = erosion(p_d=0.99, p_s=0.0, batch=1)
    state = rule.apply(rule.init(SITES), measured(1, ("b", 2.0), ("c", 0.0), ("d", 20.0)))
    # b: 1 - 0.99 = 0.01, below half of 1/32
    assert [s.alpha for s in state.sites] == [0.0, 1.0, 0.0]
    assert rule.numerators(state) == (ListedWeight(site="c", numerator=32),)


def test_numerators_round_to_the_nearest_grid_point() -> None:
    rule = erosion(p_d=1.0, p_s=0.0, batch=1, grid=4)
    state = rule.apply(rule.init(SITES), measured(1, ("b", 0.8), ("c", 0.74), ("d", 0.2), norm=1.0))
    assert [s.alpha for s in state.sites] == [1 - 0.8, 1 - 0.74, 0.8]
    listed = {w.site: w.numerator for w in rule.numerators(state)}
    assert listed == {"b": 1, "c": 1, "d": 3}
    assert all(abs(Fraction(listed[s.name], 4) - Fraction(s.alpha)) <= Fraction(1, 8) for s in state.sites)


def test_late_joiner_starts_at_the_median_of_those_still_in() -> None:
    rule = erosion(p_d=0.1, p_s=0.0, batch=1)
    state = rule.apply(rule.init(SITES), measured(1, ("b", 2.0), ("c", 6.0), ("d", 40.0)))
    assert state.alpha_of("d") == 0.0
    joined = rule.admit(state, (SiteFacts(name="e", samples=5), SiteFacts(name="b", samples=100)))
    assert joined.alpha_of("e") == (state.alpha_of("b") + state.alpha_of("c")) / 2
    assert joined.sites[:3] == state.sites
    assert joined.sites[3].rounds == 0
    assert rule.admit(rule.init(()), SITES).alpha_of("b") == 1.0


def test_zero_requester_update_is_the_local_optimum() -> None:
    rule = erosion()
    with pytest.raises(LocalOptimumReached, match="round 3"):
        rule.apply(rule.init(SITES), measured(3, ("b", 1.0), norm=0.0))


def test_missing_distance_and_unknown_site_are_violations() -> None:
    rule = erosion()
    with pytest.raises(ProtocolViolation, match="'c'"):
        rule.apply(
            rule.init(SITES), Measured(round=1, distances=(("b", 1.0),), requester_norm=1.0, took_part=("b", "c"))
        )
    for any_rule in (rule, FedAvg(32)):
        with pytest.raises(ProtocolViolation, match="'stranger'"):
            any_rule.apply(any_rule.init(SITES), measured(1, ("stranger", 1.0)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_distance_that_is_no_distance_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="distances"):
        measured(1, ("b", value))


def test_states_survive_a_checkpoint_bit_for_bit() -> None:
    rule = erosion(p_d=1 / 3, p_s=1 / 7, batch=3)
    state = rule.init(SITES)
    for r in range(1, 4):
        state = rule.apply(state, measured(r, ("b", 0.1 * r), ("c", 1e-9), ("d", 0.7)))
        assert RuleState.model_validate_json(state.model_dump_json()) == state


def test_a_state_with_a_site_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        erosion().init((SITES[0], SITES[0]))


def test_fedavg_never_changes_a_weight() -> None:
    rule = FedAvg(16)
    state = rule.admit(rule.init(SITES), (SiteFacts(name="e", samples=1), SITES[0]))
    state = rule.apply(state, Measured(round=1, requester_norm=0.0, took_part=("b", "e")))
    assert [(s.name, s.alpha, s.rounds) for s in state.sites] == [
        ("b", 1.0, 1),
        ("c", 1.0, 0),
        ("d", 1.0, 0),
        ("e", 1.0, 1),
    ]
    assert [w.numerator for w in rule.numerators(state)] == [16, 16, 16, 16]


def test_local_lists_nobody() -> None:
    rule = Local()
    state = rule.admit(rule.init(SITES), (SiteFacts(name="e", samples=1),))
    assert rule.numerators(state) == ()
    assert rule.apply(state, Measured(round=1, requester_norm=1.0, took_part=())) == state
    assert rule.select(state, measured(1, ("b", 1.0))) == ("b",)
    with pytest.raises(ProtocolViolation, match="'b'"):
        rule.apply(state, measured(1, ("b", 1.0)))
