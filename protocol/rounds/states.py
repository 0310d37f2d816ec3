"""States of a round at one server, and the tables of its and a study's transitions (docs/protocol.md 4, 7, 8, 11).

    announced -> collecting -> locked -> measured -> released
         \\____________\\__________\\________\\-> skipped      (never after a release)
                                  \\-> burnt -> announced     (the next attempt, never after an opening has left)

    With tags, nothing is served of a measured round before the requester's go: measured -> committed -> released, or
    committed -> skipped. What is served is fixed by then (docs/protocol.md 15).

    A ranking releases nothing: locked or measured -> ranked, and never skipped by a server that has measured it. A
    measurement of updates likewise: locked or measured -> closed.

    Under CKKS side B collects nothing and signs A's set: announced -> measured. A has nothing to measure either.

A study is open or paused until it is completed, local_only, cancelled or failed, for ever.

``Attempt.after`` and ``study_step`` refuse what the tables do not list; whoever sends the event learns which states
take it.

There is one frozen type per state. A state follows from what is stored, so after a restart it is the same one.
``Tossed`` alone lives between two messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from protocol.errors import WrongRound
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    CollectedContribution,
    Go,
    OutputCommitment,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    StudyState,
    SumRelease,
    TagCheck,
    TagsFailed,
)


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


def study_step(state: StudyState, event: StudyEvent) -> StudyState:
    """The study's next state; WrongRound when it takes no such event (any more)."""
    following = STUDY_TRANSITIONS.get((state, event))
    if following is None:
        raise WrongRound(f"the study is {state}; '{event}' is not possible")
    return following


@dataclass(frozen=True)
class RoundKey:
    """One attempt of one round."""

    study: str
    round: int
    attempt: int

    @property
    def label(self) -> str:
        """The same text at both servers, never used for another attempt."""
        return f"{self.study} round {self.round} attempt {self.attempt}"


@dataclass(frozen=True)
class Attempt:
    """An attempt from its announcement on; ``state`` as the table of transitions names it."""

    key: RoundKey
    state: RoundState
    announcement: Announcement
    closes_at_s: float

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES

    def after(self, event: RoundEvent) -> RoundState:
        """The next state; WrongRound names the states in which the event is welcome."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            welcome = ", ".join(sorted(s for s, e in TRANSITIONS if e is event))
            raise WrongRound(f"round {self.key.round} is {self.state}; '{event}' is possible only when {welcome}")
        return state


# --- side A -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OfAttempt:
    attempt: Attempt


@dataclass(frozen=True)
class Collecting(_OfAttempt):
    """``absent`` sites declined or were removed. ``contributors`` is empty until everybody may have answered."""

    contributors: frozenset[str]
    absent: frozenset[str]


@dataclass(frozen=True)
class Locked(_OfAttempt):
    """A has signed which contributions count, and drawn n_A."""

    agreed: Signed[AgreedSet]
    own_nonce: bytes = field(repr=False)


@dataclass(frozen=True)
class Tossed:
    """B has signed the set too and shown n_B; the transcript is not signed yet. Lost in a restart, and made again."""

    agreed: Signed[AgreedSet]
    transcript: ChallengeTranscript


class AwaitingQueries(_OfAttempt):
    """Set and challenge are signed by both; the requester's queries are missing."""


class Measuring(_OfAttempt):
    """All is there that the products need."""


class Spent(_OfAttempt):
    """Correlations of the locked attempt are marked as used, and the process that had them is gone."""


@dataclass(frozen=True)
class Countersigning(_OfAttempt):
    """A round of ciphertexts: A has signed the set, B has not."""

    agreed: Signed[AgreedSet]


class Measured(_OfAttempt):
    """A's opening is stored; under CKKS, both have signed the set."""


@dataclass(frozen=True)
class Chosen(_OfAttempt):
    """The requester's release set is here, and nothing that was made of it has left."""

    release_set: Signed[ReleaseSet]


