"""A requester, alone, takes sums whose difference is one site's update. Sites refuse, whatever the sums are called.

The seven sites are the agents' own code with the default policy; what a version holds, and whether a site takes a
checkpoint, is granted to the requester here, so that nothing but the memory of sums stands in its way.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.adversaries.scripted.requester import (
    DIMENSION,
    PARTIES,
    REQUESTER,
    SITES,
    START,
    Federation,
    Round,
    study,
)
from protocol.wire.authentic import sign
from protocol.wire.messages import RoundState, RoundView

FOUR = SITES[:4]
WITHOUT_1 = SITES[1:4]
OTHERS = SITES[4:]
FINISHED = 4e-5
"""Five times the relative error of a difference of two sums: seven roundings of 60 values, sqrt(70) units in 2^20."""


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as federation:
        yield federation


def refused_for_isolation(made: Round, *asked: str) -> None:
    """Everybody who was asked keeps its update, and says why."""
    assert set(made.refused) == set(asked)
    for reason in made.refused.values():
        assert reason.startswith("isolation: ")


def error_of_the_difference(federation: Federation, first: Round, second: Round, model: np.ndarray = START) -> float:
    truth = federation.learners["c1"].gradient(model)
    return float(np.linalg.norm(first.sum - second.sum - truth) / np.linalg.norm(truth))


def test_the_old_model_again_under_a_newer_number(sites: Federation) -> None:
    """Version 0 over all four; two honest rounds with the others; "version 2" is version 0 again, over three."""
    of = study()
    first = sites.round(of, 1, FOUR, version=0)
    assert first.refused == {}
    for number in (2, 3):
        for site in OTHERS:
            sites.serve(of, site, START * (1 + number / 10), number - 2)
        assert sites.round(of, number, OTHERS, version=number - 2, model=START * (1 + number / 10)).refused == {}
    for site in WITHOUT_1:
        sites.serve(of, site, START, 2)
    second = sites.round(of, 4, WITHOUT_1, version=2)
    if not second.refused:
        assert error_of_the_difference(sites, first, second) < FINISHED
    refused_for_isolation(second, *WITHOUT_1)
    assert not second.sum.any()
    assert not list(sites.state_dir("c2").rglob("rounds/000004/encoded*"))


def test_a_step_too_small_to_move_the_model(sites: Federation) -> None:
    """Rate 1e-6: the next version is derived honestly and is the last one but for the sixth digit."""
    of = study()
    first = sites.round(of, 1, FOUR, version=0)
    nearly = (START * (1 + 1e-6)).astype(np.float32)
    for site in WITHOUT_1:
        sites.serve(of, site, nearly, 1)
    second = sites.round(of, 2, WITHOUT_1, version=1, model=nearly)
    if not second.refused:
        assert error_of_the_difference(sites, first, second) < 1e-5
    refused_for_isolation(second, *WITHOUT_1)


def test_cancelled_and_created_again(sites: Federation) -> None:
    """The first study ends while its sum's outcome is unknown to the sites; the second one starts afresh."""
    first = sites.round(study("first"), 1, FOUR, version=0, end=None)
    second = sites.round(study("second"), 1, WITHOUT_1, version=0)
    if not second.refused:
        assert error_of_the_difference(sites, first, second) < FINISHED
    refused_for_isolation(second, *WITHOUT_1)


def test_a_second_study_over_the_same_data_side_by_side(sites: Federation) -> None:
    for number, site in enumerate(("first", "second"), 1):
        made = sites.round(study(site), 1, FOUR, version=0, least=4)
        assert made.refused == {}, number
    refused_for_isolation(sites.round(study("second"), 2, WITHOUT_1, version=1), *WITHOUT_1)


def test_the_same_list_admits_that_one_site_is_dropped(sites: Federation) -> None:
    """Four are listed again, but three would do: whoever is then left out is shown by the difference."""
    of = study()
    assert sites.round(of, 1, FOUR, version=0).refused == {}
    refused_for_isolation(sites.round(of, 2, FOUR, version=1, least=3, end=RoundState.SKIPPED), *FOUR)
    assert sites.round(study("third"), 1, FOUR, version=0, least=4).refused == {}


def test_weights_do_the_same_as_sets(sites: Federation) -> None:
    of = study()
    assert sites.round(of, 1, FOUR, version=0).refused == {}
    lighter = sites.round(of, 2, FOUR, version=1, least=4, numerators={"c1": 24})
    refused_for_isolation(lighter, *FOUR)


