"""``moiety study``, at the requester: studies are created, watched and cancelled.

What a command needs is imported when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_agent.cli.tables import ConfigOption, JsonLinesOption, JsonOption, StudyArgument, answer, settings_of
from host.files import UMASK

if TYPE_CHECKING:
    from client_agent.learning.study_file import FinishTable
    from client_agent.settings import AgentSettings
    from client_agent.site.connections import Site
    from client_agent.study.privacy_spending import ForeseenEpsilon
    from protocol.messages.control import Roster, Signed, Study, StudyEnd
    from protocol.rounds.evidence import Findings

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
_NAMED = ": every site compares its own with them, and both operators can read them"
_NOT_NAMED = "it names no columns and no classes: no site will see whether its data mean the same"


@app.callback()
def _study() -> None:
    """Create, watch and cancel studies, at the requester."""
    os.umask(UMASK)


@app.command()
def create(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="What to study.")],
    config: ConfigOption,
    pretrained: Annotated[
        Path | None, typer.Option(help="Begin with this model: float32 values in numpy's format.")
    ] = None,
    site_policy: Annotated[
        list[Path] | None,
        typer.Option(help="Another site's settings file, of which [policy] is read; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check file, data, model and policies only; send and keep nothing.")
    ] = False,
    json_output: JsonLinesOption = False,
) -> None:
    """Create a study: hand it to this site's agent, which runs it.

    Example: moiety study create study.toml --config settings.toml
    """
    from client_agent.learning.data_check import names_of
    from client_agent.study.approval import note_created
    from client_agent.study.outbox import create_study
    from protocol.text import NamesKind

    settings = settings_of(config)
    study, finish, spends = _checked(study_file, settings, pretrained, tuple(site_policy or ()))
    dimension, noise = study.parameters.dimension, {} if spends is None else {"privacy": asdict(spends)}
    values = {"study": study.name, "digest": study.digest(), "dimension": dimension}
    spent = "" if spends is None else f"\nits noise: {spends.words}"
    if dry_run:
        text = f"study {study.name} can be created: {dimension} parameters are shared{spent}"
        answer({**values, **noise}, text, json_output=json_output)
        return
    note_created(settings, study)
    create_study(settings.state_dir, study, pretrained, finish)
    named = {kind.value: len(names_of(study.model).of(kind)) for kind in NamesKind}
    given = " and ".join(f"{count} {kind}" for kind, count in named.items() if count)
    watch = shlex.join(["moiety", "study", "watch", study.name, "--config", str(config)])
    holds = f"it holds {given}{_NAMED}" if given else _NOT_NAMED
    text = f"study {study.name} is queued; follow it with: {watch}\n{holds}{spent}"
    answer({**values, **named, **noise}, text, json_output=json_output)


@app.command()
def epsilon(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="A study, or the plan of one.")],
    delta: Annotated[float, typer.Option(min=1e-15, max=0.01, help="Well below one over the number of examples.")],
    samples: Annotated[
        int,
        typer.Option(min=1, help="Training examples of a site. With local SGD not always the fewest spend most."),
    ],
    target: Annotated[
        float | None, typer.Option(min=0.01, help="Print the least noise_multiplier that keeps this epsilon instead.")
    ] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Show the epsilon that a study file would spend, with other noise too.

    Nothing is sent or kept.

    Example: moiety study epsilon study.toml --delta 1e-5 --samples 500 --target 4
    """
    from client_agent.cli.forecast import show_epsilon, show_least_noise

    if target is None:
        show_epsilon(study_file, delta, samples, json_output=json_output)
    else:
        show_least_noise(study_file, delta, samples, target, json_output=json_output)


@app.command()
def watch(name: StudyArgument, config: ConfigOption, json_output: JsonLinesOption = False) -> None:
    """Watch a study until it ends: rounds as they are recorded, and states.

    Ends with status 3 when the study did not end as asked: failed, or trained alone.

    Example: moiety study watch heart --config settings.toml
    """
    from client_agent.cli.round_lines import log_to_stderr
    from client_agent.cli.watch import follow
    from client_agent.page.study_state import EXIT_NOT_AS_ASKED

    settings = settings_of(config)
    log_to_stderr()
    if not follow(settings, name, json_output=json_output):
        raise typer.Exit(EXIT_NOT_AS_ASKED)


