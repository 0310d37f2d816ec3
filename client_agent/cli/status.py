"""``moiety agent status`` and ``ledger``: how a site stands, and what left; as text or JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from client_agent.cli.tables import add_row, console, json_line, table
from client_agent.net.contacts import CLOCK_ERROR_S, Contact
from client_agent.net.ledger import by_purpose, read_ledger
from client_agent.settings import AgentSettings
from client_agent.site.privacy_budget import BudgetReport
from client_agent.study.status import STOPPED_FIX, SiteStanding, StudyStanding, standing
from host.settings import require_begun
from protocol.text import printable


def show_status(settings: AgentSettings, *, json_output: bool) -> None:
    """To standard output, from the state folder alone."""
    found = standing(settings)
    text = found.model_dump_json() if json_output else "\n".join(printable(line) for line in _lines(found))
    sys.stdout.write(text + "\n")


def _lines(found: SiteStanding) -> Iterator[str]:
    asks = ", which asks" if found.asks else ""
    yield f"site {found.site}{asks}, federation {found.federation}"
    runs = "not running: start it with 'moiety agent run'" if found.holder is None else f"runs: {found.holder}"
    yield f"agent {runs}"
    for one in found.servers:
        yield f"server {_contact(one)}"
    if found.budget is not None:
        yield from _budget(found.budget)
    if found.problem is not None:
        yield f"problem since {_at(found.problem.since_s)}: {found.problem.text}"
    for sent in found.undelivered:
        since = "" if sent.failing_since_s is None else f" since {_at(sent.failing_since_s)}"
        yield f"notice of study {sent.study} by {sent.way} not delivered{since}: {sent.failure}"
    if not found.studies:
        yield "no study is known here yet"
    for study in found.studies:
        yield from _study(study)


def _contact(one: Contact) -> str:
    if one.reached_at_s is None and one.failing_since_s is None:
        return f"{one.server}: never asked"
    clock = "" if one.ahead_s is None else f", clock off by {abs(one.ahead_s):.1f} s (give or take {CLOCK_ERROR_S:g})"
    reached = "never answered" if one.reached_at_s is None else f"last answer {_at(one.reached_at_s)}{clock}"
    if one.failing_since_s is None:
        return f"{one.server}: {reached}"
    return f"{one.server}: OUT OF REACH since {_at(one.failing_since_s)} ({one.failure}); {reached}"


def _budget(report: BudgetReport) -> Iterator[str]:
    of = "no budget is set" if report.used is None else f"{report.used:.1%} of epsilon {report.epsilon:g} used"
    yield f"privacy: epsilon {report.spent:.3f} spent at delta {report.delta:g} per record, {report.accountant}; {of}"
    for one in report.studies:
        yield f"  {one.study}: {one.trainings} trainings, epsilon {one.epsilon:.3f} alone"
    if report.uncovered_rounds:
        yield f"  {report.uncovered_rounds} rounds before are covered by no count"


def _study(study: StudyStanding) -> Iterator[str]:
    yield f"study {study.study}: {study.state}"
    if study.approval is not None:
        said = "approved" if study.approval.approved else "declined"
        yield f"  {said} by {study.approval.person}, {_at(study.approval.time_s)}"
    if study.awaited is not None:
        yield f"  {study.awaited.text}"
    if study.round is not None:
        parts = [f"round {study.round} (the study has {study.rounds} of updates) {study.round_state}"]
        parts += [] if study.own_weight is None else [f"own weight {study.own_weight:.3f}"]
        parts += [] if study.isolation is None else [f"isolation {study.isolation:.3f}"]
        parts += [f"took part: {' '.join(study.took_part)}"] if study.took_part else []
        parts += [f"without: {', '.join(study.absent)}"] if study.absent else []
        yield f"  {', '.join(parts)}"
    if study.stopped:
        yield f"  -> {STOPPED_FIX}"
    if study.problem is not None:
        yield f"  problem since {_at(study.problem.since_s)}: {study.problem.text}"


def _at(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


def show_ledger(state_dir: Path, *, json_output: bool) -> None:
    """Nothing is left out: the last line is the sum of all lines, to be compared with a firewall's.

    Raises: ConfigurationError, when there is no such folder
    """
    require_begun("state_dir", state_dir, "'moiety agent run'")
    found = by_purpose(read_ledger(state_dir / "ledger.jsonl"))
    if json_output:
        for (server, purpose), totals in found.items():
            json_line({"server": server, "purpose": purpose, **vars(totals)})
        return
    shown = table("server", "purpose", "exchanges", "bytes sent", "bytes received")
    for (server, purpose), totals in found.items():
        numbers = (totals.entries, totals.socket_sent_bytes, totals.socket_received_bytes)
        add_row(shown, server, purpose, *(f"{number:,}" for number in numbers))
    console().print(shown)
    sent = sum(totals.socket_sent_bytes for totals in found.values())
    received = sum(totals.socket_received_bytes for totals in found.values())
    console().print(f"{sent:,} bytes sent, {received:,} received, TLS included")
