"""The studies that a site's journal knows, what each waits for, and a person's word on one of them.

For the command line and the site's page, beside the agent that runs: both read the journal, and write words alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

from client_agent.settings import AgentSettings
from client_agent.site.approval import Approval, approval_of, give
from client_agent.site.identity import load_identity
from client_agent.site.journal import STOPPED, StudyJournal
from host.audit_log import AGENT, Action, AuditLog
from protocol.errors import ConfigurationError
from protocol.messages.control import Roster, Signed, Study
from protocol.messages.letter import told
from protocol.text import printable


@dataclass(frozen=True)
class Word:
    """A person's word on a study, in the words of the command line or a form."""

    approved: bool
    person: str
    reason: str = ""
    until: date | None = None
    """The last day on which this site takes part; None: the study's end."""


@dataclass(frozen=True)
class KnownStudy:
    """``waits``: a person has not said yes or no; ``stopped``: why the agent stopped it until something is mended.

    ``left`` and ``paused`` are the reasons of whoever took this site out of the study or paused it; None otherwise.
    """

    study: Study
    journal: StudyJournal
    waits: bool
    over: bool
    left: str | None
    paused: str | None
    stopped: str
    finished: str

    @property
    def may_go(self) -> bool:
        """Return whether nothing of it is needed here any more: it is over, was never begun, or this site left it."""
        return self.over or self.left is not None or self.journal.is_withdrawn

    @property
    def state(self) -> str:
        """In one line, for people."""
        if self.over:
            return f"over: {self.finished}"
        if self.left is not None:
            return "left by this site"
        if self.waits:
            return f"waits for a person: moiety agent approve {self.study.name}"
        if self.paused is not None:
            return f"paused here ({self.paused}): moiety agent resume {self.study.name}"
        return f"stopped: {self.stopped}" if self.stopped else "runs"


def known_studies(settings: AgentSettings, roster: Roster) -> Iterator[KnownStudy]:
    """Return studies by name. Raises: ConfigurationError for a journal that cannot be read"""
    for name in known_names(settings):
        yield known_study(settings, roster, name)


def known_names(settings: AgentSettings) -> tuple[str, ...]:
    """Return the names of all studies here, in order, whether their journals can be read or not."""
    return tuple(path.parent.name for path in sorted((settings.state_dir / "studies").glob("*/study.json")))


def known_study(settings: AgentSettings, roster: Roster, name: str) -> KnownStudy:
    """Raises: ConfigurationError, also where this site knows no study of that name"""
    if not (settings.state_dir / "studies" / name / "study.json").exists():
        raise ConfigurationError(
            f"this site knows no study {name!r}: its agent finds studies at the servers while it runs, those of "
            "'studies' in its settings"
        )
    journal = StudyJournal(settings.state_dir, name)
    signed = journal.read(journal.folder / "study.json", Signed[Study])
    if signed is None:
        raise ConfigurationError(f"{journal.folder / 'study.json'} is empty; restore it from a backup")
    study, state, stopped = signed.message, journal.site_state(), journal.folder / STOPPED
    asks = settings.approve == "manual" and settings.site != roster.requester
    return KnownStudy(
        study=study,
        journal=journal,
        waits=asks and approval_of(journal, study.digest()) is None,
        over=state is not None and state.over,
        left=journal.left,
        paused=journal.paused,
        stopped=stopped.read_text(encoding="utf-8", errors="replace") if stopped.exists() else "",
        finished=(state.finished or "") if state is not None else "",
    )


def keep_word(settings: AgentSettings, name: str, word: Word, digest: str) -> None:
    """A yes or no to the study of this digest, for the agent that runs or starts next. Raises: ConfigurationError"""
    roster, _ = load_identity(settings)
    if settings.site == roster.requester:
        raise ConfigurationError(f"this site asked for study {name!r}; 'moiety study create' was its word")
    known = known_study(settings, roster, name)
    if known.over:
        raise ConfigurationError(f"study {name!r} is over at this site ({printable(known.finished)})")
    if known.study.digest() != digest:
        raise ConfigurationError(f"study {name!r} is another one than was shown: look at it again")
    if not word.person.strip():
        raise ConfigurationError("a word on a study needs the name of the person who gives it")
    if word.until is not None and word.until < datetime.now(UTC).date():
        raise ConfigurationError(f"option --until: {word.until} has passed; give the permit's last day")
    found = Approval(
        study=name,
        study_digest=digest,
        approved=word.approved,
        person=word.person.strip(),
        reason=word.reason,
        time_s=time.time(),
        until=word.until,
    )
    give(settings.state_dir, known.journal, found, audit_of(settings))
    if not word.approved:
        known.journal.leave(word.reason)


def pause_study(settings: AgentSettings, name: str, person: str, reason: str) -> None:
    """This site neither trains nor contributes until it is resumed, restarts included. Raises: ConfigurationError"""
    known = _under_way(settings, name)
    if not person.strip():
        raise ConfigurationError("a pause needs the name of the person who asks for it")
    said = f"{person.strip()}: {reason}" if reason else person.strip()
    _note(settings, known, Action.PAUSED, person, reason)
    known.journal.pause(told(said))


def leave_study(settings: AgentSettings, name: str, person: str, reason: str) -> None:
    """This site contributes to no further round, for good. Raises: ConfigurationError"""
    known = _under_way(settings, name, f"end it with 'moiety study cancel {name}'")
    _note(settings, known, Action.LEFT, person or AGENT, reason)
    known.journal.leave(told(f"{person.strip()}: {reason}" if person.strip() else reason))


def resume_study(settings: AgentSettings, name: str) -> None:
    """Resume a study: from the next round on this site takes part again. Raises: ConfigurationError"""
    known = _under_way(settings, name)
    if known.paused is None:
        raise ConfigurationError(f"study {name!r} is not paused at this site")
    _note(settings, known, Action.RESUMED)
    known.journal.resume()


def note_created(settings: AgentSettings, study: Study) -> None:
    """At the requester, before its agent takes the study up."""
    audit_of(settings).add(Action.STUDY_CREATED, study=study.name, study_digest=study.digest())


def note_exported(settings: AgentSettings, study: Study, into: str, model_sha256: str) -> None:
    """A model of it was written for people, into a folder of this name."""
    said = f"into {into}, SHA-256 of the values {model_sha256}"
    audit_of(settings).add(Action.MODEL_EXPORTED, said, study=study.name, study_digest=study.digest())


def audit_of(settings: AgentSettings) -> AuditLog:
    """This site's, in its state folder."""
    return AuditLog(settings.state_dir, settings.site)


def _note(settings: AgentSettings, known: KnownStudy, action: Action, person: str = AGENT, reason: str = "") -> None:
    study = known.study
    audit_of(settings).add(action, reason, actor=person.strip(), study=study.name, study_digest=study.digest())


def _under_way(
    settings: AgentSettings, name: str, instead: str = "stop its agent to pause it, start it to go on"
) -> KnownStudy:
    """``instead`` is what a requester does. Raises: ConfigurationError"""
    roster, _ = load_identity(settings)
    if settings.site == roster.requester:
        raise ConfigurationError(f"this site asked for study {name!r}: {instead}")
    known = known_study(settings, roster, name)
    if known.over:
        raise ConfigurationError(f"study {name!r} is over at this site ({printable(known.finished)})")
    if known.left is not None:
        raise ConfigurationError(f"this site has left study {name!r} for good")
    return known
