"""kill -9 at every durable step of servers, contributors and requester (docs/protocol.md 4, 7, 9).

Nothing that was acknowledged is lost, no correlation serves two sketches, no contribution is measured or released twice
(all from the stores' own tables), and the final model has the bits of the undisturbed run; ``crash_modes.py`` says what
else each mode requires. The deaths of servers, of what they store in, and in rounds with tags are here, the others in
``test_crashes_of_sites.py``, so that test workers share them: a module starts the processes of each kind once.
"""

from __future__ import annotations

import time

import pytest

from client_agent.site import failpoints as agent_points
from client_agent.site.events import RoundEnd
from servers import failpoints as server_points
from tests.integration import test_ckks_study
from tests.integration.crash_cases import (
    CASES,
    IN_POSTGRESQL,
    QUICK,
    SERVER_A,
    SERVER_B,
    TAGGED,
    TAGGED_SERVERS,
    WHILE_A_ROUND_ENDS,
    WRONG,
    is_quick,
    parametrised,
)
from tests.integration.crash_modes import MODES, CrashProcesses
from tests.integration.crashes import (
    POSTGRESQL,
    ROUNDS,
    SITES,
    SQLITE,
    A,
    B,
    Case,
    End,
    audit,
    ended,
    light_study_of,
    over,
    run_killing,
)


def test_quick_cases_are_cases() -> None:
    assert sum(map(is_quick, CASES)) == len(QUICK)


def test_every_point_is_in_a_case() -> None:
    """A failpoint that no case kills at would not be worth its line."""
    kills = {(kill.party, kill.point) for case in CASES for kill in case.kills}
    encrypted = {(kill.party, kill.point) for kill in (*test_ckks_study.QUICK, *test_ckks_study.MORE)}
    servers = {point for party, point in kills | encrypted if party in (A, B)}
    assert servers == {point.value for point in server_points.Point} - {server_points.Point.DISK_FULL}
    sites = {point for party, point in kills if party in SITES}
    assert sites == {point.value for point in agent_points.Point}


def test_a_full_disk_only_delays_the_study(crash_processes: CrashProcesses) -> None:
    """A share meets a full disk at B: refused with 507 and nothing stored; the site sends the same bytes again."""
    of = crash_processes.of("plain", SQLITE)
    federation, reference = of.federation, of.run(large=False)
    federation.kill(B)
    federation.start_party(B, "disk_full:2")
    study = light_study_of(federation, "disk-full")
    outcome = run_killing(federation, study)
    audit(federation, study)
    assert ended(outcome) is End.REPLAYED
    assert outcome.models == reference.models
    refused = [
        line for line in (federation.folder / B / "process.log").read_text().splitlines() if "storage_full" in line
    ]
    assert len(refused) == 1
    assert "nothing was stored" in refused[0]
    federation.kill(B)
    federation.start_party(B)


@parametrised(
    (*SERVER_A, *SERVER_B, *WHILE_A_ROUND_ENDS, *TAGGED, *WRONG, *TAGGED_SERVERS, *IN_POSTGRESQL)  # by their processes
)
def test_kill_at(crash_processes: CrashProcesses, case: Case) -> None:
    MODES[case.mode].run(crash_processes.of(case.mode, case.storage), case)


@pytest.mark.soak
@pytest.mark.parametrize("accident", ["dies", "breaks connections"])
def test_the_database_has_an_accident(crash_processes: CrashProcesses, accident: str) -> None:
    """Nothing that was stored is lost, what was not is sent again."""
    undisturbed = crash_processes.of("plain", POSTGRESQL)
    federation, cluster = undisturbed.federation, crash_processes.cluster
    assert cluster is not None
    study = light_study_of(federation, f"database-{accident.replace(' ', '-')}")
    federation.hand_in(study)
    for _ in range(3):
        time.sleep(0.7)
        if accident == "dies":
            cluster.stop()
            cluster.start()
        else:
            for url in federation.databases.values():
                cluster.break_connections(url)
    outcome = over(federation, study)
    assert [record.round for record in outcome.records] == list(range(1, ROUNDS + 1))
    released = sum(record.state is RoundEnd.RELEASED for record in outcome.records)
    assert set(outcome.models) == {undisturbed.model_after(released, large=False)}
