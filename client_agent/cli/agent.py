"""``moiety agent``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import datetime
from functools import partial
from typing import Annotated

import typer

from client_agent.cli.approving import delete as delete_study
from client_agent.cli.approving import list_studies, say, show_study
from client_agent.cli.lines import json_line, log_to_stderr, round_line
from client_agent.cli.memories import begin_budget, forget_memory, show_budget
from client_agent.cli.records import show_ledger, show_rewards, show_status
from client_agent.cli.tables import ConfigOption, JsonLinesOption, JsonOption, NameArgument
from client_agent.daemon import run_agent
from client_agent.settings import load_settings, with_device
from client_agent.site.events import AgentEvent, EventKind, RoundRecord
from client_agent.site.identity import load_identity
from client_agent.study.asked.at_hand import Word, leave_study, pause_study, resume_study
from host.files import UMASK
from protocol.messages.letter import told

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
    from client_agent.page.serve import serve_page

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
    delete_study(load_settings(config), study, person, reason, json_output=json_output)


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
