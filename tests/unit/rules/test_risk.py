"""The list of least risk, its quadratic programme, and shrinkage."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec
from protocol.parameters import Needs, StudyParameters
from protocol.policy.clauses import Terms, check_for_every_site
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rules import risk as quadratic
from protocol.rules.interface import ListTerms, Measured, PairDistance, RiskRule, RuleState, SiteFacts
from protocol.rules.registry import rule_for
from protocol.rules.risk import (
    Cut,
    MostViolated,
    Reals,
    Risk,
    best_choice,
    minimiser,
    plug_in_risk,
    raw_risk,
    rounded,
    solved,
)
from protocol.rules.shrinkage import Shrinkage, distance_from_mean
from tests.unit.policy.lists import announcement, weight_list

# --- choice -----------------------------------------------------------------------------------------------------------

SHARE = Fraction(3, 5)
FINE = 24


def risk_of(n: int, seed: int, form: str = "plug_in") -> Risk:
    """Sites whose biases are from none to several times the noise."""
    random = np.random.default_rng(seed)
    bias = random.normal(size=(n, 6)) * random.uniform(0, 1.5, size=(n, 1))
    noise = random.uniform(0.1, 2, size=n)
    K = bias @ bias.T + 1 + np.diag(noise)
    return raw_risk(K, random.uniform(0.3, 1)) if form == "raw" else plug_in_risk(K, noise, 2.0)


def allowed(w: np.ndarray, terms: ListTerms) -> bool:
    """Every listed site's share, as the policy says it; ``w`` are all listed."""
    for i, own in enumerate(w):
        sure = np.sort(np.delete(w, i))[: terms.sure(len(w))].sum()
        if own > float(terms.largest_share) * (own + sure) + 1e-9:
            return False
    return True


@cache
def fine_grid() -> np.ndarray:
    return np.array([w for w in product(range(FINE + 1), repeat=4) if sum(w) <= FINE]) / FINE


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("terms", "form"),
    [
        (ListTerms(), "plug_in"),
        (ListTerms(3, 0, SHARE), "plug_in"),
        (ListTerms(3, 0, SHARE), "raw"),
        (ListTerms(4, 1, SHARE), "plug_in"),
    ],
)
def test_no_weights_on_a_fine_grid_are_better(seed: int, terms: ListTerms, form: str) -> None:
    risk = risk_of(4, seed, form)
    found = solved(risk, terms)
    assert (found >= 0).all()
    assert found.sum() <= 1 + 1e-7
    assert allowed(found, terms)
    tried = fine_grid()
    values = np.einsum("ij,jk,ik->i", tried, risk.G, tried) / 2 + tried @ risk.a
    better = tried[values < risk.of(found) - 1e-7]
    assert not any(allowed(w, terms) for w in better)


def test_leaving_out_the_lightest_finds_nearly_always_the_best_set() -> None:
    terms, best = ListTerms(3, 0, SHARE), 0
    for seed in range(60):
        risk = risk_of(5, 100 + seed)
        found = risk.of(best_choice(risk, terms, 4096).weights())
        every = []
        for size in (3, 4, 5):
            for chosen in combinations(range(5), size):
                sites = np.array(chosen)
                every.append(risk.among(sites).of(solved(risk.among(sites), terms)))
        assert found >= min(every) - 1e-6
        assert found <= risk.of(rounded(solved(risk, terms), np.arange(5), terms, 4096).weights()) + 1e-12
        best += found <= min(every) + 2e-3
    assert best >= 50


@given(
    st.integers(0, 10**6),
    st.integers(3, 9),
    st.integers(0, 2),
    st.sampled_from([8, 32, 1024]),
    st.sampled_from(["0.6", "0.5", "0.75", "1.0"]),
    st.sampled_from(["plug_in", "raw"]),
    st.integers(0, 2),
)
def test_every_site_accepts_every_list(
    seed: int, n: int, colluders: int, grid: int, share: str, form: str, more: int
) -> None:
    """Whatever was measured, with the study's least number and with the number listed."""
    least = min(n, 3 + colluders + more)
    if least - colluders < 3:
        return
    names = tuple(f"c{i}" for i in range(n))
    rule = rule_for(
        RuleSpec.model_validate({"name": RuleName.MALLOWS, "criterion": form}),
        batch_size=8,
        grid=grid,
        terms=ListTerms(least, colluders, Fraction(share)),
    )
    assert isinstance(rule, RiskRule)
    state = rule.admit(rule.init(()), tuple(SiteFacts(name=name, samples=10) for name in names))
    state = rule.apply(state, measured(names, seed))
    weights = rule.numerators(state)
    assert rule.own_numerator(state) >= 0
    assert max(rule.own_numerator(state), *(w.numerator for w in weights)) <= grid
    assert len(weights) >= least
    policy = SitePolicy(largest_share=float(share), assumed_colluders=colluders)
    parameters = StudyParameters(dimension=5, clip_norm=1.0, weight_grid=grid, least_contributors=least)
    terms = Terms(parameters, names, rule, policy)
    of = weight_list({weight.site: weight.numerator for weight in weights}, grid=grid)
    for number in {least, len(weights)}:
        check_for_every_site(announcement(of, m=number, opens=Needs.NORMS), of, terms, SiteMemory())


