"""``moiety agent``: run a site's agent, decide on studies, look after its budget and memories."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Final, NamedTuple

import typer
from rich.text import Text

from client_agent.cli.status import show_ledger, show_rewards, show_status
from client_agent.cli.tables import (
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    NameArgument,
    add_row,
    console,
    json_line,
    log_to_stderr,
    plain,
    round_line,
    table,
)
from client_agent.daemon import run_agent
from client_agent.settings import AgentSettings, load_settings, with_device
from client_agent.site.connections import Site, one_agent
from client_agent.site.context import lost_rounds
from client_agent.site.events import AgentEvent, EventKind, RoundRecord
from client_agent.site.identity import load_identity
from client_agent.site.privacy_budget import budget_memory, budget_report
from client_agent.site.sum_memory import sum_memory
from client_agent.study.approval import (
    Word,
    keep_word,
    known_studies,
    known_study,
    leave_study,
    pause_study,
    resume_study,
)
from client_agent.study.deletion import RECEIPT, delete_study
from client_agent.study.plain_words import in_plain_words
from client_agent.study.privacy_spending import own_examples
from host.private_files import UMASK
from host.randomness import SystemRandomness
from host.settings import require_begun
from protocol.bodies.letter import told
from protocol.errors import ConfigurationError
from protocol.printable import printable, printable_lines
from protocol.wire.messages import ContributedRound, Study


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
    roster, _ = load_identity(settings)
    if settings.site == roster.requester:
        raise ConfigurationError(f"this site asked for study {name!r}; 'moiety study create' was its word")
    study = show_study(settings, name, json_output=False)
    yes = "approve" if word.approved else "decline"
    if not sure:
        typer.confirm(f"{printable(word.person)}: {yes} study {name} for {settings.site}?", abort=True)
    keep_word(settings, name, word, study.digest())
    sys.stdout.write(f"study {name}: {yes}d by {printable(word.person)}; the agent goes by it within seconds\n")


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


_NONE: Final = "no budget: epsilon is not set in [policy], so noise is counted and nothing is refused for it"


class _Words(NamedTuple):
    """Texts on rounds that a memory lacks."""

    none: str
    warning: str
    done: str
    offer: str


_UNCOVERED: Final = _Words(
    "nothing is uncovered: the count knows every round that the servers have receipts for",
    "This site's updates were shared in these rounds, and no count covers them: without noise, or their count was "
    "lost. The budget then says nothing about them; it begins after them. Restoring the newest backup of the state "
    "folder avoids that where they were counted; this command cannot be undone.",
    "the budget begins after these {count} rounds; this site contributes again",
    "nothing was changed; to begin after them, run this again with --yes",
)
_FORGOTTEN: Final = _Words(
    "nothing is lost: the memory knows every round that the servers have receipts for",
    "Sums over this site's updates were opened in these rounds, and nothing here remembers their weights. Later sums "
    "over the same data may complete them: together they can show single updates of this site, and no check of this "
    "site will notice. Restoring the newest backup of the state folder avoids that; this command cannot be undone.",
    "{count} rounds are forgotten; this site contributes again",
    "nothing was changed; to go on without them, run this again with --yes",
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
        _go_on_without(lost, budget.begin_after if yes else None, _UNCOVERED)


def forget_memory(settings: AgentSettings, *, yes: bool) -> None:
    """Show the rounds that servers have this site's receipts for and its memory lacks; with ``yes``, go on without.

    Raises: ConfigurationError while the agent runs; Unavailable while a server is away
    """
    with one_agent(settings), Site(settings) as site:
        sums = sum_memory(settings.state_dir, site.came_with, partial(SystemRandomness().bytes, 32, "sketch"))
        lost = lost_rounds(sums, site.clients, site.roster, settings.site)
        _go_on_without(lost, sums.forget if yes else None, _FORGOTTEN)


def _go_on_without(
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


PersonOption = Annotated[str, typer.Option(help="Who says so: kept with the word.")]
ReasonOption = Annotated[
    str, typer.Option(help="Kept with the word; in the middle of a study the requester reads why its site declines.")
]
SureOption = Annotated[bool, typer.Option("--yes", help="Do not ask once more.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _agent() -> None:
    """Run a site's agent."""


@app.command()
def run(
    config: ConfigOption,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:n; overrides the settings.")] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Run this site's agent until it is interrupted."""
    os.umask(UMASK)
    log_to_stderr()
    settings = load_settings(config)
    if device is not None:
        settings = with_device(settings, device)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run_agent(settings, stop, _print_json if json_output else partial(_print_event, last={}))


@app.command()
def rewards(
    config: ConfigOption,
    study: Annotated[str | None, typer.Option(help="One study; without it, all that this site has records of.")] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Show each site's part in a study: rounds taken part in and the sum of weights, from this site's own records."""
    settings = load_settings(config)
    roster, _ = load_identity(settings)
    show_rewards(settings.state_dir, settings.site, roster.requester, study, json_output=json_output)


@app.command()
def page(
    config: ConfigOption,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On the loopback; 0 takes a free one.")] = 8765,
) -> None:
    """This site's page, for a browser on this machine: studies to approve, rounds, weights, what left."""
    os.umask(UMASK)
    settings = load_settings(config)
    from client_agent.doctor import examine_site
    from client_agent.page.app import serve_page

    serve_page(settings, port, partial(examine_site, config))


@app.command()
def studies(config: ConfigOption, json_output: JsonLinesOption = False) -> None:
    """The studies that this site knows, and which of them wait for a person's approval."""
    list_studies(load_settings(config), json_output=json_output)


@app.command()
def show(study: NameArgument, config: ConfigOption, json_output: JsonOption = False) -> None:
    """Everything that a study would open and to whom, in plain words."""
    show_study(load_settings(config), study, json_output=json_output)


@app.command()
def approve(
    study: NameArgument,
    config: ConfigOption,
    person: PersonOption,
    reason: ReasonOption = "",
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="The permit's last day, UTC; then the study is left and deleted here."),
    ] = None,
    sure: SureOption = False,
) -> None:
    """Take part in a study: shown in plain words, asked once more, kept with name, time, reason and digest."""
    last = None if until is None else until.date()
    say(load_settings(config), study, Word(approved=True, person=person, reason=reason, until=last), sure=sure)


