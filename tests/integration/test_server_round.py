"""Whole rounds over two servers in memory: the opened sum and distances are exact, and rounds without a sum end."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.signed_client import there
from host.randomness import server_randomness
from protocol.arithmetic.ring import Ring
from protocol.channel.sealing import sealed_small_length
from protocol.messages import paths
from protocol.messages.control import (
    OutcomeCause,
    PauseCause,
    PauseNotice,
    RoundOutcome,
    RoundState,
    RoundView,
    StudyState,
    require_signatures,
)
from protocol.messages.letter import NOTICE_BYTES
from protocol.mpc.measurement import distance_query
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import Needs
from protocol.sharing import Side
from tests.kit.present import present
from tests.kit.processes import Federation, servers_in_memory

SITES = ["hospital-0", "hospital-1", "hospital-2", "hospital-3"]
D = 20
GRID = 4
NUMERATORS = {"hospital-1": 4, "hospital-2": 3, "hospital-3": 1}


def updates(seed: int, sites: list[str] = SITES, dimension: int = D) -> dict[str, Ring]:
    """Encoded, weighted updates well inside the range."""
    rng = np.random.default_rng(seed)
    return {site: rng.integers(-(2**17), 2**17, dimension).astype(np.int64).view(np.uint64) for site in sites}


def exact_distances(x: dict[str, Ring], requester: str, numerators: dict[str, int], scale: float) -> dict[str, float]:
    """||x_i - round(w_i x_0)|| / scale / w_i, in integers up to the root."""
    own = [int(v) for v in x[requester].view(np.int64)]
    result = {}
    for site, numerator in numerators.items():
        asked = [(2 * numerator * v + GRID) // (2 * GRID) for v in own]
        squared = sum((int(a) - b) ** 2 for a, b in zip(x[site].view(np.int64), asked, strict=True))
        result[site] = squared**0.5 / scale / (numerator / GRID)
    return result


def run_round(sites: ScriptedRequester, number: int, x: dict[str, Ring], *, opens: Needs = Needs.DISTANCES) -> None:
    """One round to its release; what it opens is exact."""
    announcement = sites.announcement(number, opens=opens)
    sites.announce(announcement)
    sites.contribute_all(announcement, x)
    current = sites.measured(number, x[sites.requester], NUMERATORS)
    opened = sites.openings(current, NUMERATORS)
    assert all(site.in_range for site in opened.values())
    if opens is Needs.DISTANCES:
        found = {site: o.distance for site, o in opened.items() if o.distance is not None}
        expected = exact_distances(x, sites.requester, NUMERATORS, sites.study.parameters.scale)
        # Both are one square root and two divisions of the same integer: equal up to a few roundings of 2^-53.
        assert found == pytest.approx(expected, rel=1e-15)
    sites.release(current)
    sites.released(number)


def signed_outcome(sites: ScriptedRequester, view: RoundView) -> RoundOutcome:
    """The outcome, which both servers have signed."""
    roster = sites.federation.roster
    return require_signatures(present(view.outcome), roster, [roster.operator_a.name, roster.operator_b.name])


def expected_sum(x: dict[str, Ring]) -> Ring:
    return np.sum(list(x.values()), axis=0, dtype=np.uint64)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    limits = {"pause_after_skips": 2}
    with servers_in_memory(tmp_path_factory.mktemp("federation"), SITES, limits=limits) as running:
        yield running


@pytest.fixture
def sites(federation: Federation, request: pytest.FixtureRequest) -> Iterator[ScriptedRequester]:
    """A study of its own for every test."""
    name = request.node.name.replace("_", "-")[:60].rstrip("-")
    made = ScriptedRequester(federation, make_study(federation, D, name=name))
    made.create()
    made.ready()
    yield made
    made.end()
    made.close()


def test_rounds_release_the_exact_sum(sites: ScriptedRequester) -> None:
    for number in (1, 2, 3, 4):
        x = updates(number)
        run_round(sites, number, x, opens=Needs.NOTHING if number == 3 else Needs.DISTANCES)
        for site in SITES:
            assert np.array_equal(sites.output(site, number), expected_sum(x))


def test_a_model_far_above_the_sketch_length(federation: Federation) -> None:
    """Bodies of several megabytes stream to disk; sketches, not the model, go through the products."""
    dimension = 300_000
    made = ScriptedRequester(federation, make_study(federation, dimension, name="large"))
    made.create()
    rng = np.random.default_rng(5)
    # Entries below 2^11 in size keep the norm, at most 2^11 sqrt(D) < 2^21, within what the range check lets pass.
    x = {site: rng.integers(-(2**11), 2**11, dimension).astype(np.int64).view(np.uint64) for site in SITES}
    announcement = made.announcement(1)
    made.announce(announcement)
    made.contribute_all(announcement, x)
    challenge = made.send_queries(made.wait_transcript(Side.A, 1), x[made.requester], NUMERATORS)
    for side in Side:
        current = made.wait_round(side, 1, RoundState.MEASURED)
    opened = made.openings(current, NUMERATORS)
    parameters = made.study.parameters
    own = sketch_vector(challenge, x[made.requester], parameters)
    for site, numerator in NUMERATORS.items():
        asked = distance_query(own, numerator, GRID)
        difference = (sketch_vector(challenge, x[site], parameters) - asked).view(np.int64)
        squared = sum(int(v) ** 2 for v in difference)
        expected = (squared / parameters.sketch_blocks) ** 0.5 / parameters.scale / (numerator / GRID)
        assert opened[site].distance == pytest.approx(expected, rel=1e-15)
    made.release(current)
    made.released(1)
    assert np.array_equal(made.output(SITES[1], 1), expected_sum(x))
    made.end()
    made.close()


def test_a_seeded_federation_draws_from_its_seed(tmp_path: Path) -> None:
    """The challenge's nonces depend on the seed, the party and the attempt, and on nothing else."""
    with servers_in_memory(tmp_path, SITES, seed=11) as running:
        made = ScriptedRequester(running, make_study(running, D))
        made.create()
        announcement = made.announcement(1)
        made.announce(announcement)
        made.contribute_all(announcement, updates(1))
        stated = there(made.wait_transcript(Side.A, 1).transcript, "transcript").message
        label = f"{made.study.digest()} round 1 attempt 1 challenge nonce"
        expected = [server_randomness(11, running.roster.operator(side).name).bytes(32, label).hex() for side in Side]
        assert [stated.nonce_a, stated.nonce_b] == expected
        made.close()


