"""The state of a study by this site's own state folder: from the outbox to its signed end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from client_agent.requester.state import RequesterState
from client_agent.settings import AgentSettings
from client_agent.site.journal import STOPPED, StudyJournal
from client_agent.site.outbox import REFUSAL, queued
from protocol.errors import ConfigurationError
from protocol.messages.control import Signed, Study, StudyEnd, StudyState
from protocol.text import printable


@dataclass(frozen=True)
class Stand:
    """``words`` are the state in a word or two; ``why`` the whole reason, for this site's people."""

    asked: Study
    words: str
    why: str = ""
    end: Signed[StudyEnd] | None = None

    @property
    def study(self) -> str:
        return self.asked.name

    @property
    def state(self) -> StudyState:
        """As the requester signed it; open before that."""
        return StudyState.OPEN if self.end is None else StudyState(self.end.message.state.value)

    @property
    def reason(self) -> str:
        return self.why or ("" if self.end is None else self.end.message.reason)


def stand_of(settings: AgentSettings, name: str) -> Stand:
    """Raises: ConfigurationError where neither the journal nor the outbox has a study of that name"""
    if not (settings.state_dir / "studies" / name / "study.json").exists():
        return _in_outbox(settings, name)
    journal = StudyJournal(settings.state_dir, name)
    signed = journal.read(journal.folder / "study.json", Signed[Study])
    if signed is None:
        raise ConfigurationError(f"{journal.folder / 'study.json'} is empty; restore it from a backup")
    return _begun(signed.message, journal)


def _in_outbox(settings: AgentSettings, name: str) -> Stand:
    path = queued(settings.state_dir, name)
    refusal = path.with_suffix(REFUSAL)
    if not path.exists():
        why = f"; this site's agent refused it: {_text(refusal)}" if refusal.exists() else ""
        raise ConfigurationError(f"key 'state_dir': {settings.state_dir} has no study {name!r}{why}")
    return Stand(Study.parse(path.read_bytes()), "queued", "this site's agent has not handed it to the servers yet")


def _begun(study: Study, journal: StudyJournal) -> Stand:
    state, own = journal.site_state(), journal.read(journal.folder / "requester.json", RequesterState)
    end = state.ended_by if state is not None else None
    end = end or (None if own is None else own.end)
    if end is not None:
        goes_on = own is not None and own.alone and not (state is not None and state.over)
        ended = end.message.state.value
        why = "" if own is None else own.why.removeprefix(f"{ended}: ")
        words = ended.replace("_", " ")
        return Stand(study, f"{words}, this site goes on alone" if goes_on else words, why, end)
    stopped = journal.folder / STOPPED
    if journal.is_withdrawn:
        return Stand(study, "withdrawn", "it was cancelled before a server had it")
    if journal.left is not None:
        return Stand(study, "left by this site", printable(journal.left))
    if stopped.exists():
        return Stand(study, "stopped", _text(stopped))
    if state is not None and state.finished is not None:
        return Stand(study, "over at this site", printable(state.finished))
    return Stand(study, "under way")


def _text(path: Path) -> str:
    return printable(path.read_text(encoding="utf-8"))