def test_many_lists_over_a_slowly_moving_model(sites: Federation) -> None:
    """Weight Erosion's own lists: each hides every site, all together would show them; the sites stop before that."""
    of = study()
    refused: dict[str, str] = {}
    rng = np.random.default_rng(4)
    lists = dict.fromkeys(FOUR, 32)
    for number in range(1, 12):
        model = (START * (1 + 0.02 * number)).astype(np.float32)
        for site in FOUR:
            sites.serve(of, site, model, number - 1)
        lists = {site: numerator - int(rng.integers(0, 3)) for site, numerator in lists.items()}
        made = sites.round(of, number, FOUR, version=number - 1, model=model, least=4, numerators=lists)
        refused = made.refused
        if refused:
            break
    assert 1 < number < 6
    assert all(reason.startswith("isolation") for reason in refused.values())


def test_a_restarted_agent_remembers(sites: Federation) -> None:
    sites.round(study("first"), 1, FOUR, version=0)
    for site in FOUR:
        sites.restart(site)
        shutil.rmtree(sites.state_dir(site) / "studies")
    refused_for_isolation(sites.round(study("second"), 1, WITHOUT_1, version=0), *WITHOUT_1)


def test_a_joiner_knows_the_last_sum(sites: Federation) -> None:
    """It was in none, but the requester must hand it the last release with the list: five less four is its update."""
    of = study()
    first = sites.round(of, 1, FOUR, version=0)
    joined = (*FOUR, "c5")
    for site in joined:
        sites.serve(of, site, START, 1)
    second = sites.round(of, 2, joined, version=1, least=5, previous=first.past)
    refused_for_isolation(second, *joined)
    assert sites.round(study("unrelated"), 1, ("c5", "c6", "c7"), version=0).refused == {}


def test_other_sites_are_not_kept_from_anything(sites: Federation) -> None:
    """What is refused is the difference, not the sites: three who were in no sum are summed, and these four again."""
    assert sites.round(study("first"), 1, FOUR, version=0).refused == {}
    assert sites.round(study("second"), 1, OTHERS, version=0).refused == {}
    far = np.random.default_rng(5).normal(size=DIMENSION).astype(np.float32) * 8
    of = study("far")
    for site in FOUR:
        sites.serve(of, site, far, 0)
    assert sites.round(of, 1, FOUR, version=0, model=far, least=4).refused == {}


def test_a_refused_list_does_not_blind_a_site(sites: Federation) -> None:
    """Everybody had to be in a list that a site refuses: nothing can be opened then, and the sums before still count.

    The requester leaves that round open, so that no skip is ever signed, and asks for another sum.
    """
    first = sites.round(study("first"), 1, FOUR, version=0)
    refused_for_isolation(sites.round(study("second"), 1, WITHOUT_1, version=0, end=None), *WITHOUT_1)
    third = sites.round(study("third"), 1, WITHOUT_1, version=0)
    if not third.refused:
        assert error_of_the_difference(sites, first, third) < FINISHED
    refused_for_isolation(third, *WITHOUT_1)


def test_another_release_set_than_the_servers_added(sites: Federation) -> None:
    """The requester signs two: the servers get {1, 2, 3, 4}, and sites that did not see the end hear of {2, 3, 4}."""
    of = study()
    first = sites.round(of, 1, FOUR, version=0, end=None)
    told = first.past.release_set.message.model_copy(update={"sites": (REQUESTER, *WITHOUT_1)})
    forged = first.past.model_copy(update={"release_set": sign(told, REQUESTER, PARTIES.keys_of(REQUESTER).signing)})
    for site in WITHOUT_1:
        sites.serve(of, site, START, 1)
    second = sites.round(of, 2, WITHOUT_1, version=1, previous=forged)
    if not second.refused:
        assert error_of_the_difference(sites, first, second) < FINISHED
    refused_for_isolation(second, *WITHOUT_1)


def test_one_server_shows_another_release_set_than_the_other(sites: Federation) -> None:
    """A server on the requester's side shows sites that refused a round a sum that was not opened."""
    of = study()
    first = sites.round(of, 1, FOUR, version=0, end=None)
    told = first.past.release_set.message.model_copy(update={"sites": (REQUESTER, *WITHOUT_1)})
    signed = sign(told, REQUESTER, PARTIES.keys_of(REQUESTER).signing)
    agent, decision = sites.agent("c2", of), first.decisions["c2"]
    true = RoundView(
        round=1,
        attempt=1,
        state=RoundState.RELEASED,
        announcement=sign(first.past.announcement, REQUESTER, PARTIES.keys_of(REQUESTER).signing),
        agreed_set=first.past.agreed_set,
        release_set=first.past.release_set,
    )
    name = (of.digest(), 1)
    agent._settle_unseen(decision, true.model_copy(update={"release_set": signed}), true)
    assert not agent.context.sums.settled(name)
    agent._settle_unseen(decision, true, true)
    assert agent.context.sums.settled(name)
