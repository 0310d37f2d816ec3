"""``moiety agent``: run a site's agent, look at it, decide on studies.

What a command needs is imported when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from client_agent.cli.tables import ConfigOption, JsonLinesOption, JsonOption, StudyArgument, settings_of
from host.files import UMASK

if TYPE_CHECKING:
    from client_agent.site.events import AgentEvent, RoundRecord

PersonOption = Annotated[str, typer.Option(help="Who decides; kept with the decision.")]
ReasonOption = Annotated[
    str, typer.Option(help="Kept with the decision. While the study runs, the requester reads why the site declines.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DoItOption = Annotated[bool, typer.Option("--yes", help="Do it; without this, only show what would be lost.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


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

    from client_agent.cli.watch import log_to_stderr
    from client_agent.daemon import run_agent
    from client_agent.settings import with_device

    os.umask(UMASK)
    log_to_stderr()
    settings = settings_of(config)
    if device is not None:
        settings = with_device(settings, device)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run_agent(settings, stop, _print_json if json_output else partial(_print_event, last={}))


@app.command()
def status(config: ConfigOption, json_output: JsonOption = False) -> None:
    """Show the servers, studies, rounds, budget and problems of this site.

    Own weight and isolation stand with each study, and what it spent of the privacy budget. The agent may run or not.

    Example: moiety agent status --config settings.toml
    """
    from client_agent.cli.agent_work import show_status

    show_status(settings_of(config), json_output=json_output)


@app.command()
def show(
    config: ConfigOption,
    study: Annotated[str | None, typer.Argument(help="The study's name; without it, all that this site knows.")] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """List the studies here, or show what one of them would open and to whom.

    Example: moiety agent show heart --config settings.toml
    """
    from client_agent.cli.agent_work import list_studies, show_study

    settings = settings_of(config)
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
    from client_agent.cli.agent_work import say
    from client_agent.study.approval import Word

    last = None if until is None else until.date()
    say(settings_of(config), study, Word(approved=True, person=person, reason=reason, until=last), sure=yes)


@app.command()
def decline(
    study: StudyArgument, config: ConfigOption, person: PersonOption, reason: ReasonOption = "", yes: YesOption = False
) -> None:
    """Decline a study, or leave it for good; the other sites may go on.

    The agent tells the requester. A round that this site has contributed to already goes on.

    Example: moiety agent decline heart --person "Dr. Weiss" --config settings.toml
    """
    from client_agent.cli.agent_work import say
    from client_agent.study.approval import Word

    say(settings_of(config), study, Word(approved=False, person=person, reason=reason), sure=yes)


@app.command()
def pause(study: StudyArgument, config: ConfigOption, person: PersonOption, reason: ReasonOption = "") -> None:
    """Pause a study here: neither train nor contribute until it is resumed.

    The requester reads the reason; the other sites go on.

    Example: moiety agent pause heart --person "Dr. Weiss" --config settings.toml
    """
    from client_agent.study.approval import pause_study

    pause_study(settings_of(config), study, person, reason)
    sys.stdout.write(f"study {study} is paused here; a round that this site has contributed to already goes on\n")


@app.command()
def resume(study: StudyArgument, config: ConfigOption) -> None:
    """Resume a study that is paused here, from its next round on.

    Example: moiety agent resume heart --config settings.toml
    """
    from client_agent.study.approval import resume_study

    resume_study(settings_of(config), study)
    sys.stdout.write(f"study {study} goes on here with its next round\n")


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
    from client_agent.cli.agent_work import delete_with_receipt

    delete_with_receipt(settings_of(config), study, person, reason, json_output=json_output)


@app.command()
def ledger(config: ConfigOption, json_output: JsonLinesOption = False) -> None:
    """Show the bytes that left this site and came, by server and purpose.

    Counted since the state folder was made.

    Example: moiety agent ledger --config settings.toml
    """
    from client_agent.cli.agent_work import show_ledger

    show_ledger(settings_of(config).state_dir, json_output=json_output)


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

    os.umask(UMASK)
    serve_page(settings_of(config), port, partial(examine_site, config))


@app.command("accept-rollback")
def accept_rollback(config: ConfigOption, yes: DoItOption = False) -> None:
    """Resume although memory of sums or privacy budget lacks rounds.

    These are rounds that the servers have this site's receipts for: an older state folder was put back, or they had no
    noise before there was a budget.

    Example: moiety agent accept-rollback --config settings.toml --yes
    """
    from client_agent.cli.agent_work import go_on_without

    go_on_without(settings_of(config), yes=yes)


def _print_json(event: AgentEvent) -> None:
    sys.stdout.write(event.model_dump_json() + "\n")
    sys.stdout.flush()


def _print_event(event: AgentEvent, last: dict[str, RoundRecord] | None = None) -> None:
    """In a line; ``last`` keeps each study's last round, whose reasons the next one does not repeat."""
    from client_agent.cli.watch import round_line
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
