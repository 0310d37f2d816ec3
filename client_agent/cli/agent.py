"""``moiety agent`` and ``moiety budget``: run a site's agent, look at it, decide on studies.

What a command needs is imported when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from client_agent.cli.tables import (
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    StudyArgument,
    add_row,
    console,
    json_line,
    plain,
    table,
)
from client_agent.settings import AgentSettings
from client_agent.site.connections import Site, one_agent
from client_agent.site.context import lost_rounds
from client_agent.site.identity import load_identity
from client_agent.site.privacy_budget import budget_memory, budget_report
from client_agent.site.sum_memory import sum_memory
from client_agent.study.approval import Word, keep_word, known_studies, known_study
from client_agent.study.deletion import RECEIPT, delete_study
from client_agent.study.plain_words import in_plain_words
from client_agent.study.privacy_spending import own_examples
from host.private_files import UMASK
from host.randomness import SystemRandomness
from host.settings import require_begun
from protocol.errors import ConfigurationError
from protocol.printable import printable, printable_lines
from protocol.wire.messages import Study

if TYPE_CHECKING:
    from client_agent.site.events import AgentEvent, RoundRecord


PersonOption = Annotated[str, typer.Option(help="Who decides; kept with the decision.")]
ReasonOption = Annotated[
    str, typer.Option(help="Kept with the decision. While the study runs, the requester reads why the site declines.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DoItOption = Annotated[bool, typer.Option("--yes", help="Do it; without this, only show what would be lost.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
budget = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _agent() -> None:
    """Run the site's agent, look at it, and decide on studies."""


