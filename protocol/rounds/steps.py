"""Side A's facts besides a round's state, and the steps that it may take (docs/protocol.md 4, 7, 8, 11)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from protocol.errors import MoietyError
from protocol.wire.messages import AgreedSet, Roster, RoundOutcome, SumRelease
from protocol.wire.peer_messages import CollectedSet

# --- what A knows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unasked:
    """B has not been asked anything about this state."""


@dataclass(frozen=True)
class Refused:
    """B refused what it was asked, or could not be asked, as where A cannot compute what it would ask with."""

    error: MoietyError


@dataclass(frozen=True)
class BothHold:
    """The contributions that each side holds in the attempt; in a round of ciphertexts A's list alone, twice."""

    mine: CollectedSet
    theirs: CollectedSet


@dataclass(frozen=True)
class Signature:
    """A message that B signed beside A, both signatures checked."""

    message: AgreedSet | SumRelease | RoundOutcome


FromB: TypeAlias = Unasked | Refused | BothHold | Signature


@dataclass(frozen=True)
class Facts:
    """A's facts besides the state. ``grace_s``: how long after closing it waits for queries and release set."""

    roster: Roster
    now_s: float
    grace_s: float
    attempts: int
    study_ended: bool
    peer: FromB = Unasked()


# --- what A does ------------------------------------------------------------------------------------------------------


class Act(Enum):
    """Steps that need no more than the state."""

    REST = auto()
    """The round is over."""
    LOOK_AGAIN = auto()
    """Something may have changed meanwhile."""
    COMPARE = auto()
    """Ask B what it holds."""
    READ_OWN = auto()
    """List what A holds: nobody else does."""
    TOSS = auto()
    """B's signature under the set, then the coin toss; both are stored with B's signature under the challenge."""
    MULTIPLY = auto()
    """Mark correlations as used, exchange masked vectors, store the opening."""
    SEND_AGAIN = auto()
    """The same masked vectors: B waits for queries, or was away; or A could not compute them."""
    COUNTERSIGN = auto()
    """Have B sign what A has signed: the set, the sum or the end."""
    TAKE = auto()
    """B has signed it: store both signatures, and the state that follows."""
    TAKE_ALONE = auto()
    """B will not release either: the skip stands with A's signature."""
    HAND_OVER = auto()
    """The release set to B, then the masked sum to or from it."""
    HAND_OVER_GO = auto()
    """The requester's go to B, which serves from then on; then A serves too."""
    SUM_UP = auto()
    """The release set to B, then add up the ciphertexts and sign the sum."""
    ADOPT = auto()
    """Take B's release set in place of A's, and record the requester's conflict."""


@dataclass(frozen=True)
class Wait:
    """Wait for a change, until a time."""

    until_s: float


@dataclass(frozen=True)
class AwaitReleaseSet:
    """Wait for a change, for so long; then ask B whether it has the set."""

    for_s: float


@dataclass(frozen=True)
class AwaitGo:
    """Likewise for the requester's go."""

    for_s: float


@dataclass(frozen=True)
class Lock:
    """Sign these contributions, draw a nonce if a challenge follows, and delete those of earlier rounds."""

    agreed: AgreedSet
    tosses: bool


@dataclass(frozen=True)
class End:
    """Sign this, durably, and then have B sign it."""

    outcome: RoundOutcome


@dataclass(frozen=True)
class TryLater:
    """B is not ready."""

    detail: str


@dataclass(frozen=True)
class Halt:
    """B breaks the protocol, or a bug does: nothing follows before people have looked."""

    detail: str


Step: TypeAlias = Act | Wait | AwaitReleaseSet | AwaitGo | Lock | End | TryLater | Halt
