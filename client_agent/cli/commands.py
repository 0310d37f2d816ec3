"""``moiety agent`` and ``moiety study``."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Final

import stamina
import structlog
import typer

from client_agent.cli.memory import forget_memory
from client_agent.cli.ranking import show_rankings
from client_agent.cli.rewards import show_rewards
from client_agent.cli.summaries import show_summary
from client_agent.cli.tables import add_row, console, table
from client_agent.daemon import REFUSAL, Site, create_study, load_identity, outbox, run_agent
from client_agent.data.kept import require_made_by_schema
from client_agent.learning.check_data import names_of
from client_agent.learning.study_file import study_from_toml
from client_agent.scoring.score import FinalScores, shown_score
from client_agent.settings import AgentSettings, load_settings, read_text, with_device
from client_agent.site.events import AgentEvent, RoundRecord, read_metrics
from client_agent.site.journal import FINAL_SCORES, STOPPED, StudyJournal
from client_agent.study.pretrained import load_pretrained
from host.log import configure
from host.private_files import UMASK
from protocol.errors import ConfigurationError, ConflictingMessage, Unavailable, UnknownStudy
from protocol.first_model import model_digest_of
from protocol.policy.study_clauses import check_study_allowed
from protocol.printable import printable
from protocol.sharing import Side
from protocol.wire.authentic import sign
from protocol.wire.messages import (
    EndCause,
    Purpose,
    Roster,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    StudyState,
    StudyView,
)
from protocol.wire.names import NamesKind

agent_app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
study_app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

ConfigOption = Annotated[Path, typer.Option("--config", help="The agent's settings file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON lines on standard output.")]
NameArgument = Annotated[str, typer.Argument(help="The study's name.")]
_POLL_S = 0.5
_SHOWN_SCORES: Final = 2
_NAMED = ": every site compares its own with them, and both operators can read them"
_NOT_NAMED = "it names no columns and no classes: no site will see whether its data mean the same"
_PURPOSES: Final = {
    Purpose.UPDATE: "",
    Purpose.COUNTS: " (class counts)",
    Purpose.RANKING: " (ranking)",
    Purpose.SUMMARY: " (summary)",
}


@agent_app.callback()
def _agent() -> None:
    """Run a site's agent."""


@study_app.callback()
def _study() -> None:
    """Create, watch and cancel studies, at the requester."""
    os.umask(UMASK)


