"""The state and the outcome of a study by this site's own records, in words and as an exit status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from client_agent.requester.state import RequesterState
from client_agent.settings import AgentSettings
from client_agent.site.events import RoundEnd, RoundRecord, SiteValue
from client_agent.site.journal import STOPPED, StudyJournal
from client_agent.study.outbox import REFUSAL, queued
from protocol.errors import ConfigurationError
from protocol.messages.control import EndCause, Signed, Study, StudyEnd, StudyState
from protocol.text import printable

EXIT_NOT_AS_ASKED: Final = 3
_MEANT: Final = frozenset({EndCause.NO_CONTRIBUTOR_NEEDED, EndCause.CANCELLED})


class Standing(Protocol):
    """The state of a study, as a server's view has it or this site's own state folder."""

    @property
    def study(self) -> str: ...
    @property
    def state(self) -> StudyState: ...
    @property
    def reason(self) -> str: ...
    @property
    def end(self) -> Signed[StudyEnd] | None: ...


class Federated(StrEnum):
    """The federated part of a study's training, as this site recorded it."""

    WHOLLY = "wholly"
    PARTLY = "partly"
    NOT = "not"


def sums_of(records: tuple[RoundRecord, ...]) -> int:
    """Return the number of sums that stepped the model; of a study that trains none, of those that were opened."""
    trains = any(record.purpose.plan.steps_model for record in records)
    released = [record for record in records if record.state is RoundEnd.RELEASED]
    return len([record for record in released if record.purpose.plan.steps_model or not trains])


def of_sites(
    records: tuple[RoundRecord, ...], values: Callable[[RoundRecord], tuple[SiteValue, ...]]
) -> Iterator[tuple[str, int, float]]:
    """A value of each site in each round, of what the requester alone has in its records."""
    return ((one.site, record.round, one.value) for record in records for one in values(record))


def federated(view: Standing, records: tuple[RoundRecord, ...]) -> Federated:
    """Judge by the study's end and this site's own records."""
    if not sums_of(records):
        return Federated.NOT
    return Federated.WHOLLY if view.state is StudyState.COMPLETED else Federated.PARTLY


def outcome_text(view: Standing, records: tuple[RoundRecord, ...], *, at_requester: bool) -> str:
    """Describe a study that did not end as asked; empty for one that did, cancelled ones included."""
    how, meant = federated(view, records), view.end is not None and view.end.message.cause in _MEANT
    if how is Federated.WHOLLY or meant:
        return ""
    why = f" ({printable(view.reason)})" if view.reason else ""
    ended = f"study {view.study} is {view.state.value}{why}"
    alone = [record.round for record in records if record.state is RoundEnd.ALONE]
    if how is Federated.NOT and not at_requester:
        return f"NOT IN ANY SUM: {ended}, and this site took part in none of its sums"
    if how is Federated.NOT:
        of_whom = "the model is of this site's own data alone" if alone else "there is no model of the sites together"
        return f"NOT FEDERATED: {ended}, and no sum was made; {of_whom}"
    text = f"FEDERATED IN PART: {ended}, after {sums_of(records)} sums"
    if not alone:
        return text
    return (
        f"{text}; from round {alone[0]} on the model was trained on this site's own data alone. The last shared model "
        f"is kept: moiety model export {view.study} --federated"
    )


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