@app.command()
def decline(
    study: NameArgument, config: ConfigOption, person: PersonOption, reason: ReasonOption = "", sure: SureOption = False
) -> None:
    """Take no part in a study; the requester is told that, and the other sites may go on."""
    say(load_settings(config), study, Word(approved=False, person=person, reason=reason), sure=sure)


@app.command()
def leave(
    study: NameArgument,
    config: ConfigOption,
    reason: Annotated[str, typer.Option(help="Sealed to the requester, who reads it.")] = "",
    person: Annotated[str, typer.Option(help="Who says so, for this site's audit log.")] = "",
    json_output: JsonLinesOption = False,
) -> None:
    """Take this site out of a study, for good: its agent contributes to no further round and tells the requester."""
    leave_study(load_settings(config), study, person, reason)
    if json_output:
        json_line({"study": study, "left": True, "reason": told(reason)})
    else:
        sys.stdout.write(
            f"this site's agent contributes to no further round of study {study} and tells the requester so; what is "
            "in sums that were released stays there. A round that it has contributed to already goes on\n"
        )


@app.command()
def pause(study: NameArgument, config: ConfigOption, person: PersonOption, reason: ReasonOption = "") -> None:
    """Have this site neither train nor contribute until it is resumed; the requester reads it, the others go on."""
    pause_study(load_settings(config), study, person, reason)
    sys.stdout.write(f"study {study} is paused here; a round that this site has contributed to already goes on\n")


@app.command()
def resume(study: NameArgument, config: ConfigOption) -> None:
    """Take part again in a study that is paused here, from its next round on."""
    resume_study(load_settings(config), study)
    sys.stdout.write(f"study {study} goes on here with its next round\n")


@app.command()
def delete(
    study: NameArgument,
    config: ConfigOption,
    person: PersonOption,
    reason: ReasonOption = "",
    json_output: JsonOption = False,
) -> None:
    """Delete what this site holds of a study that is over, with a signed receipt; stop the agent before."""
    delete_with_receipt(load_settings(config), study, person, reason, json_output=json_output)


@app.command()
def status(config: ConfigOption, json_output: JsonOption = False) -> None:
    """Show this site: servers, studies, rounds, own weight, isolation, budget, problems; agent running or not."""
    show_status(load_settings(config), json_output=json_output)


@app.command()
def ledger(config: ConfigOption, json_output: JsonLinesOption = False) -> None:
    """Show the bytes that left this site and came, by server and purpose, since its state folder was made."""
    show_ledger(load_settings(config).state_dir, json_output=json_output)


@app.command(name="forget-memory")
def forget(
    config: ConfigOption,
    yes: Annotated[bool, typer.Option("--yes", help="Go on although these sums are forgotten.")] = False,
) -> None:
    """Rounds that the servers have this site's receipts for and its memory of sums lost; with --yes, do without."""
    forget_memory(load_settings(config), yes=yes)


@app.command()
def budget(config: ConfigOption, json_output: JsonOption = False) -> None:
    """Show this site's spending of its privacy budget, study by study and together."""
    settings = load_settings(config)
    _, came_with = load_identity(settings)
    show_budget(settings, came_with, json_output=json_output)


@app.command(name="begin-budget")
def begin(
    config: ConfigOption,
    yes: Annotated[bool, typer.Option("--yes", help="Begin although these rounds are not covered.")] = False,
) -> None:
    """Rounds that the servers have this site's receipts for and no budget covers; with --yes, begin after them."""
    begin_budget(load_settings(config), yes=yes)


def _print_json(event: AgentEvent) -> None:
    sys.stdout.write(event.model_dump_json() + "\n")
    sys.stdout.flush()


def _print_event(event: AgentEvent, last: dict[str, RoundRecord] | None = None) -> None:
    """In a line; ``last`` keeps each study's last round, whose reasons the next one does not repeat."""
    text, known = event.text, {} if last is None else last
    if event.record is not None:
        text = round_line(event.record, known.get(event.study))
        known[event.study] = event.record
    study = event.study or "all studies"
    where = study if event.round is None else f"{study} round {event.round}"
    said = text if event.kind is EventKind.CONNECTED else f"{where}: {event.kind.value}: {text}"
    sys.stdout.write(f"{event.site}: {said}\n")
    sys.stdout.flush()
