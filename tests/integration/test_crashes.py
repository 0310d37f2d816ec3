"""kill -9 at every durable step of servers, contributors and requester (docs/protocol.md 4, 7, 9).

Nothing that was acknowledged is lost, no correlation serves two sketches, no contribution is measured or released twice
(all from the stores' own tables), and the final model has the bits of the undisturbed run; ``crash_modes.py`` says what
else each mode requires. The servers' deaths are here; ``test_crashes_of_sites.py``, ``_in_rules.py``, ``_with_tags.py``
and ``_while_absent.py`` have the others, so that test workers share them.
"""

from __future__ import annotations

from client_agent.site import failpoints as agent_points
from servers import failpoints as server_points
from tests.integration import test_ckks_study
from tests.integration.crash_cases import (
    CASES,
    IN_POSTGRESQL,
    QUICK,
    SERVER_A,
    SERVER_B,
    WHILE_A_ROUND_ENDS,
    is_quick,
    parametrised,
)
from tests.integration.crash_modes import MODES, CrashProcesses
from tests.integration.crashes import SITES, A, B, Case


@parametrised((*SERVER_A, *SERVER_B, *WHILE_A_ROUND_ENDS, *IN_POSTGRESQL))
def test_kill_at(crash_processes: CrashProcesses, case: Case) -> None:
    MODES[case.mode].run(crash_processes.of(case.mode, case.storage), case)


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
