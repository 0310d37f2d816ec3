"""Decide side A's next step in a round; the server carries it out (docs/protocol.md 4, 7, 8, 11, 15).

    step = due(state, facts)        what the stored state asks for
    step = due(state, facts)        asked again where B's answer decides; facts.peer is that answer

A asks B, never the other way round. Whatever a step ends in is stored before anybody hears of it, so a restart asks
``due`` once more and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias, assert_never

from protocol.errors import ErrorCode, MoietyError, ShareAltered, Unavailable, UnknownResource, WrongRound
from protocol.messages.control import (
    AgreedSet,
    OutcomeCause,
    Party,
    Roster,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
    check_signature,
    with_signature,
)
from protocol.messages.peer import CollectedSet, LockReply, LockRequest
from protocol.messages.purpose import RoundStep
from protocol.rounds.agreement import (
    Shortfall,
    agree,
    beyond_hope,
    nonce_commitment,
    shortfall,
    still_awaited,
    transcript,
)
from protocol.rounds.states import (
    AtA,
    Attempt,
    AwaitingQueries,
    Chosen,
    Collecting,
    Committed,
    Countersigning,
    Ending,
    Gone,
    Locked,
    Masked,
    Measured,
    Measuring,
    Over,
    RoundKey,
    Spent,
    SumSigned,
    TagsWrong,
    Tossed,
)
from protocol.sharing import Side

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


RELEASE_SET_POLL_S: Final = 2.0
"""B may have the release set for as long before A asks for it; so it is with go."""
OPENED_BY_BOTH: Final = {RoundState.RANKED: OutcomeCause.RANKED, RoundState.CLOSED: OutcomeCause.CLOSED}
"""Why a round that sums nothing has ended, once both sides hold their halves of what it opens."""


def due(state: AtA, facts: Facts) -> Step:
    """The next step of an attempt."""
    match state:
        case Collecting():
            step = _collect(state, facts)
        case Locked():
            step = _unless_late(state.attempt, facts, Act.TOSS)
        case Countersigning():
            step = _countersign(state, facts)
        case AwaitingQueries():
            step = _await_queries(state.attempt, facts)
        case Spent():
            step = _burn(state.attempt, facts, OutcomeCause.CORRELATIONS_LOST)
        case Measuring():
            step = _measure(state.attempt, facts)
        case Measured():
            step = _await_release_set(state.attempt, facts)
        case Chosen() | Masked() | Committed() | Gone() | TagsWrong():
            step = _release(state, facts)
        case SumSigned():
            step = _deliver_sum(state, facts)
        case Ending():
            step = _deliver_end(state, facts)
        case Over():
            step = Act.REST
        case never:
            assert_never(never)
    return step


# --- collect and lock -------------------------------------------------------------------------------------------------


def _collect(state: Collecting, facts: Facts) -> Step:
    attempt = state.attempt
    announcement = attempt.announcement
    if isinstance(facts.peer, Refused):
        if facts.now_s < attempt.closes_at_s:
            return TryLater("the peer does not know this round yet")
        return _skip(attempt, OutcomeCause.ANNOUNCED_AT_ONE_SERVER)
    if isinstance(facts.peer, BothHold):
        return _lock(state, facts, facts.peer)
    late = facts.now_s >= attempt.closes_at_s
    hopeless = None if late else beyond_hope(announcement, state.contributors, state.absent)
    if hopeless is not None:
        return _skip(attempt, hopeless)
    if late or still_awaited(announcement, facts.roster.requester, state.absent) <= state.contributors:
        return Act.COMPARE if Side.B in announcement.protection.plan.holders else Act.READ_OWN
    return Wait(attempt.closes_at_s)


def _lock(state: Collecting, facts: Facts, held: BothHold) -> Step:
    """Neither server leaves out early a site that the other one still waits for."""
    if not held.theirs.complete:
        return Act.LOOK_AGAIN
    attempt, requester = state.attempt, facts.roster.requester
    announcement, number = attempt.announcement, attempt.key.attempt
    agreed = agree(announcement, number, facts.roster, held.mine.contributions, held.theirs.contributions)
    lacking = shortfall(agreed, announcement, requester)
    late = facts.now_s >= attempt.closes_at_s
    if not late and not still_awaited(announcement, requester, state.absent) <= frozenset(agreed.sites):
        return Wait(attempt.closes_at_s)
    if lacking is not None:
        return _skip(attempt, lacking)
    return Lock(agreed, RoundStep.TOSS in announcement.protection.plan.steps)


def _unless_late(
    attempt: Attempt, facts: Facts, step: Act, cause: OutcomeCause = OutcomeCause.NOT_AGREED_IN_TIME
) -> Step:
    return _skip(attempt, cause) if facts.now_s >= _deadline_s(attempt, facts) else step


def _countersign(state: Countersigning, facts: Facts) -> Step:
    if isinstance(facts.peer, Refused):
        return TryLater("the peer does not know this round yet")
    if isinstance(facts.peer, Signature):
        same = facts.peer.message == state.agreed.message
        return Act.TAKE if same else Halt("the peer signed another set than this side's")
    return _unless_late(state.attempt, facts, Act.COUNTERSIGN)


# --- measure ----------------------------------------------------------------------------------------------------------


def _await_queries(attempt: Attempt, facts: Facts) -> Step:
    if facts.study_ended:
        return TryLater("the study has ended")
    deadline_s = _deadline_s(attempt, facts)
    return _skip(attempt, OutcomeCause.QUERIES_MISSING) if facts.now_s >= deadline_s else Wait(deadline_s)


def _measure(attempt: Attempt, facts: Facts) -> Step:
    """This side has the requester's queries, so the requester is not blamed for what B, or this side, cannot do."""
    if not isinstance(facts.peer, Refused):
        return Act.MULTIPLY
    if not isinstance(facts.peer.error, Unavailable):
        return _burn(attempt, facts, OutcomeCause.PRODUCTS_REFUSED, facts.peer.error.code)
    if facts.study_ended:
        return TryLater("the study has ended")
    return _unless_late(attempt, facts, Act.SEND_AGAIN, OutcomeCause.NOT_MEASURED_IN_TIME)