# --- rounds without a sum ---------------------------------------------------------------------------------------------


def state_at(sites: ScriptedRequester, side: Side) -> RoundState:
    shown = present(sites.view(side).current)
    return shown.state


def test_a_requester_that_stays_away_pauses_the_study(sites: ScriptedRequester) -> None:
    for number in (1, 2):
        announcement = sites.announcement(number, closes_in_s=2)
        sites.announce(announcement)
        sites.contribute_all(announcement, updates(number))
        for side in Side:
            outcome = signed_outcome(sites, sites.wait_round(side, number, RoundState.SKIPPED))
            assert outcome.cause is OutcomeCause.QUERIES_MISSING
    for side in Side:
        view = sites.view(side)
        assert view.state is StudyState.PAUSED
        assert view.pause == PauseNotice(cause=PauseCause.REQUESTER_AWAY, skips=2)
    run_round(sites, 3, updates(3))
    assert all(sites.view(side).state is StudyState.OPEN for side in Side)


def test_too_few_contributions_skip_the_round(sites: ScriptedRequester) -> None:
    announcement = sites.announcement(1, closes_in_s=2)
    sites.announce(announcement)
    sites.contribute_all(announcement, updates(1, SITES[:3]))
    for side in Side:
        outcome = signed_outcome(sites, sites.wait_round(side, 1, RoundState.SKIPPED))
        assert (outcome.cause, outcome.found, outcome.needed) == (OutcomeCause.TOO_FEW_CONTRIBUTORS, 2, 3)
    run_round(sites, 2, updates(2))


def test_a_round_that_too_few_take_part_in_ends_once_the_last_site_has_declined(sites: ScriptedRequester) -> None:
    """Long before its time; while one site is silent it goes on."""
    announcement = sites.announcement(1, closes_in_s=500)
    sites.announce(announcement)
    one, *others = sites.contributors
    sites.contribute(one, sites.seal_contribution(one, updates(1)[one], announcement), 1)
    letter = sites.path(paths.MAIL, topic="decline-1", recipient=sites.requester)
    for site in others:
        assert all(state_at(sites, side) is not RoundState.SKIPPED for side in Side)
        notice = secrets.token_bytes(sealed_small_length(NOTICE_BYTES))
        sites.clients[site].ok(Side.A, "PUT", letter, notice)
    for side in Side:
        outcome = signed_outcome(sites, sites.wait_round(side, 1, RoundState.SKIPPED))
        assert (outcome.cause, outcome.found, outcome.needed) == (OutcomeCause.TOO_FEW_CONTRIBUTORS, 1, 3)
    assert {f"decline-1/{site}" for site in others} <= set(sites.view(Side.A).mail)
    run_round(sites, 2, updates(2))
