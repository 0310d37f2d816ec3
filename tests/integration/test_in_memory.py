"""A whole federation in one process: what it decides is what processes decide, and its time is its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import stamina

from client_agent.settings import load_settings
from client_agent.site.events import RoundEnd
from client_agent.site.journal import StudyJournal
from harness.federation.clocks import Stop, VirtualClock
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import light_study, torch_learner
from host.audit_log import AUDIT, read_audit
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.integration.agents import (
    EROSION,
    FEDAVG,
    changed,
    final_model,
    finished,
    in_memory,
    rounds_of,
    run_to_end,
    spec,
    study_for,
)

pytestmark = pytest.mark.uncounted

SITES = ("requester", "c1", "c2", "c3")
ROUNDS = 2
MANY = 4
AWAY_S = 60.0


def audited(running: InMemoryFederation, site: str) -> list[tuple[str, int | None]]:
    return [(one.action.value, one.round) for one in read_audit(load_settings(running.config(site)).state_dir / AUDIT)]


def server_audited(running: InMemoryFederation, side: Side) -> list[tuple[str, int | None]]:
    folder = running.servers.apps[side].state.server.settings.data_dir
    return [(one.action.value, one.round) for one in read_audit(folder / AUDIT)]


def test_a_seed_fixes_what_sites_compute_whether_correlations_are_dealt_or_transferred(tmp_path: Path) -> None:
    """Trained with torch, off the fixed-point grid: rounding draws too."""
    ends = []
    same = spec(dict.fromkeys(SITES, SitePolicy()))  # with the same ports, which are in the study's bytes
    for real in (False, True):
        with InMemoryFederation(same, tmp_path / f"real-{real}", torch_learner, real_transfer=real) as running:
            running.start()
            records = run_to_end(running, study_for(running, "trial", EROSION, ROUNDS))
            models = {final_model(running, site, "trial") for site in SITES}
            said = audited(running, SITES[1])
            servers = [server_audited(running, side) for side in Side]
        ended = [("round", number + 1) for number in range(ROUNDS)]
        assert said == [("started", None), ("approved", None), *ended, ("study_ended", None)]
        assert servers == [[("started", None), ("study_registered", None), *ended, ("study_ended", None)]] * 2
        assert len(models) == 1
        assert [record.state for record in records] == [RoundEnd.RELEASED] * ROUNDS
        ends.append((models, [(r.took_part, r.weights, r.distances, r.alphas, r.isolation) for r in records]))
        assert all(record.distances for record in records)
    assert ends[0] == ends[1]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    with in_memory(tmp_path_factory.mktemp("memory")) as running:
        yield running


def begin(running: InMemoryFederation, name: str) -> float:
    """Hand in a study, and wait for its first round; return the time after it."""
    study = light_study(running.parties, name, FEDAVG, rounds=MANY)
    running.hand_in(changed(study, least_contributors=2, round_deadline_s=AWAY_S))
    running.until("the first round", lambda: len(rounds_of(running, "c3", name)) >= 1)
    return running.clock.monotonic()


def test_a_site_that_stays_away_costs_its_deadlines_on_their_clock_alone(federation: InMemoryFederation) -> None:
    with federation.agents():
        began = begin(federation, "away")
        federation.stop_agents("c3")
        federation.until("the end", finished(federation, "away", *SITES[:3]))
        assert federation.clock.monotonic() - began >= AWAY_S
    took_part = [record.took_part for record in rounds_of(federation, SITES[0], "away")]
    assert took_part[0] == SITES
    assert SITES[:3] in took_part


def test_a_site_that_declines_costs_no_deadline(federation: InMemoryFederation) -> None:
    with federation.agents():
        began = begin(federation, "paused")
        StudyJournal(federation.state("c3"), "paused").pause("scanner")
        federation.until("the end", finished(federation, "paused", *SITES))
        assert federation.clock.monotonic() - began < AWAY_S
    records = rounds_of(federation, SITES[0], "paused")
    assert records[-1].declined == ("c3",)
    assert {record.took_part for record in records} == {SITES, SITES[:3]}


def test_retries_end_by_their_clock_and_not_by_the_machines(federation: InMemoryFederation) -> None:
    tries: list[float] = []

    def ask() -> None:
        for attempt in stamina.retry_context(on=ValueError, attempts=6, timeout=30.0, wait_initial=0.1):
            with attempt:
                tries.append(federation.clock.monotonic())
                federation.clock.wait(threading.Event(), 20.0)
                raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        ask()
    assert len(tries) == 2


def test_time_stands_still_while_somebody_works() -> None:
    clock = VirtualClock()
    stop = Stop(clock)
    passed: list[float] = []
    thread = threading.Thread(target=lambda: passed.extend([clock.wait(stop, 5.0), clock.monotonic()]))
    thread.start()
    assert not clock.everybody_waits()  # this thread works
    with clock.outside():
        while not clock.everybody_waits():
            pass  # until the other one waits
    assert clock.monotonic() == 0.0
    assert clock.pass_time(None)
    thread.join()
    assert passed == [False, 5.0]


def test_who_sets_the_event_wakes_those_who_wait() -> None:
    clock = VirtualClock()
    stop = Stop(clock)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(clock.wait(stop, 1e9)))
    thread.start()
    stop.set()
    thread.join()
    assert woken == [True]
    assert clock.monotonic() == 0.0
