"""``moiety study``, at the requester: studies are created, watched and cancelled."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from client_agent.cli.foreseen import require_federated, require_own_budget
from client_agent.cli.lines import json_line, log_to_stderr
from client_agent.cli.noise import epsilon, noise
from client_agent.cli.ranking import show_rankings
from client_agent.cli.summaries import show_summary
from client_agent.cli.tables import ConfigOption, JsonLinesOption, NameArgument
from client_agent.cli.watching import follow, report
from client_agent.data.kept import require_made_by_schema
from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.check_data import names_of
from client_agent.learning.study_file import finish_from_toml, study_from_toml
from client_agent.report.outcome import EXIT_NOT_AS_ASKED
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.connections import Site
from client_agent.site.identity import load_chain
from client_agent.site.journal import StudyJournal
from client_agent.site.outbox import create_study, withdraw
from client_agent.study.asked.at_hand import note_created
from client_agent.study.asked.foreseen_epsilon import ForeseenEpsilon, foreseen_epsilon, own_examples
from client_agent.study.asked.foreseen_transfers import transfer_remarks
from client_agent.study.pretrained import load_pretrained
from client_agent.transcripts.reading import verified
from host.files import UMASK
from host.settings import read_text
from protocol.errors import ConfigurationError, ConflictingMessage, UnknownStudy
from protocol.messages.control import EndCause, Roster, Signed, Study, StudyEnd, StudyEndState, StudyState, sign
from protocol.rounds.evidence import Findings
from protocol.shared_model import model_digest_of
from protocol.sharing import Side
from protocol.text import NamesKind, printable

PretrainedOption = Annotated[Path | None, typer.Option(help="Begin with this model: float32 values in numpy's format.")]
SitePolicyOption = Annotated[
    list[Path] | None,
    typer.Option(help="Another site's [policy], as it has shown it to you: settings file; once for each site."),
]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(noise)
app.command()(epsilon)
app.command()(report)
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
    pretrained: PretrainedOption = None,
    site_policy: SitePolicyOption = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Hand a study to this site's agent, which creates it at both servers and runs it."""
    settings = load_settings(config)
    study, finish, spends = _checked(study_file, settings, pretrained, tuple(site_policy or ()))
    note_created(settings, study)
    create_study(settings.state_dir, study, pretrained, finish)
    named = {kind.value: len(names_of(study.model).of(kind)) for kind in NamesKind}
    if json_output:
        told = {"study": study.name, "digest": study.digest(), "dimension": study.parameters.dimension, **named}
        json_line({**told, **_spends_as_json(spends)})
    else:
        sys.stdout.write(f"study {study.name} is queued; follow it with: {_watch_command(study, config)}\n")
        given = " and ".join(f"{count} {kind}" for kind, count in named.items() if count)
        sys.stdout.write(f"it holds {given}{_NAMED}\n" if given else f"{_NOT_NAMED}\n")
        sys.stdout.write(_spends_as_text(spends))


@app.command()
def check(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="What to study.")],
    config: ConfigOption,
    pretrained: PretrainedOption = None,
    site_policy: SitePolicyOption = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Look at a study file as 'create' would: file, data, model and policies; nothing is sent or kept."""
    study, _, spends = _checked(study_file, load_settings(config), pretrained, tuple(site_policy or ()))
    if json_output:
        told = {"study": study.name, "digest": study.digest(), "dimension": study.parameters.dimension}
        json_line({**told, **_spends_as_json(spends)})
    else:
        sys.stdout.write(f"study {study.name} can be created: {study.parameters.dimension} parameters are shared\n")
        sys.stdout.write(_spends_as_text(spends))


@app.command()
def watch(name: NameArgument, config: ConfigOption, json_output: JsonLinesOption = False) -> None:
    """Follow a study until it ends: this site's rounds as they are recorded, and the servers' state.

    Ends with status 3 when the study did not end as asked: failed, or trained alone.
    """
    settings = load_settings(config)
    log_to_stderr()
    if not follow(settings, name, json_output=json_output):
        raise typer.Exit(EXIT_NOT_AS_ASKED)


@app.command()
def summary(
    name: NameArgument,
    config: ConfigOption,
    json_output: JsonLinesOption = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="Comma-separated lines on standard output.")] = False,
    scaling: Annotated[
        Path | None, typer.Option(help="Write pooled means and SDs here, for 'moiety data prepare --scaling'.")
    ] = None,
) -> None:
    """Table one over all sites, as their summaries were summed: at the requester, or at any site that took part."""
    state_dir = load_settings(config).state_dir
    show_summary(state_dir, name, json_output=json_output, csv_output=csv_output, scaling=scaling)


@app.command()
def ranking(
    config: ConfigOption,
    name: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="Its name; without it, all that were ranked.")
    ] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Show the sites by transfer loss: whose data resemble the requester's, in a study that ranks."""
    show_rankings(load_settings(config).state_dir, name, json_output=json_output)


@app.command()
def verify(
    transcripts: Annotated[
        list[Path], typer.Argument(metavar="TRANSCRIPT...", help="Folders of a study's transcripts, or single ones.")
    ],
    roster: Annotated[Path, typer.Option(help="The signed roster of the study's federation.")],
    json_output: JsonLinesOption = False,
) -> None:
    """Find deviations in signed messages that sites kept; ends with status 3 where anybody deviated."""
    found, count = verified(transcripts, roster)
    (_findings_as_json if json_output else _findings_as_text)(found, count)
    if found.deviations:
        raise typer.Exit(EXIT_NOT_AS_ASKED)


@app.command()
def cancel(
    name: NameArgument,
    config: ConfigOption,
    reason: Annotated[str, typer.Option(help="Shown to every site.")],
    json_output: JsonLinesOption = False,
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
        json_line({"study": name, "state": "cancelled", "reason": reason})
    else:
        sys.stdout.write(f"study {name} is cancelled at both servers\n")


def _findings_as_json(found: Findings, transcripts: int) -> None:
    for one in found.deviations:
        json_line({"round": one.round, "parties": list(one.parties), "deviation": one.what})
    for text in found.unproven:
        json_line({"unproven": text})
    json_line({"transcripts": transcripts, "signatures": found.looked_at, "deviations": len(found.deviations)})


def _findings_as_text(found: Findings, transcripts: int) -> None:
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


def _spends_as_json(spends: ForeseenEpsilon | None) -> dict[str, object]:
    return {} if spends is None else {"privacy": asdict(spends)}


def _spends_as_text(spends: ForeseenEpsilon | None) -> str:
    return "" if spends is None else f"its noise: {spends.words}\n"


def _tried(study: Study, settings: AgentSettings, finish: FinishTable | None) -> tuple[str, ...]:
    """Try what the agent would find out once the study is queued. Raises: ConfigurationError"""
    if not settings.data.exists():
        raise ConfigurationError(f"key 'data': {settings.data} does not exist; put this site's training data there")
    from client_agent.learning.trial import try_study

    return try_study(study, settings.data, settings.plugin, settings.device, settings.sources, finish)


def _withdraw(site: Site, name: str, json_output: bool) -> None:
    """A study that no server has: out of the outbox, or marked in the journal so that the agent leaves it alone."""
    journal = site.settings.state_dir / "studies" / name
    if not withdraw(site.settings.state_dir, name):
        if not (journal / "study.json").exists():
            raise UnknownStudy(f"no study {name!r} is here or at the servers; look at its name")
        StudyJournal(site.settings.state_dir, name).withdraw()
    if json_output:
        json_line({"study": name, "state": "withdrawn"})
    else:
        sys.stdout.write(f"study {name} had not reached the servers; it is withdrawn here\n")


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