@app.command()
def run(
    config: ConfigOption,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:n; overrides the settings.")] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Run this site's agent until it is interrupted.

    Example: moiety agent run --config settings.toml
    """
    import signal
    import threading
    from functools import partial

    from client_agent.cli.tables import log_to_stderr
    from client_agent.daemon import run_agent
    from client_agent.settings import load_settings, with_device

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
def status(config: ConfigOption, json_output: JsonOption = False) -> None:
    """Show the servers, studies, rounds, budget and problems of this site.

    Own weight and isolation stand with each study. The agent may run or not.

    Example: moiety agent status --config settings.toml
    """
    from client_agent.cli.status import show_status
    from client_agent.settings import load_settings

    show_status(load_settings(config), json_output=json_output)


@app.command()
def show(
    config: ConfigOption,
    study: Annotated[str | None, typer.Argument(help="The study's name; without it, all that this site knows.")] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """List the studies here, or show what one of them would open and to whom.

    Example: moiety agent show heart --config settings.toml
    """

    from client_agent.settings import load_settings

    settings = load_settings(config)
    if study is None:
        list_studies(settings, json_output=json_output)
    else:
        show_study(settings, study, json_output=json_output)


@app.command()
def approve(
    study: StudyArgument,
    config: ConfigOption,
    person: PersonOption,
    reason: ReasonOption = "",
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="The permit's last day, UTC; then the study is left and deleted here."),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Approve a study: read it in plain words, then confirm.

    Name, time, reason and the study's digest are kept.

    Example: moiety agent approve heart --person "Dr. Weiss" --config settings.toml
    """

    from client_agent.settings import load_settings
    from client_agent.study.approval import Word

    last = None if until is None else until.date()
    say(load_settings(config), study, Word(approved=True, person=person, reason=reason, until=last), sure=yes)


@app.command()
def decline(
    study: StudyArgument, config: ConfigOption, person: PersonOption, reason: ReasonOption = "", yes: YesOption = False
) -> None:
    """Decline a study; the requester is told, and the other sites may go on.

    Example: moiety agent decline heart --person "Dr. Weiss" --config settings.toml
    """

    from client_agent.settings import load_settings
    from client_agent.study.approval import Word

    say(load_settings(config), study, Word(approved=False, person=person, reason=reason), sure=yes)


@app.command()
def pause(study: StudyArgument, config: ConfigOption, person: PersonOption, reason: ReasonOption = "") -> None:
    """Pause a study here: neither train nor contribute until it is resumed.

    The requester reads the reason; the other sites go on.

    Example: moiety agent pause heart --person "Dr. Weiss" --config settings.toml
    """
    from client_agent.settings import load_settings
    from client_agent.study.approval import pause_study

    pause_study(load_settings(config), study, person, reason)
    sys.stdout.write(f"study {study} is paused here; a round that this site has contributed to already goes on\n")


@app.command()
def resume(study: StudyArgument, config: ConfigOption) -> None:
    """Resume a study that is paused here, from its next round on.

    Example: moiety agent resume heart --config settings.toml
    """
    from client_agent.settings import load_settings
    from client_agent.study.approval import resume_study

    resume_study(load_settings(config), study)
    sys.stdout.write(f"study {study} goes on here with its next round\n")


@app.command()
def leave(
    study: StudyArgument,
    config: ConfigOption,
    reason: Annotated[str, typer.Option(help="Sealed to the requester, who reads it.")] = "",
    person: Annotated[str, typer.Option(help="Who decides; kept in this site's audit log.")] = "",
    json_output: JsonLinesOption = False,
) -> None:
    """Leave a study for good: contribute to no further round.

    The agent tells the requester.

    Example: moiety agent leave heart --reason "permit withdrawn" --config settings.toml
    """
    from client_agent.cli.tables import json_line
    from client_agent.settings import load_settings
    from client_agent.study.approval import leave_study
    from protocol.bodies.letter import told

    leave_study(load_settings(config), study, person, reason)
    if json_output:
        json_line({"study": study, "left": True, "reason": told(reason)})
    else:
        sys.stdout.write(
            f"this site's agent contributes to no further round of study {study} and tells the requester so; what is "
            "in sums that were released stays there. A round that it has contributed to already goes on\n"
        )


@app.command()
def delete(
    study: StudyArgument,
    config: ConfigOption,
    person: PersonOption,
    reason: ReasonOption = "",
    json_output: JsonOption = False,
) -> None:
    """Delete what this site holds of an ended study, with a signed receipt.

    Stop the agent first.

    Example: moiety agent delete heart --person "Dr. Weiss" --config settings.toml
    """

    from client_agent.settings import load_settings

    delete_with_receipt(load_settings(config), study, person, reason, json_output=json_output)


@app.command()
def ledger(config: ConfigOption, json_output: JsonLinesOption = False) -> None:
    """Show the bytes that left this site and came, by server and purpose.

    Counted since the state folder was made.

    Example: moiety agent ledger --config settings.toml
    """
    from client_agent.cli.status import show_ledger
    from client_agent.settings import load_settings

    show_ledger(load_settings(config).state_dir, json_output=json_output)


@app.command()
def rewards(
    config: ConfigOption,
    study: Annotated[str | None, typer.Argument(help="The study's name; without it, all with records here.")] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Show each site's rounds and sum of weights, from this site's records.

    Example: moiety agent rewards heart --config settings.toml
    """
    from client_agent.cli.status import show_rewards
    from client_agent.settings import load_settings
    from client_agent.site.identity import load_identity

    settings = load_settings(config)
    roster, _ = load_identity(settings)
    show_rewards(settings.state_dir, settings.site, roster.requester, study, json_output=json_output)


@app.command()
def page(
    config: ConfigOption,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On the loopback; 0 takes a free one.")] = 8765,
) -> None:
    """Serve this site's page to a browser on this machine.

    It shows studies to approve, rounds, weights, and what left.

    Example: moiety agent page --config settings.toml
    """
    from functools import partial

    from client_agent.doctor import examine_site
    from client_agent.page.app import serve_page
    from client_agent.settings import load_settings

    os.umask(UMASK)
    serve_page(load_settings(config), port, partial(examine_site, config))


@app.command("accept-rollback")
def accept_rollback(config: ConfigOption, yes: DoItOption = False) -> None:
    """Resume from an older state folder whose memory of sums lacks rounds.

    These are rounds that the servers have this site's receipts for.

    Example: moiety agent accept-rollback --config settings.toml --yes
    """

    from client_agent.settings import load_settings

    forget_memory(load_settings(config), yes=yes)


@budget.callback()
def _budget() -> None:
    """Show or restart the site's privacy budget."""


@budget.command("show")
def show_spent(config: ConfigOption, json_output: JsonOption = False) -> None:
    """Show the spending of this site's privacy budget, by study and in all.

    Example: moiety budget show --config settings.toml
    """

    from client_agent.settings import load_settings
    from client_agent.site.identity import load_identity

    settings = load_settings(config)
    _, came_with = load_identity(settings)
    show_budget(settings, came_with, json_output=json_output)


@budget.command()
def reset(config: ConfigOption, yes: DoItOption = False) -> None:
    """Restart the privacy budget after unrecorded rounds.

    These are rounds that the servers have this site's receipts for and no budget covers.

    Example: moiety budget reset --config settings.toml --yes
    """

    from client_agent.settings import load_settings

    begin_budget(load_settings(config), yes=yes)


def _print_json(event: AgentEvent) -> None:
    sys.stdout.write(event.model_dump_json() + "\n")
    sys.stdout.flush()


def _print_event(event: AgentEvent, last: dict[str, RoundRecord] | None = None) -> None:
    """In a line; ``last`` keeps each study's last round, whose reasons the next one does not repeat."""
    from client_agent.cli.tables import round_line
    from client_agent.site.events import EventKind

    text, known = event.text, {} if last is None else last
    if event.record is not None:
        text = round_line(event.record, known.get(event.study))
        known[event.study] = event.record
    study = event.study or "all studies"
    where = study if event.round is None else f"{study} round {event.round}"
    said = text if event.kind is EventKind.CONNECTED else f"{where}: {event.kind.value}: {text}"
    sys.stdout.write(f"{event.site}: {said}\n")
    sys.stdout.flush()


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
