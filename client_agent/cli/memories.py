"""``moiety budget``, and ``moiety agent accept-rollback``: privacy budget and memory of sums (docs/joining.md)."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from client_agent.cli.tables import add_row, console, table
from client_agent.settings import AgentSettings
from client_agent.site.budget.report import budget_report
from client_agent.site.budget.spent_budget import budget_memory
from client_agent.site.connections import Site, one_agent
from client_agent.site.reconciling import lost_rounds
from client_agent.site.remembered_sums import sum_memory
from host.randomness import SystemRandomness
from host.settings import require_begun

_NONE: Final = "no budget: epsilon is not set in [policy], so noise is counted and nothing is refused for it"
_UNCOVERED: Final = (
    "This site's updates were shared in these rounds, and no count covers them: without noise, or their count was "
    "lost. The budget then says nothing about them; it begins after them. Restoring the newest backup of the state "
    "folder avoids that where they were counted; this command cannot be undone."
)


def show_budget(settings: AgentSettings, came_with: str, *, json_output: bool) -> None:
    """A table, or JSON; the agent may run meanwhile. Raises: ConfigurationError, when there is no state folder"""
    require_begun("state_dir", settings.state_dir, "'moiety agent run'")
    report = budget_report(budget_memory(settings.state_dir, came_with), settings.policy)
    if json_output:
        sys.stdout.write(report.model_dump_json() + "\n")
        return
    rows = table("study", "trainings", "epsilon alone", title="privacy budget", caption=report.accountant)
    for one in report.studies:
        add_row(rows, one.study, str(one.trainings), f"{one.epsilon:.3f}")
    console().print(rows)
    of = _NONE if report.used is None else f"{report.used:.1%} of a budget of {report.epsilon:g} is used"
    sys.stdout.write(f"all together: epsilon {report.spent:.3f} at delta {report.delta:g}, per record; {of}\n")
    if report.uncovered_rounds:
        sys.stdout.write(f"{report.uncovered_rounds} rounds before are covered by no count\n")


def begin_budget(settings: AgentSettings, *, yes: bool) -> None:
    """Show the rounds that servers have this site's receipts for and no count covers; with ``yes``, begin after them.

    Raises: ConfigurationError while the agent runs; Unavailable while a server is away
    """
    with one_agent(settings), Site(settings) as site:
        budget = budget_memory(settings.state_dir, site.came_with)
        lost = lost_rounds(budget, site.clients, site.roster, settings.site)
        if not lost:
            sys.stdout.write("nothing is uncovered: the count knows every round that the servers have receipts for\n")
            return
        for found in lost:
            sys.stdout.write(f"{found.study} round {found.round}\n")
        sys.stdout.write(_UNCOVERED + "\n")
        if yes:
            budget.begin_after([(found.study_digest, found.round) for found in lost])
            sys.stdout.write(f"the budget begins after these {len(lost)} rounds; this site contributes again\n")
        else:
            sys.stdout.write("nothing was changed; to begin after them, run this again with --yes\n")


_FORGOTTEN: Final = (
    "Sums over this site's updates were opened in these rounds, and nothing here remembers their weights. Later sums "
    "over the same data may complete them: together they can show single updates of this site, and no check of this "
    "site will notice. Restoring the newest backup of the state folder avoids that; this command cannot be undone."
)


def forget_memory(settings: AgentSettings, *, yes: bool) -> None:
    """Show the rounds that servers have this site's receipts for and its memory lacks; with ``yes``, go on without.

    Raises: ConfigurationError while the agent runs; Unavailable while a server is away
    """
    with one_agent(settings), Site(settings) as site:
        draw = partial(SystemRandomness().bytes, 32, "sketch")
        sums = sum_memory(settings.state_dir, site.came_with, draw)
        lost = lost_rounds(sums, site.clients, site.roster, settings.site)
        if not lost:
            sys.stdout.write("nothing is lost: the memory knows every round that the servers have receipts for\n")
            return
        for found in lost:
            sys.stdout.write(f"{found.study} round {found.round}\n")
        sys.stdout.write(_FORGOTTEN + "\n")
        if yes:
            sums.forget([(found.study_digest, found.round) for found in lost])
            sys.stdout.write(f"{len(lost)} rounds are forgotten; this site contributes again\n")
        else:
            sys.stdout.write("nothing was changed; to go on without them, run this again with --yes\n")
