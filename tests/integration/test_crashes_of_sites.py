"""kill -9 of sites, and in what single rules, rankings, summaries, noise and absent sites add to a round.

As in ``test_crashes.py``. While one site declines and one has left, no round waits for its deadline.
"""

from __future__ import annotations

from tests.integration.agents import wait_for
from tests.integration.crash_cases import (
    ABSENT,
    AS_REQUESTER,
    CONTRIBUTOR,
    COUNTS,
    EVERY_SITE,
    FINISH,
    MEASURING,
    PRIVACY,
    RANKING,
    SHRINKAGE,
    SUMMARY,
    UPLOADS,
    parametrised,
)
from tests.integration.crash_modes import DECLINES, MODES, WITHIN_S, CrashProcesses, begin_with_absent, require_no_wait
from tests.integration.crashes import REQUESTER, SQLITE, B, Case

_OF_SITES = (*EVERY_SITE, *UPLOADS, *CONTRIBUTOR, *AS_REQUESTER)
_IN_RULES = (*COUNTS, *FINISH, *MEASURING, *SHRINKAGE, *RANKING)


@parametrised((*_OF_SITES, *_IN_RULES, *PRIVACY, *SUMMARY, *ABSENT))
def test_kill_at(crash_processes: CrashProcesses, case: Case) -> None:
    MODES[case.mode].run(crash_processes.of(case.mode, case.storage), case)


def test_four_are_killed_at_once(crash_processes: CrashProcesses) -> None:
    """Once c4 has declined: B, two contributors and the requester. Without c1 the round cannot go on before."""
    federation = crash_processes.of("absent", SQLITE).federation
    begin_with_absent(federation, "four-at-once")
    federation.kill("c1")
    federation.start_party(REQUESTER)
    declined = federation.journal(DECLINES, "four-at-once").folder / "rounds" / "000002" / "decline.sealed"
    wait_for("the decline", declined.exists, WITHIN_S, federation.tails)
    killed = (B, "c2", REQUESTER)
    for party in killed:
        federation.kill(party)
    for party in (*killed, "c1"):
        federation.start_party(party)
    require_no_wait(federation, "four-at-once")