def measured(names: tuple[str, ...], seed: int) -> Measured:
    """Distances of updates that lie from near to far from the requester's, in any pattern."""
    random = np.random.default_rng(seed)
    spread = 10.0 ** random.uniform(-2, 2, size=len(names) + 1)
    points = dict(zip(("user", *names), random.normal(size=(len(names) + 1, 3)) * spread[:, None], strict=True))
    pairs = tuple(
        PairDistance(first=one, second=other, distance=float(np.linalg.norm(points[one] - points[other])))
        for one, other in combinations(points, 2)
    )
    return Measured(
        round=1, pairs=pairs, requester_norm=1.0, variance=float(10.0 ** random.uniform(-3, 3)), took_part=names
    )


# --- quadratic --------------------------------------------------------------------------------------------------------

G, A = np.eye(2), np.zeros(2)
FIRST = np.array([1.0, 0.0])


def one_after_the_other(*cuts: Cut) -> MostViolated:
    """The first cut that x violates, in this order."""
    return lambda x: next((cut for cut in cuts if cut.lacks(x) > 1e-9), None)


def least(*cuts: Cut) -> Reals:
    return minimiser(G, A, one_after_the_other(*cuts))


def test_a_stricter_cut_takes_the_place_of_one_along_the_same_normal() -> None:
    np.testing.assert_allclose(least(Cut(FIRST, 1.0), Cut(FIRST, 2.0)), [2.0, 0.0], atol=1e-12)


def test_cuts_that_contradict_each_other_are_named() -> None:
    with pytest.raises(ProtocolViolation, match="constraints contradict each other; check the policy"):
        least(Cut(FIRST, 1.0), Cut(-FIRST, 0.0))


def test_a_search_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quadratic, "_MOST_STEPS", 1)
    with pytest.raises(ProtocolViolation, match="no optimal weights after 1 steps"):
        least(Cut(FIRST, 1.0))


def test_a_cut_that_others_do_not_make_room_for_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def violated(x: Reals) -> Cut:
        if x[0] < 0.5:
            return Cut(FIRST, 1.0)
        monkeypatch.setattr(quadratic, "_MOST_STEPS", 1)
        return Cut(FIRST, 2.0)

    with pytest.raises(ProtocolViolation, match="constraints contradict each other"):
        minimiser(G, A, violated)


# --- shrinkage --------------------------------------------------------------------------------------------------------

RULE = Shrinkage(1024)
NAMES = ("c1", "c2", "c3")


def state_after(*from_mean: float, variance: float = 1.0) -> RuleState:
    state = RULE.admit(RULE.init(()), tuple(SiteFacts(name=name, samples=8) for name in NAMES))
    for number, distance in enumerate(from_mean, 1):
        state = RULE.apply(
            state,
            Measured(round=number, requester_norm=1.0, variance=variance, from_mean=distance, took_part=NAMES),
        )
    return state


@pytest.mark.parametrize(
    ("from_mean", "towards"), [((), 1.0), ((0.5,), 1.0), ((2.0,), 0.25), ((1.0, 3.0), 0.2), ((1e6,), 0.0)]
)
def test_the_step_goes_so_far_towards_the_mean(from_mean: tuple[float, ...], towards: float) -> None:
    """(1 - a) g_0 + a gbar: a / 4 for each of the others."""
    weights = [w.numerator for w in RULE.numerators(state_after(*from_mean))]
    total = RULE.own_numerator(state_after(*from_mean)) + sum(weights)
    assert [w / total for w in weights] == pytest.approx([towards / 4] * 3, abs=1.1 / 1024)
    assert min(weights) >= 1


def test_the_distance_from_the_mean_follows_from_the_opened_average_and_ones_own_update() -> None:
    """gbar = (g_0 + n h) / (n + 1), h the others' mean by their weights."""
    own, *others = np.random.default_rng(4).normal(size=(4, 9))
    numerators = (3, 8, 5)
    weighed = sum(w * g for w, g in zip(numerators, others, strict=True))
    average = ((2 * own + weighed) / (2 + sum(numerators))).astype(np.float32)
    mean = (own + 3 * weighed / sum(numerators)) / 4
    # the average is rounded to float32, and the total weight of 18 over the others' 16 carries that on
    assert distance_from_mean(average, own, 2, numerators) == pytest.approx(np.linalg.norm(own - mean), rel=1e-6)


def test_without_noise_nothing_is_learned_and_what_is_missing_is_named() -> None:
    assert state_after(2.0, variance=0.0).means == ()
    with pytest.raises(ProtocolViolation, match="the requester's own noise, or the mean, is unknown"):
        RULE.apply(state_after(), Measured(round=1, requester_norm=1.0, variance=1.0, took_part=NAMES))
