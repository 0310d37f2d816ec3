"""Multi-Krum against the definition in Blanchard et al. 2017, worked out by trying every neighbourhood."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolViolation
from protocol.parameters import Needs
from protocol.rules.interface import Measured, PairDistance, RuleState, SiteFacts
from protocol.rules.multi_krum import MultiKrum, least_sites

STATE = RuleState(sites=())


def names(contributors: int) -> tuple[str, ...]:
    return tuple(f"s{i}" for i in range(1, contributors + 1))


def measured(vectors: np.ndarray) -> Measured:
    """Pairs of the rows; row 0 is the requester's."""
    sites = ("requester", *names(len(vectors) - 1))
    pairs = tuple(
        PairDistance(first=sites[i], second=sites[j], distance=float(np.linalg.norm(vectors[i] - vectors[j])))
        for i, j in combinations(range(len(vectors)), 2)
    )
    return Measured(round=1, pairs=pairs, requester_norm=1.0, took_part=sites[1:])


def definition(vectors: np.ndarray, f: int, m: int) -> set[str]:
    """The m best rows; a score is the least sum of squares over all sets of n - f - 2 other rows."""
    n = len(vectors)

    def score(i: int) -> float:
        others = [float(np.sum((vectors[i] - vectors[j]) ** 2)) for j in range(n) if j != i]
        return min(sum(some) for some in combinations(others, n - f - 2))

    best = sorted(range(n), key=score)[:m]
    return {names(n - 1)[i - 1] for i in best if i > 0}


@pytest.mark.parametrize(("n", "f"), [(3, 0), (5, 1), (6, 1), (7, 2), (9, 3), (9, 2)])
def test_selects_what_the_definition_selects(n: int, f: int, rng: np.random.Generator) -> None:
    for _ in range(20):
        vectors = rng.normal(size=(n, 4)) * rng.uniform(0.5, 3, size=(n, 1))
        for m in range(1, n - f + 1):
            assert set(MultiKrum(32, f, m).select(STATE, measured(vectors))) == definition(vectors, f, m)
        assert MultiKrum(32, f).select(STATE, measured(vectors)) == MultiKrum(32, f, n - f).select(
            STATE, measured(vectors)
        )


def test_equal_scores_go_to_the_requester_then_in_order() -> None:
    same = np.zeros((5, 2))
    assert MultiKrum(32, 1, 2).select(STATE, measured(same)) == ("s1",)
    assert MultiKrum(32, 1, 4).select(STATE, measured(same)) == ("s1", "s2", "s3")


@given(st.permutations(range(6)), st.integers(0, 2**32 - 1))
def test_the_order_of_sites_does_not_matter(order: list[int], seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(7, 3))
    one = measured(vectors)
    other = one.model_copy(
        update={
            "took_part": tuple(one.took_part[i] for i in order),
            "pairs": tuple(
                PairDistance(first=p.second, second=p.first, distance=p.distance) for p in reversed(one.pairs)
            ),
        }
    )
    rule = MultiKrum(32, 2, 3)
    assert set(rule.select(STATE, one)) == set(rule.select(STATE, other))


@given(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_byzantine_sites_far_away_are_never_selected(f: int, more: int, seed: int) -> None:
    # Honest updates lie in a cube of diameter below 2, so an honest score is below 4 n; a Byzantine site has at most
    # f - 1 neighbours of its kind, so at least one honest site at 998 or more counts in its score.
    rng = np.random.default_rng(seed)
    n = least_sites(f) + more
    vectors = rng.uniform(-0.5, 0.5, size=(n, 4))
    byzantine = rng.choice(np.arange(1, n), size=f, replace=False)
    vectors[byzantine, 0] += 1000.0
    selected = MultiKrum(32, f).select(STATE, measured(vectors))
    assert set(selected) == set(names(n - 1)) - {f"s{i}" for i in byzantine}


def test_too_few_sites_in_a_round_select_nobody() -> None:
    assert MultiKrum(32, 1).select(STATE, measured(np.eye(4))) == ()
    assert len(MultiKrum(32, 1).select(STATE, measured(np.eye(5)))) == 3


def test_fewer_sites_than_the_number_selected_leave_f_out_still() -> None:
    # f = 1 of 5: never more than 4 with the requester, although 6 are asked for
    line = np.array([[0.0], [1.0], [2.0], [4.0], [100.0]])
    assert MultiKrum(32, 1, 6).select(STATE, measured(line)) == ("s1", "s2", "s3")


def test_the_requester_is_told_from_the_pairs_and_no_distance_is_missing() -> None:
    whole = measured(np.eye(5))
    rule = MultiKrum(32, 1)
    with pytest.raises(ProtocolViolation, match="exactly one is the requester"):
        rule.select(STATE, whole.model_copy(update={"took_part": whole.took_part[1:]}))
    with pytest.raises(ProtocolViolation, match="exactly one is the requester"):
        rule.select(STATE, whole.model_copy(update={"pairs": ()}))
    with pytest.raises(ProtocolViolation, match=r"round 1: no distance of 's4' to \['s3'\]"):
        rule.select(STATE, whole.model_copy(update={"pairs": whole.pairs[:-1]}))


def test_weights_stay_one_and_released_rounds_are_counted() -> None:
    rule = MultiKrum(16)
    assert (rule.needs, rule.selects, rule.weights_never_rise) == (Needs.PAIRS, True, True)
    state = rule.admit(rule.init((SiteFacts(name="s1", samples=3),)), (SiteFacts(name="s2", samples=3),))
    state = rule.apply(state, Measured(round=1, requester_norm=1.0, took_part=("s2",)))
    assert [(s.name, s.alpha, s.rounds) for s in state.sites] == [("s1", 1.0, 0), ("s2", 1.0, 1)]
    assert [w.numerator for w in rule.numerators(state)] == [16, 16]
    assert RuleState.model_validate_json(state.model_dump_json()) == state
