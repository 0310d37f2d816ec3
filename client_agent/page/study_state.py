"""The state and the outcome of a study by this site's own records, in words and as an exit status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from client_agent.requester.study import RequesterState
from client_agent.settings import AgentSettings
from client_agent.site.events import RoundEnd, RoundRecord, SiteValue
from client_agent.study.approval import known_names, known_study
from client_agent.study.outbox import REFUSAL, queued
from protocol.errors import ConfigurationError
from protocol.messages.control import EndCause, Roster, Signed, Study, StudyEnd, StudyState, StudyView
from protocol.text import printable

EXIT_NOT_AS_ASKED: Final = 3
_MEANT: Final = frozenset({EndCause.NO_CONTRIBUTOR_NEEDED, EndCause.CANCELLED})


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


def federated(view: Stand | StudyView, records: tuple[RoundRecord, ...]) -> Federated:
    """Judge by the study's end and this site's own records."""
    if not sums_of(records):
        return Federated.NOT
    return Federated.WHOLLY if view.state is StudyState.COMPLETED else Federated.PARTLY


def outcome_text(view: Stand | StudyView, records: tuple[RoundRecord, ...], *, at_requester: bool) -> str:
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


def stand_of(settings: AgentSettings, roster: Roster, name: str) -> Stand:
    """Raises: ConfigurationError where neither the journal nor the outbox has a study of that name"""
    if name not in known_names(settings):
        return _in_outbox(settings, name)
    known = known_study(settings, roster, name)
    own = known.journal.read(known.journal.folder / "requester.json", RequesterState)
    end = known.end or (None if own is None else own.end)
    if end is None:
        words, why = known.standing
        return Stand(known.study, words, printable(why))
    ended = end.message.state.value
    goes_on = ", this site goes on alone" if own is not None and own.alone and not known.over else ""
    why = "" if own is None else own.why.removeprefix(f"{ended}: ")
    return Stand(known.study, ended.replace("_", " ") + goes_on, why, end)


def _in_outbox(settings: AgentSettings, name: str) -> Stand:
    path = queued(settings.state_dir, name)
    refusal = path.with_suffix(REFUSAL)
    if not path.exists():
        said = printable(refusal.read_text(encoding="utf-8")) if refusal.exists() else ""
        why = f"; this site's agent refused it: {said}" if said else ""
        raise ConfigurationError(f"key 'state_dir': {settings.state_dir} has no study {name!r}{why}")
    return Stand(Study.parse(path.read_bytes()), "queued", "this site's agent has not handed it to the servers yet")
