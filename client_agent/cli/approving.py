"""``moiety agent studies``, ``show``, ``approve`` and ``decline``."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import typer

from client_agent.cli.lines import json_line
from client_agent.cli.tables import add_row, console, table
from client_agent.settings import AgentSettings
from client_agent.site.approval import Approval, approval_of, give
from client_agent.site.identity import load_identity
from client_agent.site.journal import STOPPED, StudyJournal
from client_agent.study.plain_words import in_plain_words
from protocol.errors import ConfigurationError
from protocol.printable import printable
from protocol.wire.messages import Signed, Study


@dataclass(frozen=True)
class Word:
    """What a person says on the command line."""

    approved: bool
    person: str
    reason: str = ""
    sure: bool = False


def list_studies(settings: AgentSettings, *, json_output: bool) -> None:
    """Every study that this site knows, and what it waits for."""
    roster, _ = load_identity(settings)
    own = settings.site == roster.requester
    shown = table("study", "state at this site", "digest")
    for folder in sorted((settings.state_dir / "studies").glob("*/study.json")):
        study, journal = _known(settings, folder.parent.name)
        state = _state(journal, study, asks=settings.approve == "manual" and not own)
        if json_output:
            json_line({"study": study.name, "state": state, "digest": study.digest()})
        else:
            add_row(shown, study.name, state, study.digest()[:16])
    if not json_output:
        console().print(shown)


def show_study(settings: AgentSettings, name: str, *, json_output: bool) -> Study:
    """Everything that a study would open and to whom, in plain words."""
    roster, _ = load_identity(settings)
    study, _ = _known(settings, name)
    statements = in_plain_words(study, roster, settings.policy)
    if json_output:
        said = [one.model_dump() for one in statements]
        json_line({"study": name, "digest": study.digest(), "statements": said})
        return study
    shown = table("", f"study {name}, digest {study.digest()}")
    for one in statements:
        add_row(shown, one.about, one.words)
    console().print(shown)
    return study


def say(settings: AgentSettings, name: str, word: Word) -> None:
    """Show the study, ask once more, and keep the word. Raises: ConfigurationError"""
    roster, _ = load_identity(settings)
    if settings.site == roster.requester:
        raise ConfigurationError(f"this site asked for study {name!r}; 'moiety study create' was its word")
    study = show_study(settings, name, json_output=False)
    _, journal = _known(settings, name)
    state = journal.site_state()
    if state is not None and state.over:
        raise ConfigurationError(f"study {name!r} is over at this site ({printable(state.finished or '')})")
    yes = "approve" if word.approved else "decline"
    if not word.sure:
        typer.confirm(f"{word.person}: {yes} study {name} for {settings.site}?", abort=True)
    journal_word = Approval(
        study=name,
        study_digest=study.digest(),
        approved=word.approved,
        person=word.person,
        reason=word.reason,
        time_s=time.time(),
    )
    give(settings.state_dir, journal, journal_word)
    if not word.approved:
        journal.leave(word.reason)
    sys.stdout.write(f"study {name}: {yes}d by {printable(word.person)}; the agent goes by it within seconds\n")


def _known(settings: AgentSettings, name: str) -> tuple[Study, StudyJournal]:
    path: Path = settings.state_dir / "studies" / name / "study.json"
    if not path.exists():
        raise ConfigurationError(
            f"this site knows no study {name!r}: its agent finds studies at the servers while it runs, those of "
            "'studies' in its settings"
        )
    journal = StudyJournal(settings.state_dir, name)
    signed = journal.read(path, Signed[Study])
    if signed is None:
        raise ConfigurationError(f"{path} is empty; restore it from a backup")
    return signed.message, journal


def _state(journal: StudyJournal, study: Study, *, asks: bool) -> str:
    state, left = journal.site_state(), journal.left
    if state is not None and state.over:
        return f"over: {state.finished}"
    if left is not None:
        return "left by this site"
    if asks and approval_of(journal, study.digest()) is None:
        return f"waits for a person: moiety agent approve {study.name}"
    if (journal.folder / STOPPED).exists():
        return f"stopped: {(journal.folder / STOPPED).read_text(encoding='utf-8')}"
    return "runs"
