"""The output of ``moiety agent``: how a site stands, what left, and its people's decisions, as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import typer
from rich.text import Text

from client_agent.cli.tables import add_row, console, json_line, plain, table
from client_agent.net.contacts import CLOCK_ERROR_S, Contact
from client_agent.net.ledger import by_purpose, read_ledger
from client_agent.settings import AgentSettings
from client_agent.site.connections import Site, one_agent
from client_agent.site.context import lost_rounds
from client_agent.site.identity import load_identity
from client_agent.site.privacy_budget import BudgetReport, budget_memory
from client_agent.site.sum_memory import sum_memory
from client_agent.study.approval import (
    STOPPED_FIX,
    SiteStanding,
    StudyStanding,
    Word,
    keep_word,
    known_studies,
    known_study,
    standing,
    study_to_decide,
)
from client_agent.study.deletion import RECEIPT, delete_study
from client_agent.study.plain_words import in_plain_words
from client_agent.study.privacy_spending import own_examples
from host.clock import moment
from host.randomness import SystemRandomness
from host.settings import require_begun
from protocol.messages.control import ContributedRound, Study
from protocol.text import printable, printable_lines


def list_studies(settings: AgentSettings, *, json_output: bool) -> None:
    """Every study that this site knows, and what it waits for."""
    roster, _ = load_identity(settings)
    shown = table("study", "state at this site", "digest")
    studies = known_studies(settings, roster)
    if not studies and not json_output:
        console().print("no study is here yet; an agent that runs hears of one within half a minute of its creation")
        return
    for known in studies:
        name, digest = known.study.name, known.study.digest()
        if json_output:
            json_line({"study": name, "state": known.state, "digest": digest})
        else:
            add_row(shown, name, known.state, digest[:16])
    if not json_output:
        console().print(shown)


def show_study(settings: AgentSettings, name: str, *, json_output: bool) -> Study:
    """Everything that a study would open and to whom, in plain words."""
    roster, _ = load_identity(settings)
    study = known_study(settings, roster, name).study
    statements = in_plain_words(study, roster, settings.policy, own_examples(settings.data))
    if json_output:
        said = [one.model_dump() for one in statements]
        json_line({"study": name, "digest": study.digest(), "statements": said})
        return study
    shown = table("", f"study {name}, digest {study.digest()}")
    shown.columns[1].overflow = "fold"  # a long word is no reason to cut what a person approves
    for one in statements:
        shown.add_row(plain(one.about), Text(printable_lines(one.words)))
    console().print(shown)
    return study


def say(settings: AgentSettings, name: str, word: Word, *, sure: bool) -> None:
    """Show the study, ask once more, and keep the word. Raises: ConfigurationError"""
    study_to_decide(settings, name)  # before the study is shown
    study = show_study(settings, name, json_output=False)
    yes = "approve" if word.approved else "decline"
    if not sure:
        typer.confirm(f"{printable(word.person)}: {yes} study {name} for {settings.site}?", abort=True)
    keep_word(settings, name, word, study.digest())
    sys.stdout.write(f"study {name}: {yes}d by {printable(word.person)}; the agent goes by it within seconds\n")
    if not word.approved:
        sys.stdout.write(
            "a round that this site has contributed to already goes on, and what is in released sums stays there\n"
        )


_STAYS: Final = (
    "What stays: the signed study, people's words on it, the audit log, the ledger, and the memory of sums, cohorts "
    "and budget, which protects this site's patients in later studies. Backups and exported models you delete yourself."
)


def delete_with_receipt(settings: AgentSettings, name: str, person: str, reason: str, *, json_output: bool) -> None:
    """Delete, and say where the receipt lies. Raises: ConfigurationError"""
    said: list[str] = []
    signed = delete_study(settings, name, person, reason, say=said.append)
    if json_output:
        json_line(signed.model_dump(mode="json"))
        return
    count, size_bytes = len(signed.message.files), sum(one.size_bytes for one in signed.message.files)
    where = settings.state_dir / "studies" / name / RECEIPT
    sys.stdout.writelines(f"{text}\n" for text in said)
    sys.stdout.write(
        f"study {name}: {count} files of {size_bytes:,} bytes are deleted; the signed receipt is {where}\n{_STAYS}\n"
    )


class _Words(NamedTuple):
    """Texts on rounds that a memory lacks."""

    none: str
    warning: str
    done: str
    offer: str


_UNCOVERED: Final = _Words(
    "budget: nothing is uncovered: the count knows every round that the servers have receipts for",
    "This site's updates were shared in these rounds, and no count covers them: without noise, or their count was "
    "lost. The budget then says nothing about them; it begins after them. Restoring the newest backup of the state "
    "folder avoids that where they were counted; this command cannot be undone.",
    "the budget begins after these {count} rounds; this site contributes again",
    "nothing was changed; to begin after them, run this again with --yes",
)
_FORGOTTEN: Final = _Words(
    "sums: nothing is lost: the memory knows every round that the servers have receipts for",
    "Sums over this site's updates were opened in these rounds, and nothing here remembers their weights. Later sums "
    "over the same data may complete them: together they can show single updates of this site, and no check of this "
    "site will notice. Restoring the newest backup of the state folder avoids that; this command cannot be undone.",
    "{count} rounds are forgotten; this site contributes again",
    "nothing was changed; to go on without them, run this again with --yes",
)


def go_on_without(settings: AgentSettings, *, yes: bool) -> None:
    """Show the rounds that servers have this site's receipts for and a memory here lacks; with ``yes``, accept that.

    The budget's count is looked at where there is a budget.

    Raises: ConfigurationError while the agent runs; Unavailable while a server is away
    """
    with one_agent(settings), Site(settings) as site:
        sums = sum_memory(settings.state_dir, site.came_with, partial(SystemRandomness().bytes, 32, "sketch"))
        _accept(lost_rounds(sums, site.clients, site.roster, settings.site), sums.forget if yes else None, _FORGOTTEN)
        if settings.policy.epsilon is not None:
            budget = budget_memory(settings.state_dir, site.came_with)
            lost = lost_rounds(budget, site.clients, site.roster, settings.site)
            _accept(lost, budget.begin_after if yes else None, _UNCOVERED)


def _accept(
    lost: Sequence[ContributedRound], accept: Callable[[list[tuple[str, int]]], None] | None, words: _Words
) -> None:
    if not lost:
        sys.stdout.write(words.none + "\n")
        return
    for found in lost:
        sys.stdout.write(f"{found.study} round {found.round}\n")
    sys.stdout.write(words.warning + "\n")
    if accept is None:
        sys.stdout.write(words.offer + "\n")
        return
    accept([(found.study_digest, found.round) for found in lost])
    sys.stdout.write(words.done.format(count=len(lost)) + "\n")


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
        yield f"problem since {moment(found.problem.since_s)}: {found.problem.text}"
    for sent in found.undelivered:
        since = "" if sent.failing_since_s is None else f" since {moment(sent.failing_since_s)}"
        yield f"notice of study {sent.study} by {sent.way} not delivered{since}: {sent.failure}"
    if not found.studies:
        yield "no study is known here yet"
    for study in found.studies:
        yield from _study(study)


def _contact(one: Contact) -> str:
    if one.reached_at_s is None and one.failing_since_s is None:
        return f"{one.server}: never asked"
    clock = "" if one.ahead_s is None else f", clock off by {abs(one.ahead_s):.1f} s (give or take {CLOCK_ERROR_S:g})"
    reached = "never answered" if one.reached_at_s is None else f"last answer {moment(one.reached_at_s)}{clock}"
    if one.failing_since_s is None:
        return f"{one.server}: {reached}"
    return f"{one.server}: OUT OF REACH since {moment(one.failing_since_s)} ({one.failure}); {reached}"


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
        yield f"  {said} by {study.approval.person}, {moment(study.approval.time_s)}"
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
        yield f"  problem since {moment(study.problem.since_s)}: {study.problem.text}"


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