@dataclass(frozen=True)
class Masked(_OfAttempt):
    """The mask is drawn: A's sum over this release set may have left."""

    release_set: Signed[ReleaseSet]


@dataclass(frozen=True)
class Committed(_OfAttempt):
    """A round with tags: both sides have fixed what they would serve, and nothing is served. Go is missing."""

    committed_at_s: float


@dataclass(frozen=True)
class Gone(_OfAttempt):
    """Go is stored: A signs no skip any more, and serves once B has it too."""

    go: Signed[Go]


class TagsWrong(_OfAttempt):
    """The requester says, over both sides' checks, that the sum's tags are wrong."""


@dataclass(frozen=True)
class SumSigned(_OfAttempt):
    """A has signed the sum of a round of ciphertexts, B has not."""

    sum_release: Signed[SumRelease]


@dataclass(frozen=True)
class Ending(_OfAttempt):
    """A has signed an end without a release, B has not; ``attempt.state`` is the state that it ends."""

    outcome: Signed[RoundOutcome]


class Over(_OfAttempt):
    """Released, or ended with both signatures."""


AtA: TypeAlias = (
    Collecting
    | Locked
    | AwaitingQueries
    | Measuring
    | Spent
    | Countersigning
    | Measured
    | Chosen
    | Masked
    | Committed
    | Gone
    | TagsWrong
    | SumSigned
    | Ending
    | Over
)


# --- what a server has signed and taken, on which its answers rest ----------------------------------------------------


@dataclass(frozen=True)
class Unlocked:
    """No set is signed; ``held`` is what this server holds, in the roster's order.

    Until the round's time is over a set must name the sites in ``awaited``, which are then none.
    """

    held: tuple[CollectedContribution, ...]
    awaited: frozenset[str]


@dataclass(frozen=True)
class SetSigned:
    """The agreed set alone, as in a round of ciphertexts."""

    agreed: Signed[AgreedSet]


@dataclass(frozen=True)
class LockSigned:
    """Set and nonce for A's commitment."""

    agreed: Signed[AgreedSet]
    own_nonce: bytes = field(repr=False)
    peer_commitment: str


@dataclass(frozen=True)
class ChallengeSigned(LockSigned):
    transcript: Signed[ChallengeTranscript]


@dataclass(frozen=True)
class Queried(ChallengeSigned):
    """All is there that the products need."""


@dataclass(frozen=True)
class Unchosen:
    """No release set is here."""


@dataclass(frozen=True)
class SetChosen:
    release_set: Signed[ReleaseSet]


@dataclass(frozen=True)
class Uncommitted:
    """Nothing that could be served is fixed; so in all rounds without tags."""


@dataclass(frozen=True)
class HalfCommitted:
    """The state in which this server's half of the output is fixed and signed."""

    commitment: Signed[OutputCommitment]


@dataclass(frozen=True)
class HalfChecked(HalfCommitted):
    """This server has seen the seed of the tags, and signed by how much those of its half are off."""

    check: Signed[TagCheck]


@dataclass(frozen=True)
class Judged(HalfChecked):
    """The requester's verdict on both servers' checks. A go alone releases nothing: A has to hand it over to B."""

    verdict: Signed[Go] | Signed[TagsFailed]


@dataclass(frozen=True)
class Undecided:
    """This server has signed no end."""


@dataclass(frozen=True)
class SumAgreed:
    sum_release: Signed[SumRelease]


@dataclass(frozen=True)
class EndAgreed:
    outcome: Signed[RoundOutcome]


@dataclass(frozen=True)
class Standing:
    """The progress of lock and challenge, release set, own half of the output and end, each for itself.

    What was signed stays signed at the end.
    """

    attempt: Attempt
    toss: Unlocked | SetSigned | LockSigned | ChallengeSigned | Queried
    choice: Unchosen | SetChosen
    end: Undecided | SumAgreed | EndAgreed
    half: Uncommitted | HalfCommitted | HalfChecked | Judged = Uncommitted()
