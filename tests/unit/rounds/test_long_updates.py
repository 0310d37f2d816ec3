"""A site sends an update far longer than clipping allows, and points it where what is opened hides that.

The attacks are ``long-...``; here is whom the requester's judgement names, and whom it must not.
Honest updates have length at most C, so they lie within C + ||g_0|| of the requester's and within 2 C of each other.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.attack.wrong_updates import (
    ALONG,
    CHEAT,
    CLIP,
    GRID,
    HONEST,
    JUDGED,
    OTHERS,
    PARAMETERS,
    REQUESTER,
    judged,
    of_length,
)
from protocol.messages.control import RuleName, RuleSpec
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs
from protocol.rounds.judgement import RequesterFacts, RoundRule, judge
from protocol.rules.registry import rule_for


def test_pairs_show_an_update_that_lies_within_reach_of_the_requester_but_not_of_the_others() -> None:
    """An update of length 2 C, 1.5 C from the requester; the honest ones are on the other side, more than 2 C away."""
    others = {site: of_length(CLIP, -ALONG + 0.1 * OTHERS[site]) for site in HONEST}
    updates = {REQUESTER: 0.5 * CLIP * ALONG, CHEAT: 2 * CLIP * ALONG, **others}
    assert judged(updates, Needs.PAIRS, ALONG).failed == (CHEAT,)


def test_a_long_update_does_not_take_honest_ones_with_it() -> None:
    """It is too far from every honest site; each of these is too far from it alone."""
    others = {site: of_length(CLIP, -ALONG + 0.1 * OTHERS[site]) for site in HONEST}
    updates = {REQUESTER: np.zeros(20), CHEAT: 1.9 * CLIP * ALONG, **others}
    distances = [float(np.linalg.norm(updates[CHEAT] - updates[site])) for site in HONEST]
    assert min(distances) > 2 * CLIP
    assert judged(updates, Needs.PAIRS, ALONG).failed == (CHEAT,)


@pytest.mark.parametrize("opens", [Needs.DISTANCES, Needs.PAIRS, Needs.NORMS, Needs.INNER_PRODUCTS])
def test_clipped_updates_at_the_edge_stay(opens: Needs) -> None:
    """Two honest sites at opposite ends, one of them opposite to the requester."""
    edges = {"c1": CLIP * ALONG, "c2": -CLIP * ALONG, CHEAT: -CLIP * ALONG}
    updates = {REQUESTER: CLIP * ALONG, **OTHERS, **edges}
    assert judged(updates, opens, ALONG, byzantine=0).failed == ()


def test_what_distances_leave_open() -> None:
    """Claimed as a limit: up to C + 2 ||g_0|| in the requester's direction, which only it knows beforehand."""
    for factor, failed in ((1.8 - 1e-6, ()), (1.8 + 1e-4, (CHEAT,))):
        updates = {REQUESTER: 0.4 * CLIP * ALONG, CHEAT: factor * CLIP * ALONG, **OTHERS}
        assert judged(updates, Needs.DISTANCES, ALONG).failed == failed


@pytest.mark.parametrize("liars", [2, 3, 4])
def test_more_liars_than_the_rule_stands_skip_the_round_and_blame_no_server(liars: int) -> None:
    """Every honest site is then too far from more than f others, the requester too: nobody is left to choose from."""
    others = {site: OTHERS[site] if place >= liars else -5 * CLIP * ALONG for place, site in enumerate(HONEST)}
    updates = {REQUESTER: 0.9 * CLIP * ALONG, CHEAT: -5 * CLIP * ALONG, **others}
    opened = [OpenedSite(REQUESTER, True)]
    for place, site in enumerate(JUDGED[1:], start=1):
        near = tuple((other, float(np.linalg.norm(updates[site] - updates[other]))) for other in JUDGED[:place])
        opened.append(OpenedSite(site, True, pairs=near))
    spec = RuleSpec(name=RuleName.MULTI_KRUM, byzantine=1, selected=3)
    rule = rule_for(spec, batch_size=32, grid=GRID)
    by = RoundRule(spec, rule, rule.init(()), PARAMETERS)
    facts = RequesterFacts(REQUESTER, 0.9 * CLIP)
    judgement = judge(opened, facts, dict.fromkeys(JUDGED, GRID), by, round=1, opens=Needs.PAIRS)
    assert not judgement.releases(PARAMETERS.least_contributors)
    assert judgement.not_selected == ()
