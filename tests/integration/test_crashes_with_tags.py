"""kill -9 at the steps that tags add, of the requester, a contributor and each server (``test_crashes.py``)."""

from __future__ import annotations

from tests.integration.crash_cases import TAGGED, TAGGED_SERVERS, WRONG, parametrised
from tests.integration.crash_modes import MODES, CrashProcesses
from tests.integration.crashes import Case


@parametrised((*TAGGED, *WRONG, *TAGGED_SERVERS))
def test_kill_at(crash_processes: CrashProcesses, case: Case) -> None:
    MODES[case.mode].run(crash_processes.of(case.mode, case.storage), case)
