"""The outcome of an ended study: whether it was federated, in words and as an exit status."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from client_agent.site.events import RoundEnd, RoundRecord
from protocol.messages.control import EndCause, Signed, StudyEnd, StudyState
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
