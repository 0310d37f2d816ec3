"""A site sends an update far longer than clipping allows, and points it where what is opened hides that.

Honest updates have length at most C, so they lie within C + ||g_0|| of the requester's and within 2 C of each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from client_agent.requester.measuring.judging import Judgement, RequesterFacts, RoundRule, judge
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import SiteFacts
from protocol.rules.registry import rule_for
from protocol.wire.messages import RuleName, RuleSpec

C, GRID = 2.0, 8
PARAMETERS = StudyParameters(dimension=20, clip_norm=C, weight_grid=GRID, least_contributors=3)
REQUESTER, CHEAT = "user", "c9"
HONEST = ("c1", "c2", "c3", "c4")
SITES = (REQUESTER, *HONEST, CHEAT)
RNG = np.random.default_rng(8)

Vector = NDArray[np.float64]


def of_length(length: float, direction: Vector) -> Vector:
    return direction * (length / float(np.linalg.norm(direction)))


ALONG = of_length(1.0, RNG.normal(size=20))
OTHERS = {site: of_length(C, RNG.normal(size=20)) for site in HONEST}
"""Clipped updates in directions of their own."""


def judged(updates: Mapping[str, Vector], opens: Needs, probe: Vector, byzantine: int = 1) -> Judgement:
    """What the requester makes of the exact numbers that ``opens`` shows it of these updates."""
    own = updates[REQUESTER]
    opened = [OpenedSite(REQUESTER, True)]
    for place, site in enumerate(SITES[1:], start=1):
        if opens is Needs.PAIRS:
            near = tuple((other, float(np.linalg.norm(updates[site] - updates[other]))) for other in SITES[:place])
            opened.append(OpenedSite(site, True, pairs=near))
        elif opens is Needs.INNER_PRODUCTS:
            opened.append(OpenedSite(site, True, inner_product=float(updates[site] @ probe)))
        else:
            centre = own if opens is Needs.DISTANCES else np.zeros(20)
            opened.append(OpenedSite(site, True, distance=float(np.linalg.norm(updates[site] - centre))))
    facts = RequesterFacts(REQUESTER, float(np.linalg.norm(own)), float(np.linalg.norm(probe)), float(own @ probe))
    rule = FedAvg(GRID, None)
    state = rule.init(tuple(SiteFacts(name=name, samples=10) for name in SITES[1:]))
    spec = RuleSpec(name=RuleName.FEDAVG, byzantine=byzantine)
    numerators = dict.fromkeys(SITES, GRID)
    return judge(opened, facts, numerators, RoundRule(spec, rule, state, PARAMETERS), round=1, opens=opens)


def test_pairs_show_an_update_that_lies_within_reach_of_the_requester_but_not_of_the_others() -> None:
    """Of length 2 C and 1.5 C from the requester; the honest ones are on the other side, more than 2 C away."""
    others = {site: of_length(C, -ALONG + 0.1 * OTHERS[site]) for site in HONEST}
    updates = {REQUESTER: 0.5 * C * ALONG, CHEAT: 2 * C * ALONG, **others}
    assert judged(updates, Needs.PAIRS, ALONG).failed == (CHEAT,)


def test_a_long_update_does_not_take_honest_ones_with_it() -> None:
    """It is too far from every honest site; each of these is too far from it alone."""
    others = {site: of_length(C, -ALONG + 0.1 * OTHERS[site]) for site in HONEST}
    updates = {REQUESTER: np.zeros(20), CHEAT: 1.9 * C * ALONG, **others}
    distances = [float(np.linalg.norm(updates[CHEAT] - updates[site])) for site in HONEST]
    assert min(distances) > 2 * C
    assert judged(updates, Needs.PAIRS, ALONG).failed == (CHEAT,)


@pytest.mark.parametrize("opens", [Needs.DISTANCES, Needs.PAIRS, Needs.NORMS, Needs.INNER_PRODUCTS])
def test_clipped_updates_at_the_edge_stay(opens: Needs) -> None:
    """Two honest sites at opposite ends, one of them opposite to the requester."""
    edges = {"c1": C * ALONG, "c2": -C * ALONG, CHEAT: -C * ALONG}
    updates = {REQUESTER: C * ALONG, **OTHERS, **edges}
    assert judged(updates, opens, ALONG, byzantine=0).failed == ()


def test_what_distances_leave_open() -> None:
    """Claimed as a limit: up to C + 2 ||g_0|| in the requester's direction, which only it knows beforehand."""
    for factor, failed in ((1.8 - 1e-6, ()), (1.8 + 1e-4, (CHEAT,))):
        updates = {REQUESTER: 0.4 * C * ALONG, CHEAT: factor * C * ALONG, **OTHERS}
        assert judged(updates, Needs.DISTANCES, ALONG).failed == failed


@pytest.mark.parametrize("liars", [2, 3, 4])
def test_more_liars_than_the_rule_stands_skip_the_round_and_blame_no_server(liars: int) -> None:
    """Every honest site is then too far from more than f others, the requester too: nobody is left to choose from."""
    others = {site: OTHERS[site] if place >= liars else -5 * C * ALONG for place, site in enumerate(HONEST)}
    updates = {REQUESTER: 0.9 * C * ALONG, CHEAT: -5 * C * ALONG, **others}
    opened = [OpenedSite(REQUESTER, True)]
    for place, site in enumerate(SITES[1:], start=1):
        near = tuple((other, float(np.linalg.norm(updates[site] - updates[other]))) for other in SITES[:place])
        opened.append(OpenedSite(site, True, pairs=near))
    spec = RuleSpec(name=RuleName.MULTI_KRUM, byzantine=1, selected=3)
    rule = rule_for(spec, batch_size=32, grid=GRID)
    by = RoundRule(spec, rule, rule.init(()), PARAMETERS)
    facts = RequesterFacts(REQUESTER, 0.9 * C)
    judgement = judge(opened, facts, dict.fromkeys(SITES, GRID), by, round=1, opens=Needs.PAIRS)
    assert not judgement.releases(PARAMETERS.least_contributors)
    assert judgement.not_selected == ()
