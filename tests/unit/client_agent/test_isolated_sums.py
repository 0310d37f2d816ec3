"""A site declines for isolation, and only for that. The attacks themselves are ``agents-...``.

The seven sites are the agents' own code with the default policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.events import RoundEnd
from client_agent.study.isolation import note_sum
from harness.attack.scripted_agents import SITES, START, Federation, Round, study
from protocol.errors import AggregateOutOfBounds
from protocol.messages.control import RoundState, Study
from protocol.policy.memory import remember_skip
from protocol.rounds.evidence import PastRelease

FOUR = SITES[:4]
ABOVE, BELOW, ACROSS = SITES[:3], SITES[3:6], SITES[1:6]
"""The third less the second less the first is the first site's update, with its sign turned."""
WITHOUT_1 = SITES[1:4]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as federation:
        yield federation


def refused_for_isolation(made: Round, *asked: str) -> None:
    """Everybody who was asked keeps its update, and says why."""
    assert set(made.refused) == set(asked)
    for reason in made.refused.values():
        assert reason.startswith("isolation: ")


def test_everybody_who_is_asked_says_why_and_encodes_nothing(sites: Federation) -> None:
    of = study()
    assert sites.round(of, 1, FOUR, version=0).refused == {}
    second = sites.round(study("second"), 1, WITHOUT_1, version=0)
    refused_for_isolation(second, *WITHOUT_1)
    assert not second.sum.any()
    assert not list(sites.state_dir("c2").rglob("studies/second/rounds/000001/encoded*"))


def test_the_same_list_admits_that_one_site_is_dropped(sites: Federation) -> None:
    """Four are listed again, but three would do: whoever is then left out is shown by the difference."""
    of = study()
    assert sites.round(of, 1, FOUR, version=0).refused == {}
    refused_for_isolation(sites.round(of, 2, FOUR, version=1, least=3, end=RoundState.SKIPPED), *FOUR)
    assert sites.round(study("third"), 1, FOUR, version=0, least=4).refused == {}


# --- sums of one study that no site sees together ---


def serve(sites: Federation, of: Study, version: int) -> None:
    """As if everybody had taken the checkpoint; the model stays where it is, and so do the updates."""
    for site in SITES:
        sites.serve(of, site, START, version)


def discarded(sites: Federation, of: Study, number: int, listed: tuple[str, ...], version: int) -> Round:
    """A sum that is opened and steps no model: the requester's own update made it longer than any can be."""
    made = sites.round(of, number, listed, version=version, end=None)
    assert made.refused == {}

    def beyond(_: PastRelease) -> np.ndarray:
        raise AggregateOutOfBounds("longer than everybody's clip norm allows")

    for site in listed:
        agent = sites.agent(site, of)
        agent.average = beyond  # type: ignore[method-assign, assignment]
        assert agent.take_release(made.past) is RoundEnd.DISCARDED
    return made


def test_discarded_sums_that_are_asked_again_make_no_site_less_blind(sites: Federation) -> None:
    """Every site counts two settled sums before the third list, on version 2; two more were opened behind its back."""
    of = study()
    discarded(sites, of, 1, ABOVE, 0)
    assert sites.round(of, 2, ABOVE, version=0).refused == {}
    serve(sites, of, 1)
    discarded(sites, of, 3, BELOW, 1)
    assert sites.round(of, 4, BELOW, version=1).refused == {}
    serve(sites, of, 2)
    refused_for_isolation(sites.round(of, 5, ACROSS, version=2, least=5), *ACROSS)


def test_a_round_that_only_the_requester_calls_released_makes_no_site_less_blind(sites: Federation) -> None:
    """Round 2 was locked and skipped by both servers, and is told with a release set; round 3 is not told at all."""
    of = study()
    assert sites.round(of, 1, ABOVE, version=0).refused == {}
    serve(sites, of, 1)
    never = sites.round(of, 2, SITES[4:], version=1, end=RoundState.SKIPPED)
    for site in SITES[4:]:
        agent = sites.agent(site, of)
        agent.save(memory=remember_skip(agent.state.memory, 2))
    assert sites.round(of, 3, BELOW, version=1).refused == {}
    serve(sites, of, 2)
    made = sites.round(of, 4, ACROSS, version=2, least=5, previous=never.past)
    refused_for_isolation(made, *ACROSS)


def test_a_study_goes_on_over_other_sites_where_everybody_knows_of_every_round(sites: Federation) -> None:
    """Rounds 1, which was discarded, and 2 are told where they were missed; round 3 was skipped by both servers."""
    of = study()
    first = discarded(sites, of, 1, ABOVE, 0)
    second = sites.round(of, 2, ABOVE, version=0)
    for site in BELOW:
        note_sum(sites.agent(site, of), first.past)
    sites._skip(of, 3, SITES)
    serve(sites, of, 1)
    assert sites.round(of, 4, ACROSS, version=1, least=5, previous=second.past).refused == {}