@agent_app.command()
def run(
    config: ConfigOption,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:n; overrides the settings.")] = None,
    json_output: JsonOption = False,
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
    run_agent(settings, stop, _print_json if json_output else _print_event)


@agent_app.command()
def rewards(
    config: ConfigOption,
    study: Annotated[str | None, typer.Option(help="One study; without it, all that this site has records of.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Who gave what, a study: rounds taken part in and the sum of weights, a site, from this site's own records."""
    settings = load_settings(config)
    roster, _ = load_identity(settings)
    show_rewards(settings.state_dir, settings.site, roster.requester, study, json_output=json_output)


@agent_app.command()
def ranking(
    config: ConfigOption,
    study: Annotated[str | None, typer.Option(help="One study; without it, all that were ranked.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Whose data resemble this site's: the other sites by transfer loss, at the requester of a study that ranks."""
    show_rankings(load_settings(config).state_dir, study, json_output=json_output)


@agent_app.command(name="forget-memory")
def forget(
    config: ConfigOption,
    yes: Annotated[bool, typer.Option("--yes", help="Go on although these sums are forgotten.")] = False,
) -> None:
    """Rounds that the servers have this site's receipts for and its memory of sums lost; with --yes, do without."""
    forget_memory(load_settings(config), yes=yes)


@study_app.command()
def create(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="What to study.")],
    config: ConfigOption,
    pretrained: Annotated[
        Path | None, typer.Option(help="Begin with this model: float32 values in numpy's format.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Hand a study to this site's agent, which creates it at both servers and runs it."""
    settings = load_settings(config)
    roster, _ = load_identity(settings)
    _require_requester(settings, roster)
    study = study_from_toml(
        read_text(study_file), str(study_file), roster, settings.plugin, settings.data, settings.sources
    )
    _refuse_dealer(study, study_file)
    if pretrained is not None:
        model = load_pretrained(pretrained, study.model_dimension)
        study = study.model_copy(update={"pretrained_digest": model_digest_of(model)})
    require_made_by_schema(study, settings.data)
    check_study_allowed(study, settings.policy)
    for remark in _tried(study, settings):
        sys.stderr.write(f"{remark}\n")
    journal = settings.state_dir / "studies" / study.name
    if journal.exists():
        raise ConfigurationError(f"{study_file}: a study named {study.name!r} is here already; choose another name")
    create_study(settings.state_dir, study, pretrained)
    named = {kind.value: len(names_of(study.model).of(kind)) for kind in NamesKind}
    if json_output:
        _line({"study": study.name, "digest": study.digest(), "dimension": study.parameters.dimension, **named})
    else:
        sys.stdout.write(f"study {study.name} is queued; follow it with: {_watch_command(study, config)}\n")
        given = " and ".join(f"{count} {kind}" for kind, count in named.items() if count)
        sys.stdout.write(f"it holds {given}{_NAMED}\n" if given else f"{_NOT_NAMED}\n")


@study_app.command()
def watch(name: NameArgument, config: ConfigOption, json_output: JsonOption = False) -> None:
    """Follow a study until it ends: this site's rounds as they are recorded, and the servers' state."""
    settings = load_settings(config)
    log_to_stderr()
    stamina.instrumentation.set_on_retry_hooks(())  # said once below, not at every try
    metrics = settings.state_dir / "studies" / name / "metrics.jsonl"
    shown, state = 0, None
    stop = threading.Event()
    with Site(settings) as site:
        server = _PatientView(site, name)
        while not stop.is_set():
            records = read_metrics(metrics)
            for record in records[shown:]:
                sys.stdout.write((record.model_dump_json() if json_output else _round_line(record)) + "\n")
            shown = len(records)
            view = server.view()
            if view is not None and (view.state, view.reason) != state:
                state = (view.state, view.reason)
                _print_state(view, json_output)
            sys.stdout.flush()
            if view is not None and view.state.ended and _is_finished(settings, name):
                break
            stop.wait(_POLL_S)
    if not json_output:
        _print_table(read_metrics(metrics))
        _print_final_scores(metrics.with_name(FINAL_SCORES))


@study_app.command()
def summary(
    name: NameArgument,
    config: ConfigOption,
    json_output: JsonOption = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="Comma-separated lines on standard output.")] = False,
    scaling: Annotated[
        Path | None, typer.Option(help="Write pooled means and SDs here, for 'moiety data prepare --scaling'.")
    ] = None,
) -> None:
    """Table one over all sites, as their summaries were summed: at the requester, or at any site that took part."""
    state_dir = load_settings(config).state_dir
    show_summary(state_dir, name, json_output=json_output, csv_output=csv_output, scaling=scaling)


@study_app.command()
def cancel(
    name: NameArgument,
    config: ConfigOption,
    reason: Annotated[str, typer.Option(help="Shown to every site.")],
    json_output: JsonOption = False,
) -> None:
    """End a study at both servers, now."""
    settings = load_settings(config)
    with Site(settings) as site:
        _require_requester(settings, site.roster)
        try:
            digest = site.clients[Side.A].study(name).message.digest()
        except UnknownStudy:
            _withdraw(site, name, json_output)
            return
        end = StudyEnd(study_digest=digest, state=StudyEndState.CANCELLED, cause=EndCause.CANCELLED, reason=reason)
        _end_at_both(site, name, sign(end, site.keys.name, site.keys.signing))
    if json_output:
        _line({"study": name, "state": "cancelled", "reason": reason})
    else:
        sys.stdout.write(f"study {name} is cancelled at both servers\n")


def _tried(study: Study, settings: AgentSettings) -> tuple[str, ...]:
    """What the agent would find out once the study is queued, found out before. Raises: ConfigurationError"""
    if not settings.data.exists():
        raise ConfigurationError(f"key 'data': {settings.data} does not exist; put this site's training data there")
    from client_agent.learning.trial import try_study

    return try_study(study, settings.data, settings.plugin, settings.device, settings.sources)


def _withdraw(site: Site, name: str, json_output: bool) -> None:
    """A study that no server has: out of the outbox, or marked in the journal so that the agent leaves it alone."""
    queued, journal = _queue_path(site, name), site.settings.state_dir / "studies" / name
    if queued.exists():
        queued.unlink()
    elif (journal / "study.json").exists():
        StudyJournal(site.settings.state_dir, name).withdraw()
    else:
        raise UnknownStudy(f"no study {name!r} is here or at the servers; look at its name")
    if json_output:
        _line({"study": name, "state": "withdrawn"})
    else:
        sys.stdout.write(f"study {name} had not reached the servers; it is withdrawn here\n")


def log_to_stderr() -> None:
    """Structured log lines on stderr: standard output belongs to results."""
    configure(logging.INFO)
    stamina.instrumentation.set_on_retry_hooks([_log_retry])


def _log_retry(details: stamina.instrumentation.RetryDetails) -> None:
    structlog.get_logger("agent").warning("retry", number=details.retry_num, detail=str(details.caused_by))


def _watch_command(study: Study, config: Path) -> str:
    return shlex.join(["moiety", "study", "watch", study.name, "--config", str(config)])


def _end_at_both(site: Site, name: str, end: Signed[StudyEnd]) -> None:
    try:
        for side in Side:
            site.clients[side].end(name, end)
    except ConflictingMessage as error:
        if site.clients[Side.A].view(name).state is not StudyState.LOCAL_ONLY:
            raise
        raise ConflictingMessage(
            f"{error.detail}; the shared part of study {name!r} has ended already, and this site goes on training "
            "alone: stop its agent to stop that"
        ) from None


def _refuse_dealer(study: Study, source: Path) -> None:
    if study.correlation_source == "dealer":
        raise ConfigurationError(
            f"{source}: key 'correlation_source': found 'dealer', which exists in simulation only (moiety simulate); "
            "a study at two servers takes 'ot'"
        )


def _require_requester(settings: AgentSettings, roster: Roster) -> None:
    if settings.site != roster.requester:
        raise ConfigurationError(
            f"only the requester {roster.requester!r} creates and ends studies; this site is {settings.site!r}"
        )


class _PatientView:
    """Server A's view of one study; None where the server is away, which is said once, or has no such study yet."""

    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        self._name = name
        self._away = False

    def view(self) -> StudyView | None:
        try:
            view = self._site.clients[Side.A].view(self._name)
        except Unavailable as later:
            if not self._away:
                sys.stderr.write(f"waiting for server: {later.detail}\n")
                sys.stderr.flush()
            self._away = True
            return None
        except UnknownStudy:
            _require_not_refused(self._site, self._name)
            if not self._is_here():
                raise
            view = None
        self._away = False
        return view

    def _is_here(self) -> bool:
        state_dir = self._site.settings.state_dir
        return (state_dir / "studies" / self._name).exists() or _queued(self._site, self._name)


def _require_not_refused(site: Site, name: str) -> None:
    """ConfigurationError with the agent's reason, where it refused the study or stopped before the servers had it."""
    reasons = (_queue_path(site, name).with_suffix(REFUSAL), site.settings.state_dir / "studies" / name / STOPPED)
    for path in reasons:
        if path.exists():
            text = printable(path.read_text(encoding="utf-8"))
            raise ConfigurationError(f"study {name!r} never reached the servers; this site's agent says: {text}")


def _queued(site: Site, name: str) -> bool:
    return _queue_path(site, name).exists()


def _queue_path(site: Site, name: str) -> Path:
    return outbox(site.settings.state_dir) / f"{name}.json"


def _is_finished(settings: AgentSettings, name: str) -> bool:
    """This site has done its last round of the study, going on alone included; true where it takes no part."""
    if not (settings.state_dir / "studies" / name).exists():
        return True
    state = StudyJournal(settings.state_dir, name).site_state()
    return state is not None and state.over


def _line(values: dict[str, object]) -> None:
    import json

    sys.stdout.write(json.dumps(values) + "\n")


def _print_json(event: AgentEvent) -> None:
    sys.stdout.write(event.model_dump_json() + "\n")
    sys.stdout.flush()


def _print_event(event: AgentEvent) -> None:
    text = event.text if event.record is None else _round_line(event.record)
    study = event.study or "all studies"
    where = study if event.round is None else f"{study} round {event.round}"
    sys.stdout.write(f"{event.site}: {where}: {event.kind.value}: {text}\n")
    sys.stdout.flush()


def _print_state(view: StudyView, json_output: bool) -> None:
    if json_output:
        _line({"study": view.study, "state": view.state.value, "reason": view.reason, "ready": list(view.ready)})
    else:
        reason = f" ({printable(view.reason)})" if view.reason else ""
        sys.stdout.write(f"study {view.study}: {view.state.value}{reason}\n")


def _round_line(record: RoundRecord) -> str:
    alphas = " ".join(f"{entry.site}={entry.value:.3f}" for entry in record.alphas)
    scored = "".join(f", {shown_score(score)}" for score in record.test_scores[:_SHOWN_SCORES])
    kilobytes = (record.bytes_up + record.bytes_down) / 1000
    reason = f" ({record.reason})" if record.reason else ""
    what = record.state.value + _PURPOSES[record.purpose]
    cost = f"{record.seconds:.2f} s, {kilobytes:.0f} kB"
    isolated = "" if record.isolation is None else f", isolation {record.isolation:.3f}"
    return f"round {record.round} {what}{reason}: {cost}{scored}{isolated} {alphas}"


def _print_final_scores(path: Path) -> None:
    """The last model's metrics on this site's test part, with intervals."""
    if path.exists():
        final = FinalScores.model_validate_json(path.read_bytes())
        console().print(f"the last model on this site's {final.examples} test examples:", highlight=False)
        for score in final.scores:
            console().print(f"  {shown_score(score)}", highlight=False, markup=False)


def _print_table(records: tuple[RoundRecord, ...]) -> None:
    shown = table("round", "state", "took part", "failed check", "isolation", "on its own test data", "seconds")
    for record in records:
        scored = ", ".join(shown_score(score) for score in record.test_scores[:_SHOWN_SCORES])
        add_row(
            shown,
            str(record.round),
            record.state.value,
            ", ".join(record.took_part),
            ", ".join(record.failed_check),
            "" if record.isolation is None else f"{record.isolation:.3f}",
            scored,
            f"{record.seconds:.2f}",
        )
    console().print(shown)
