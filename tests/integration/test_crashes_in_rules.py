"""kill -9 in what single rules, rankings, summaries and noise add to a round (``test_crashes.py``)."""

from __future__ import annotations

from tests.integration.crash_cases import COUNTS, FINISH, MEASURING, PRIVACY, RANKING, SHRINKAGE, SUMMARY, parametrised
from tests.integration.crash_modes import MODES, CrashProcesses
from tests.integration.crashes import Case


@parametrised((*COUNTS, *FINISH, *MEASURING, *SHRINKAGE, *RANKING, *PRIVACY, *SUMMARY))
def test_kill_at(crash_processes: CrashProcesses, case: Case) -> None:
    MODES[case.mode].run(crash_processes.of(case.mode, case.storage), case)
