"""kill -9 of the requester and of contributors in rounds of any rule (``test_crashes.py``)."""

from __future__ import annotations

from tests.integration.crash_cases import AS_REQUESTER, CONTRIBUTOR, EVERY_SITE, UPLOADS, parametrised
from tests.integration.crash_modes import MODES, CrashProcesses
from tests.integration.crashes import Case


@parametrised((*EVERY_SITE, *UPLOADS, *CONTRIBUTOR, *AS_REQUESTER))
def test_kill_at(crash_processes: CrashProcesses, case: Case) -> None:
    MODES[case.mode].run(crash_processes.of(case.mode, case.storage), case)
