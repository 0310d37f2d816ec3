"""The list of least risk: against every list of a fine grid, and against the sites' own policy."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages.control import Announcement, ListedWeight, RuleName, RuleSpec, WeightList
from protocol.parameters import Needs, StudyParameters
from protocol.policy.clauses import Terms, check_for_every_site
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rules.interface import ListTerms, Measured, PairDistance, RiskRule, SiteFacts
from protocol.rules.registry import rule_for
from protocol.rules.risk import Risk, best_choice, plug_in_risk, raw_risk, rounded, solved

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
    tried = np.array([w for w in product(range(FINE + 1), repeat=4) if sum(w) <= FINE]) / FINE
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
    for number in {least, len(weights)}:
        check_for_every_site(*listed(weights, grid, number), terms, SiteMemory())


def listed(weights: tuple[ListedWeight, ...], grid: int, least: int) -> tuple[Announcement, WeightList]:
    weight_list = WeightList(study_digest="0" * 64, round=1, grid=grid, weights=weights, salt="0" * 64)
    announcement = Announcement(
        study_digest="0" * 64,
        round=1,
        listed=tuple(w.site for w in weights),
        least_contributors=least,
        opens=Needs.NORMS,
        model_version=0,
        model_digest="1" * 64,
        weight_list_digest=weight_list.digest(),
        closes_at_s=1,
    )
    return announcement, weight_list


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
