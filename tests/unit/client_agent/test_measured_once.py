"""What sites say to measurements without a sum, of pairs of updates, once per model. The attacks are ``measured-...``.

Sites are the agents' own code with the default policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.adversaries.scripted_agents import GRID, ROSTER, SITES, START, Federation, Round
from harness.adversaries.scripted_agents import study as scripted_study
from protocol.errors import ProtocolViolation
from protocol.messages.control import Purpose, RuleName, RuleSpec, Study
from protocol.parameters import Needs
from protocol.policy.memory import remember_skip
from protocol.rounds.evidence import check_release
from tests.unit.parties import announcement
from tests.unit.servers.test_one_end_a_round import FIVE

MALLOWS = RuleSpec(name=RuleName.MALLOWS)
OF = scripted_study("measured", rule=MALLOWS)
FOUR = SITES[:4]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as federation:
        yield federation


def measure(sites: Federation, number: int, version: int = 0, of: Study = OF, **changes: Any) -> Round:
    """A measurement of everybody; nothing is released."""
    asked = {"listed": SITES, "end": None} | changes
    return sites.round(of, number, version=version, purpose=Purpose.MEASURE, **asked)


def all_refuse(made: Round, clause: str) -> None:
    assert set(made.refused) == set(made.decisions)
    assert {reason.split(":")[0] for reason in made.refused.values()} == {clause}
    assert not made.sum.any(), "nothing is encoded"


MEASURES: dict[str, Any] = {"opens": Needs.PAIRS, "purpose": Purpose.MEASURE, "model_version": 0, "listed": FIVE[1:]}


def test_an_honest_one_is_taken_part_in(sites: Federation) -> None:
    assert measure(sites, 1).refused == {}


def test_a_weight_of_the_requester_is_refused(sites: Federation) -> None:
    all_refuse(measure(sites, 1, own=GRID // 2), "grid")


def test_a_second_one_of_a_model_is_refused_whoever_is_listed_and_however_the_first_ended(sites: Federation) -> None:
    assert measure(sites, 1).refused == {}
    all_refuse(measure(sites, 2), "measured_twice")
    all_refuse(measure(sites, 3, listed=FOUR), "measured_twice")
    for site in SITES:
        sites.restart(site)
    all_refuse(measure(sites, 4), "measured_twice")


def test_one_that_both_servers_skipped_may_come_again(sites: Federation) -> None:
    measure(sites, 1)
    for site in SITES:
        agent = sites.agent(site, OF)
        agent.save(memory=remember_skip(agent.state.memory, 1))
    assert measure(sites, 2).refused == {}


def test_another_model_may_be_measured_but_none_that_is_not_the_sites_own(sites: Federation) -> None:
    """A crafted model would show single examples in the distances of the updates that it leads to."""
    crafted = np.full_like(START, 7)
    for reason in measure(sites, 1, model=crafted).refused.values():
        assert "this site's model 0 is not the requester's" in reason
    all_refuse(measure(sites, 2, version=1, model=crafted), "model_behind")
    for site in SITES:
        sites.serve(OF, site, START / 2, 1)
    assert measure(sites, 3, version=1, model=START / 2).refused == {}


def test_a_rule_that_measures_nothing_apart_has_none(sites: Federation) -> None:
    for reason in measure(sites, 1, of=scripted_study("averages")).refused.values():
        assert "measures updates and sums nothing, which this study does not" in reason


def test_a_sum_opens_no_pairs_and_a_measurement_nothing_else(sites: Federation) -> None:
    """Pairs of weighted updates beside those of unweighted ones would tell products of updates."""
    all_refuse(sites.round(OF, 1, SITES, version=0, opens=Needs.PAIRS), "measured_for_nothing")
    assert sites.round(OF, 2, SITES, version=0, opens=Needs.NORMS).refused == {}
    with pytest.raises(ValueError, match="a measurement opens pairs"):
        announcement(OF.digest(), **(MEASURES | {"opens": Needs.DISTANCES}))


def test_it_leaves_every_other_memory_as_it_was(sites: Federation) -> None:
    assert sites.round(OF, 1, SITES, version=0, numerators={"c1": GRID - 9}).refused == {}
    for site in SITES:
        sites.serve(OF, site, START / 2, 1)
    before = {site: sites.agent(site, OF).state.memory for site in SITES}
    sums = {site: sites.agent(site, OF).context.sums.rounds() for site in SITES}
    assert measure(sites, 2, version=1, model=START / 2).refused == {}
    for site in SITES:
        after = sites.agent(site, OF).state.memory
        kept = ("last_listed", "summed_list", "summed_requester", "unsettled", "left_out")
        assert {field: getattr(after, field) for field in kept} == {
            field: getattr(before[site], field) for field in kept
        }
        assert (after.measured_rounds, after.apart) == ((), 2)
        assert sites.agent(site, OF).context.sums.rounds() == sums[site]


def test_its_evidence_is_that_of_no_release(sites: Federation) -> None:
    """The requester signs a release set for it, and sends it to sites as one of a sum."""
    made = measure(sites, 1)
    with pytest.raises(ProtocolViolation, match="its vectors are never summed"):
        check_release(made.past, ROSTER, OF.digest())
    with pytest.raises(ProtocolViolation, match="its vectors are never summed"):
        sites.agent("c1", OF).take_release(made.past)
