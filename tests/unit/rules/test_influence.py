"""Influence: every weight below is worked out by hand from the formula in the module."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalOptimumReached, ProtocolViolation
from protocol.messages.control import ListedWeight
from protocol.parameters import Needs
from protocol.rules.influence import Influence
from protocol.rules.interface import Measured, RuleState, SiteFacts

SITES = tuple(SiteFacts(name=name, samples=10) for name in "bcd")


def measured(own: float, probe_norm: float = 1.0, **influences: float) -> Measured:
    return Measured(
        round=1,
        inner_products=tuple(influences.items()),
        requester_norm=1.0,
        requester_inner_product=own,
        probe_norm=probe_norm,
        took_part=tuple(influences),
    )


def alphas(state: RuleState) -> dict[str, float]:
    return {site.name: site.alpha for site in state.sites}


def test_weights_move_towards_the_share_of_the_requesters_own_influence() -> None:
    rule = Influence(step=0.5, grid=32)
    state = rule.apply(rule.init(SITES), measured(4.0, b=2.0, c=-3.0, d=4.0))
    assert alphas(state) == {"b": 0.75, "c": 0.5, "d": 1.0}
    state = rule.apply(state, measured(4.0, b=4.0, c=1.0))
    assert alphas(state) == {"b": 0.875, "c": 0.375, "d": 1.0}
    assert [site.rounds for site in state.sites] == [2, 2, 1]
    assert [w.numerator for w in rule.numerators(state)] == [28, 12, 32]


def test_the_most_helpful_contributor_is_the_measure_where_it_helps_more() -> None:
    state = Influence(1.0, 32).apply(Influence(1.0, 32).init(SITES), measured(1.0, b=8.0, c=2.0, d=0.0))
    assert alphas(state) == {"b": 1.0, "c": 0.25, "d": 0.0}


def test_where_nobody_helps_all_weights_fall() -> None:
    rule = Influence(step=0.25, grid=32)
    assert alphas(rule.apply(rule.init(SITES), measured(-1.0, b=-2.0, c=0.0))) == {"b": 0.75, "c": 0.75, "d": 1.0}


def test_a_weight_that_rounds_to_zero_is_zero_for_good() -> None:
    rule = Influence(step=0.5, grid=32)
    state = rule.init(SITES)
    for _ in range(6):
        state = rule.apply(state, measured(1.0, b=-1.0, c=1.0))
    # 2^-6 of 1/32 is exactly half a step, and ties go to the even numerator, 0
    assert alphas(state) == {"b": 0.0, "c": 1.0, "d": 1.0}
    assert rule.numerators(state) == (ListedWeight(site="c", numerator=32), ListedWeight(site="d", numerator=32))


@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=6), st.floats(-1e12, 1e12), st.floats(1e-3, 1), st.randoms()
)
def test_weights_stay_between_zero_and_one_in_any_order(
    influences: list[float], own: float, step: float, random: object
) -> None:
    rule = Influence(step, 32)
    facts = [SiteFacts(name=f"s{i}", samples=1) for i in range(len(influences))]
    opened = [(fact.name, value) for fact, value in zip(facts, influences, strict=True)]
    state = rule.apply(rule.init(tuple(facts)), measured(own, **dict(opened)))
    assert all(0.0 <= alpha <= 1.0 for alpha in alphas(state).values())
    random.shuffle(opened)  # type: ignore[attr-defined]
    assert rule.apply(rule.init(tuple(facts)), measured(own, **dict(opened))) == state


@given(st.floats(0.001, 1000))
def test_the_length_of_the_probe_does_not_matter(scale: float) -> None:
    # alpha = 1 - step + step * (3 s) / (4 s): two roundings in the products and one in the quotient, each at most
    # 2^-53 relative, of a number below 1
    rule = Influence(0.5, 32)
    state = rule.apply(rule.init(SITES), measured(4.0 * scale, probe_norm=scale, b=3.0 * scale))
    assert abs(state.alpha_of("b") - 0.875) <= 3 * 2.0**-53


def test_late_joiners_start_at_one() -> None:
    rule = Influence(0.5, 32)
    state = rule.apply(rule.init(SITES), measured(1.0, b=0.0))
    joined = rule.admit(state, (*SITES, SiteFacts(name="e", samples=1)))
    assert alphas(joined) == {"b": 0.5, "c": 1.0, "d": 1.0, "e": 1.0}


def test_no_gradient_on_the_validation_data_is_the_local_optimum() -> None:
    rule = Influence(0.5, 32)
    with pytest.raises(LocalOptimumReached, match="round 1: the gradient"):
        rule.apply(rule.init(SITES), measured(0.0, probe_norm=0.0, b=0.0))


def test_missing_inner_product_and_unknown_site_are_violations() -> None:
    rule = Influence(0.5, 32)
    missing = measured(1.0, b=1.0).model_copy(update={"took_part": ("b", "c")})
    with pytest.raises(ProtocolViolation, match=r"no inner product was opened for \['c'\]"):
        rule.apply(rule.init(SITES), missing)
    with pytest.raises(ProtocolViolation, match="'stranger'"):
        rule.apply(rule.init(SITES), measured(1.0, stranger=1.0))


def test_what_it_declares() -> None:
    rule = Influence(0.5, 32)
    assert (rule.needs, rule.selects, rule.weights_never_rise) == (Needs.INNER_PRODUCTS, False, False)
    assert rule.select(rule.init(SITES), measured(1.0, b=-1.0, c=1.0)) == ("b", "c")
