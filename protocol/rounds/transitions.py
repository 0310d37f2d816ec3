"""A round's and a study's life as tables of transitions; no I/O (docs/protocol.md 4, 7, 8, 9).

    announced -> collecting -> locked -> measured -> released
         \\____________\\__________\\________\\-> skipped      (never after a release)
                                  \\-> burnt -> announced     (the next attempt, never after an opening has left)

    With tags, nothing is served of a measured round before the requester's go: measured -> committed -> released, or
    committed -> skipped. What is served is fixed by then (docs/protocol.md 15).

    A ranking releases nothing: locked or measured -> ranked, and never skipped by a server that has measured it. A
    measurement of updates likewise: locked or measured -> closed.

    Under CKKS side B collects nothing and signs A's set: announced -> measured. A has nothing to measure either.

A study is open or paused until it is completed, local_only, cancelled or failed, for ever.

``step`` and ``study_step`` refuse what the tables do not list; whoever sends the event learns which states take it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from protocol.errors import WrongRound
from protocol.wire.messages import RoundState, StudyState


class RoundEvent(StrEnum):
    CONTRIBUTION_STORED = "contribution_stored"
    LOCKED = "locked"
    AGREED = "agreed"
    MEASURED = "measured"
    COMMITTED = "committed"
    RELEASED = "released"
    RANKED = "ranked"
    CLOSED = "closed"
    SKIPPED = "skipped"
    BURNT = "burnt"
    RETRIED = "retried"


TRANSITIONS: Final[dict[tuple[RoundState, RoundEvent], RoundState]] = {
    (RoundState.ANNOUNCED, RoundEvent.CONTRIBUTION_STORED): RoundState.COLLECTING,
    (RoundState.COLLECTING, RoundEvent.CONTRIBUTION_STORED): RoundState.COLLECTING,
    (RoundState.COLLECTING, RoundEvent.LOCKED): RoundState.LOCKED,
    (RoundState.ANNOUNCED, RoundEvent.AGREED): RoundState.MEASURED,
    (RoundState.LOCKED, RoundEvent.MEASURED): RoundState.MEASURED,
    (RoundState.MEASURED, RoundEvent.RELEASED): RoundState.RELEASED,
    (RoundState.MEASURED, RoundEvent.COMMITTED): RoundState.COMMITTED,
    (RoundState.COMMITTED, RoundEvent.RELEASED): RoundState.RELEASED,
    (RoundState.LOCKED, RoundEvent.RANKED): RoundState.RANKED,
    (RoundState.MEASURED, RoundEvent.RANKED): RoundState.RANKED,
    (RoundState.LOCKED, RoundEvent.CLOSED): RoundState.CLOSED,
    (RoundState.MEASURED, RoundEvent.CLOSED): RoundState.CLOSED,
    (RoundState.ANNOUNCED, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.COLLECTING, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.LOCKED, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.MEASURED, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.COMMITTED, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.LOCKED, RoundEvent.BURNT): RoundState.BURNT,
    (RoundState.BURNT, RoundEvent.RETRIED): RoundState.ANNOUNCED,
}


class StudyEvent(StrEnum):
    REQUESTER_STAYED_AWAY = "requester_stayed_away"
    ANNOUNCED = "announced"
    COMPLETED = "completed"
    LOCAL_ONLY = "local_only"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS: Final = {
    StudyEvent.COMPLETED: StudyState.COMPLETED,
    StudyEvent.LOCAL_ONLY: StudyState.LOCAL_ONLY,
    StudyEvent.CANCELLED: StudyState.CANCELLED,
    StudyEvent.FAILED: StudyState.FAILED,
}
STUDY_TRANSITIONS: Final[dict[tuple[StudyState, StudyEvent], StudyState]] = {
    (StudyState.OPEN, StudyEvent.REQUESTER_STAYED_AWAY): StudyState.PAUSED,
    (StudyState.OPEN, StudyEvent.ANNOUNCED): StudyState.OPEN,
    (StudyState.PAUSED, StudyEvent.ANNOUNCED): StudyState.OPEN,
    **{(state, event): end for state in (StudyState.OPEN, StudyState.PAUSED) for event, end in _ENDS.items()},
}
FINAL_STATES: Final = frozenset({RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED})


@dataclass(frozen=True)
class RoundProgress:
    """The progress of a round on one server."""

    round: int
    attempt: int
    state: RoundState

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES


def open_round(number: int) -> RoundProgress:
    """A freshly announced round."""
    return RoundProgress(round=number, attempt=1, state=RoundState.ANNOUNCED)


def step(progress: RoundProgress, event: RoundEvent) -> RoundProgress:
    """The next progress; WrongRound names the states in which the event is welcome."""
    state = TRANSITIONS.get((progress.state, event))
    if state is None:
        welcome = ", ".join(sorted(s for s, e in TRANSITIONS if e is event))
        raise WrongRound(f"round {progress.round} is {progress.state}; '{event}' is possible only when {welcome}")
    attempt = progress.attempt + (event is RoundEvent.RETRIED)
    return replace(progress, state=state, attempt=attempt)


def study_step(state: StudyState, event: StudyEvent) -> StudyState:
    """The study's next state; WrongRound when it takes no such event (any more)."""
    following = STUDY_TRANSITIONS.get((state, event))
    if following is None:
        raise WrongRound(f"the study is {state}; '{event}' is not possible")
    return following


def transition_diagram() -> str:
    """A round's table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> announced"]
    lines += [f"    {old} --> {new}: {event}" for (old, event), new in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in sorted(FINAL_STATES)]
    return "\n".join(lines)


def study_diagram() -> str:
    """A study's table, likewise."""
    lines = ["stateDiagram-v2", "    [*] --> open"]
    lines += [f"    {old} --> {new}: {event}" for (old, event), new in STUDY_TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in sorted(s for s in StudyState if s.ended)]
    return "\n".join(lines)