@app.command()
def report(
    name: StudyArgument,
    config: ConfigOption,
    out: Annotated[Path | None, typer.Option(help="The file to write; STUDY-report.html here.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Write one page on a study: settings, rounds, weights, costs, card.

    It is made from this site's state folder alone, and loads nothing from elsewhere.

    Example: moiety study report heart --config settings.toml
    """
    from client_agent.page.report import study_report
    from client_agent.page.report_html import report_html
    from host.output_files import rewrite

    found = study_report(settings_of(config), name, time.time())
    if json_output:
        sys.stdout.write(found.model_dump_json() + "\n")
        return
    path = out or Path(f"{name}-report.html")
    rewrite(path, report_html(found))
    sys.stdout.write(f"{path}: study {name}, {found.state}; open it in a browser\n")


@app.command()
def summary(
    name: StudyArgument,
    config: ConfigOption,
    json_output: JsonLinesOption = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="Comma-separated lines on standard output.")] = False,
    scaling: Annotated[
        Path | None, typer.Option(help="Write pooled means and SDs here, for 'moiety data prepare --scaling'.")
    ] = None,
) -> None:
    """Show table one over all sites, from their summed summaries.

    At the requester, or at any site that took part.

    Example: moiety study summary heart --config settings.toml --scaling scaling.json
    """
    from client_agent.cli.results import show_summary

    state_dir = settings_of(config).state_dir
    show_summary(state_dir, name, json_output=json_output, csv_output=csv_output, scaling=scaling)


@app.command()
def ranking(
    config: ConfigOption,
    name: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="The study's name; without it, all that were ranked.")
    ] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Show the sites by transfer loss: whose data resemble the requester's.

    Example: moiety study ranking heart --config settings.toml
    """
    from client_agent.cli.results import show_rankings

    show_rankings(settings_of(config).state_dir, name, json_output=json_output)


@app.command()
def verify(
    transcripts: Annotated[
        list[Path], typer.Argument(metavar="TRANSCRIPT...", help="Folders of a study's transcripts, or single ones.")
    ],
    roster: Annotated[Path, typer.Option(help="The signed roster of the study's federation.")],
    json_output: JsonLinesOption = False,
) -> None:
    """Verify signed messages that sites kept, and name who deviated.

    Ends with status 3 where anybody deviated.

    Example: moiety study verify state/studies/heart/transcripts --roster roster.toml
    """
    from client_agent.page.study_state import EXIT_NOT_AS_ASKED
    from client_agent.study.transcripts import verified

    found, count = verified(transcripts, roster)
    (_findings_as_json if json_output else _findings_as_text)(found, count)
    if found.deviations:
        raise typer.Exit(EXIT_NOT_AS_ASKED)


@app.command()
def cancel(
    name: StudyArgument,
    config: ConfigOption,
    reason: Annotated[str, typer.Option(help="Shown to every site.")],
    json_output: JsonLinesOption = False,
) -> None:
    """Cancel a study at both servers, now.

    Example: moiety study cancel heart --reason "wrong outcome" --config settings.toml
    """
    from client_agent.site.connections import Site
    from protocol.errors import UnknownStudy
    from protocol.messages.control import EndCause, StudyEnd, StudyEndState, sign
    from protocol.sharing import Side

    settings = settings_of(config)
    with Site(settings) as site:
        _require_requester(settings, site.roster)
        try:
            digest = site.clients[Side.A].study(name).message.digest()
        except UnknownStudy:
            _withdraw(site, name, json_output)
            return
        end = StudyEnd(study_digest=digest, state=StudyEndState.CANCELLED, cause=EndCause.CANCELLED, reason=reason)
        _end_at_both(site, name, sign(end, site.keys.name, site.keys.signing))
    values = {"study": name, "state": "cancelled", "reason": reason}
    answer(values, f"study {name} is cancelled at both servers", json_output=json_output)


def _findings_as_json(found: Findings, transcripts: int) -> None:
    from client_agent.cli.tables import json_line

    for one in found.deviations:
        json_line({"round": one.round, "parties": list(one.parties), "deviation": one.what})
    for text in found.unproven:
        json_line({"unproven": text})
    json_line({"transcripts": transcripts, "signatures": found.looked_at, "deviations": len(found.deviations)})


def _findings_as_text(found: Findings, transcripts: int) -> None:
    from protocol.text import printable

    for one in found.deviations:
        sys.stdout.write(f"round {one.round}: {' or '.join(one.parties)} {printable(one.what)}\n")
    for text in found.unproven:
        sys.stdout.write(f"proves nothing: {printable(text)}; ask another site for its transcript\n")
    said = "nobody deviated by what is signed" if not found.deviations else "show these lines to both operators"
    sys.stdout.write(f"{transcripts} transcripts, {found.looked_at} signatures looked at: {said}\n")


def _checked(
    study_file: Path, settings: AgentSettings, pretrained: Path | None, shown: tuple[Path, ...]
) -> tuple[Study, FinishTable | None, ForeseenEpsilon | None]:
    """The study in a file, its local finish, and what its noise would spend; remarks go to standard error.

    Raises: ConfigurationError
    """
    from client_agent.cli.forecast import require_federated, require_own_budget
    from client_agent.data.schema_check import require_made_by_schema
    from client_agent.learning.study_file import finish_from_toml, study_from_toml
    from client_agent.site.identity import load_chain
    from client_agent.study.contribution import transfer_remarks
    from client_agent.study.outbox import load_pretrained
    from client_agent.study.privacy_spending import foreseen_epsilon, own_examples
    from host.settings import read_text
    from protocol.errors import ConfigurationError
    from protocol.shared_model import model_digest_of

    chain, _ = load_chain(settings)
    roster = chain.head
    _require_requester(settings, roster)
    text, source = read_text(study_file), str(study_file)
    study = study_from_toml(text, source, roster, settings.plugin, settings.data, settings.sources)
    study = study.model_copy(update={"roster_digest": chain.first_digest})
    if (settings.state_dir / "studies" / study.name).exists():
        raise ConfigurationError(f"{study_file}: a study named {study.name!r} is here already; choose another name")
    finish = finish_from_toml(text, source)
    _refuse_dealer(study, study_file)
    if pretrained is not None:
        model = load_pretrained(pretrained, study.model_dimension)
        study = study.model_copy(update={"pretrained_digest": model_digest_of(model)})
    require_made_by_schema(study, settings.data)
    remarks = require_federated(study, roster, settings.policy, shown)
    transfers = transfer_remarks(study, settings, time.time())
    for remark in (*remarks, *transfers, *_tried(study, settings, finish)):
        sys.stderr.write(f"{remark}\n")
    require_own_budget(study, settings, chain.founding_keys[settings.site], finish)
    return study, finish, foreseen_epsilon(study, roster, settings.policy.delta, own_examples(settings.data))


def _tried(study: Study, settings: AgentSettings, finish: FinishTable | None) -> tuple[str, ...]:
    """Try what the agent would find out once the study is queued. Raises: ConfigurationError"""
    from client_agent.learning.trial import try_study
    from protocol.errors import ConfigurationError

    if not settings.data.exists():
        raise ConfigurationError(f"key 'data': {settings.data} does not exist; put this site's training data there")
    return try_study(study, settings.data, settings.plugin, settings.device, settings.sources, finish)


def _withdraw(site: Site, name: str, json_output: bool) -> None:
    """A study that no server has: out of the outbox, or marked in the journal so that the agent leaves it alone."""
    from client_agent.site.journal import StudyJournal
    from client_agent.study.outbox import withdraw
    from protocol.errors import UnknownStudy

    journal = site.settings.state_dir / "studies" / name
    if not withdraw(site.settings.state_dir, name):
        if not (journal / "study.json").exists():
            raise UnknownStudy(f"no study {name!r} is here or at the servers; look at its name")
        StudyJournal(site.settings.state_dir, name).withdraw()
    text = f"study {name} had not reached the servers; it is withdrawn here"
    answer({"study": name, "state": "withdrawn"}, text, json_output=json_output)


def _end_at_both(site: Site, name: str, end: Signed[StudyEnd]) -> None:
    from protocol.errors import ConflictingMessage
    from protocol.messages.control import StudyState
    from protocol.sharing import Side

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
    from protocol.errors import ConfigurationError

    if study.correlation_source == "dealer":
        raise ConfigurationError(
            f"{source}: key 'correlation_source': found 'dealer', which exists in simulation only (moiety simulate); "
            "a study at two servers takes 'ot'"
        )


def _require_requester(settings: AgentSettings, roster: Roster) -> None:
    from protocol.errors import ConfigurationError

    if settings.site != roster.requester:
        raise ConfigurationError(
            f"only the requester {roster.requester!r} creates and ends studies; this site is {settings.site!r}"
        )
