"""A round's life as one table of transitions; no I/O (docs/protocol.md 4, 7, 8, 9).

    announced -> collecting -> locked -> measured -> released
         \\____________\\__________\\________\\-> skipped      (never after a release)
                                  \\-> burnt -> announced     (the next attempt, never after an opening has left)

``step`` refuses what the table does not list; whoever sends the event learns which states take it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from protocol.errors import ConflictingMessage, MalformedMessage, WrongRound
from protocol.wire.messages import Announcement, RoundState, StudyState


class RoundEvent(StrEnum):
    CONTRIBUTION_STORED = "contribution_stored"
    LOCKED = "locked"
    MEASURED = "measured"
    RELEASED = "released"
    SKIPPED = "skipped"
    BURNT = "burnt"
    RETRIED = "retried"


TRANSITIONS: Final[dict[tuple[RoundState, RoundEvent], RoundState]] = {
    (RoundState.ANNOUNCED, RoundEvent.CONTRIBUTION_STORED): RoundState.COLLECTING,
    (RoundState.COLLECTING, RoundEvent.CONTRIBUTION_STORED): RoundState.COLLECTING,
    (RoundState.COLLECTING, RoundEvent.LOCKED): RoundState.LOCKED,
    (RoundState.LOCKED, RoundEvent.MEASURED): RoundState.MEASURED,
    (RoundState.MEASURED, RoundEvent.RELEASED): RoundState.RELEASED,
    (RoundState.ANNOUNCED, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.COLLECTING, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.LOCKED, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.MEASURED, RoundEvent.SKIPPED): RoundState.SKIPPED,
    (RoundState.LOCKED, RoundEvent.BURNT): RoundState.BURNT,
    (RoundState.BURNT, RoundEvent.RETRIED): RoundState.ANNOUNCED,
}
FINAL_STATES: Final = frozenset({RoundState.RELEASED, RoundState.SKIPPED})


@dataclass(frozen=True)
class RoundProgress:
    """Where a round stands on one server."""

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


def check_announcement(
    announcement: Announcement,
    study_state: StudyState,
    last: RoundProgress | None,
    last_announcement: Announcement | None,
    contributors: frozenset[str],
    least_contributors: int,
) -> bool:
    """Whether this announcement opens a new round (False: the same one again).

    WrongRound, ConflictingMessage or MalformedMessage otherwise; one announcement per round number, for ever. A
    paused study goes on with the requester's next announcement.
    """
    if last is not None and last_announcement is not None and announcement.round == last.round:
        if announcement == last_announcement:
            return False
        raise ConflictingMessage(f"round {announcement.round} has another announcement; a round is announced once")
    if study_state.ended:
        raise WrongRound(f"the study is {study_state}; no round can be announced")
    expected = 1 if last is None else last.round + 1
    if announcement.round != expected or (last is not None and not last.final):
        found = f"round {last.round} is {last.state}" if last is not None else "no round was announced yet"
        raise WrongRound(f"{found}; the next announcement is for round {expected}, found {announcement.round}")
    strangers = sorted(set(announcement.listed) - contributors)
    if strangers:
        allowed = ", ".join(sorted(contributors))
        raise MalformedMessage(f"listed, but no contributor of the roster: {', '.join(strangers)} (allowed: {allowed})")
    if announcement.least_contributors < least_contributors:
        raise MalformedMessage(
            f"least_contributors {announcement.least_contributors} is below the study's {least_contributors}"
        )
    return True


def transition_diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> announced"]
    lines += [f"    {old} --> {new}: {event}" for (old, event), new in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in sorted(FINAL_STATES)]
    return "\n".join(lines)