# --- release ----------------------------------------------------------------------------------------------------------


def _await_release_set(attempt: Attempt, facts: Facts) -> Step:
    plan = attempt.announcement.purpose.plan
    if not plan.summed:
        return End(outcome_of(attempt.key, plan.ends_as, OPENED_BY_BOTH[plan.ends_as]))
    left_s = _deadline_s(attempt, facts) - facts.now_s
    if isinstance(facts.peer, Refused):
        return _skip(attempt, OutcomeCause.RELEASE_SET_MISSING) if left_s <= 0 else Act.LOOK_AGAIN
    return AwaitReleaseSet(min(RELEASE_SET_POLL_S, left_s))


def _release(state: Chosen | Masked | Committed | Gone | TagsWrong, facts: Facts) -> Step:
    match state:
        case Committed():
            return _await_go(state, facts)
        case Gone():
            return _hand_over_go(state, facts)
        case TagsWrong():
            return _skip(state.attempt, OutcomeCause.TAGS_FAILED)
        case _:
            return _sum(state, facts)


def _sum(state: Chosen | Masked, facts: Facts) -> Step:
    if not isinstance(facts.peer, Refused):
        masks = RoundStep.MASK in state.attempt.announcement.protection.plan.steps
        return Act.HAND_OVER if masks else Act.SUM_UP
    return Act.ADOPT if isinstance(state, Chosen) else _another_set(state.attempt)


def _another_set(attempt: Attempt) -> Halt:
    """The requester gave each server another release set, or B says so, when A's sum may have left."""
    return Halt(
        f"{attempt.key.label}: the peer took this side's release set and now names another; this side's sum may "
        "have left, so there is no second one: end the study and compare the servers' records"
    )


def _await_go(state: Committed, facts: Facts) -> Step:
    """Its time begins when this side's half is fixed: a long vector takes its time after the release set."""
    attempt = state.attempt
    left_s = max(attempt.closes_at_s, state.committed_at_s) + facts.grace_s - facts.now_s
    if isinstance(facts.peer, Refused):
        return _skip(attempt, OutcomeCause.GO_MISSING) if left_s <= 0 else Act.LOOK_AGAIN
    return AwaitGo(max(0.0, min(RELEASE_SET_POLL_S, left_s)))


def _hand_over_go(state: Gone, facts: Facts) -> Step:
    if not isinstance(facts.peer, Refused):
        return Act.HAND_OVER_GO
    return Halt(
        f"{state.attempt.key.label}: the peer does not take the requester's go ({facts.peer.error.detail}), which this "
        "side holds: it signs no skip, and nothing is served; end the study and compare the servers' records"
    )


def _deliver_sum(state: SumSigned, facts: Facts) -> Step:
    label = state.attempt.key.label
    if isinstance(facts.peer, Signature):
        if facts.peer.message == state.sum_release.message:
            return Act.TAKE
        return Halt(f"{label}: the peer signed another sum than this side's; nothing is served")
    if not isinstance(facts.peer, Refused):
        return Act.COUNTERSIGN
    detail = facts.peer.error.detail
    if isinstance(facts.peer.error, UnknownResource):
        return TryLater(detail)
    return Halt(
        f"{label}: the peer does not sign the sum that this side signed ({detail}); nothing is served, and there is no "
        "other end: end the study and compare the servers' records"
    )


# --- an end without a release -----------------------------------------------------------------------------------------


def outcome_of(
    key: RoundKey, state: RoundState, cause: OutcomeCause | Shortfall, code: ErrorCode | None = None
) -> RoundOutcome:
    """The statement about one attempt. ``cause`` with its numbers where it has any, ``code`` of a refused message."""
    why = cause if isinstance(cause, Shortfall) else Shortfall(cause)
    return RoundOutcome.model_validate(
        {
            "study_digest": key.study,
            "round": key.round,
            "attempt": key.attempt,
            "outcome": state,
            "code": code,
            **vars(why),
        }
    )


def _skip(attempt: Attempt, why: OutcomeCause | Shortfall) -> End:
    return End(outcome_of(attempt.key, RoundState.SKIPPED, why))


def lost_share(state: AtA, error: ShareAltered, at: Side, site: str | None) -> End | Halt:
    """A share that was agreed on is no longer what was received, at this side: the round is skipped, and says whose.

    Nobody can sum it any more, and with a share sent anew the same update would be measured twice. ``site`` is None
    where the server did not say whose.
    """
    if isinstance(state, Ending | Over | SumSigned | Gone):
        return Halt(f"{state.attempt.key.label}: {error.detail}")
    cause = OutcomeCause.SHARE_ALTERED_AT_A if at is Side.A else OutcomeCause.SHARE_ALTERED_AT_B
    return _skip(state.attempt, Shortfall(cause, site=site))


def _burn(attempt: Attempt, facts: Facts, cause: OutcomeCause, code: ErrorCode | None = None) -> End:
    """``code`` is that of the message that was refused, where one was."""
    if attempt.key.attempt >= facts.attempts:
        return _skip(attempt, Shortfall(OutcomeCause.ATTEMPTS_BURNT, found=attempt.key.attempt))
    return End(outcome_of(attempt.key, RoundState.BURNT, cause, code))


def _deliver_end(state: Ending, facts: Facts) -> Step:
    """Get B's signature. An opening that B has undoes a burn; nothing undoes a skip of shares."""
    if isinstance(facts.peer, Refused):
        return _end_refused(state, facts.peer.error)
    if not isinstance(facts.peer, Signature):
        return Act.COUNTERSIGN
    if facts.peer.message == state.outcome.message:
        return Act.TAKE
    return Halt(
        f"{state.attempt.key.label}: the peer answers with another outcome than the one that this side asked it to "
        "sign; were it taken, a burnt attempt could go on beside a skip that both have signed: end the study "
        "and compare the servers' records"
    )


def _end_refused(state: Ending, error: MoietyError) -> Step:
    attempt, asked = state.attempt, state.outcome.message.outcome
    beyond = isinstance(error, WrongRound)
    plan = attempt.announcement.purpose.plan
    if asked is plan.ends_as:
        return TryLater(error.detail)
    if beyond and not plan.summed and attempt.state in (RoundState.LOCKED, RoundState.MEASURED):  # B holds its half
        return End(outcome_of(attempt.key, plan.ends_as, OutcomeCause.OPENING_AT_ONE_SERVER))
    if asked is RoundState.BURNT:
        return _skip(attempt, OutcomeCause.OPENING_AT_ONE_SERVER)
    if beyond and attempt.state in (RoundState.MEASURED, RoundState.COMMITTED):  # B has released
        return Halt(
            f"{attempt.key.label}: the peer says that it has released a sum, which it cannot without this side, "
            "and this side has signed a skip: end the study and compare the servers' records"
        )
    return TryLater(error.detail) if attempt.state is RoundState.SKIPPED else Act.TAKE_ALONE


def _deadline_s(attempt: Attempt, facts: Facts) -> float:
    return attempt.closes_at_s + facts.grace_s


# --- what A says ------------------------------------------------------------------------------------------------------


def lock_request(state: Locked) -> LockRequest:
    """A's signature under the set, and its commitment to n_A."""
    agreed = state.agreed.message
    only_mine = Signed[AgreedSet](message=agreed, signatures=state.agreed.signatures[:1])
    return LockRequest(
        agreed_set=only_mine, commitment_a=nonce_commitment(agreed.round, agreed.digest(), state.own_nonce)
    )


def tossed(state: Locked, reply: LockReply, peer: Party) -> Tossed:
    """Both signatures under the set, and the challenge that follows from both nonces. Raises: BadSignature"""
    agreed = state.agreed.message
    check_signature(agreed, reply.signature, peer)
    stated = transcript(agreed.round, agreed.digest(), state.own_nonce, bytes.fromhex(reply.nonce_b))
    return Tossed(with_signature(state.agreed, reply.signature), stated)
