"""Decide side B's answer to each message of side A; the server carries it out (docs/protocol.md 4, 7-15).

Every message has been checked for its sender's signature. One that came before gets the stored answer again; another
one in its place is refused, for ever. The requester's release set, its seed of the tags and its go
are taken in the same way at either server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias, assert_never

from protocol.errors import (
    AnnouncementMismatch,
    ConflictingMessage,
    MalformedMessage,
    ProtocolViolation,
    TranscriptMismatch,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import (
    NO_COMMITMENT,
    AgreedSet,
    ChallengeTranscript,
    Go,
    ReleaseSet,
    Roster,
    RoundOutcome,
    RoundState,
    SumRelease,
    TagSeed,
    TagsFailed,
)
from protocol.messages.peer import HandOver, LockRequest, ProductsHeader
from protocol.messages.purpose import RoundStep
from protocol.rounds.agreement import check_transcript, shortfall
from protocol.rounds.states import (
    Attempt,
    ChallengeSigned,
    EndAgreed,
    HalfChecked,
    Judged,
    LockSigned,
    Queried,
    RoundEvent,
    RoundKey,
    SetChosen,
    Standing,
    SumAgreed,
    Unchosen,
    Uncommitted,
    Undecided,
    Unlocked,
)
from protocol.tags import require_own, require_shown

Message: TypeAlias = (
    LockRequest
    | AgreedSet
    | ChallengeTranscript
    | ProductsHeader
    | ReleaseSet
    | TagSeed
    | Go
    | TagsFailed
    | HandOver
    | SumRelease
    | RoundOutcome
)


class Reply(Enum):
    """Answers that leave the round where it is."""

    AGAIN = auto()
    """It came before: the stored answer, unchanged."""
    KEEP = auto()
    """Store it beside what is there, and sign it where it is to be signed."""


@dataclass(frozen=True)
class Move:
    """Sign it and store it; the round goes on by this event."""

    event: RoundEvent


Answer: TypeAlias = Reply | Move


def answer(state: Standing, message: Message, roster: Roster) -> Answer:
    """Decide the answer to one message.

    Raises: AnnouncementMismatch, ConflictingMessage, MalformedMessage, TranscriptMismatch, ProtocolViolation,
            Unavailable, UnknownResource, WrongRound
    """
    match message:
        case LockRequest():
            reply: Answer = _lock(state, message, roster)
        case AgreedSet():
            reply = _sign_set(state, message, roster)
        case ChallengeTranscript():
            reply = _sign_challenge(state, message)
        case ProductsHeader():
            reply = _multiply(state, message)
        case ReleaseSet():
            reply = _choose(state, message, roster)
        case TagSeed() | Go() | TagsFailed() | HandOver():
            reply = _with_tags(state, message)
        case SumRelease():
            reply = _sign_sum(state, message)
        case RoundOutcome():
            reply = _sign_end(state, message)
        case never:
            assert_never(never)
    return reply


def _with_tags(state: Standing, message: TagSeed | Go | TagsFailed | HandOver) -> Answer:
    if isinstance(message, TagSeed):
        return _check(state, message)
    return _serve(state, message.go.message) if isinstance(message, HandOver) else _take_verdict(state, message)


_CALLED: Final = {TagSeed: "seed of tags", SumRelease: "release", RoundOutcome: "outcome"}


def require_named(message: TagSeed | SumRelease | RoundOutcome, key: RoundKey) -> None:
    """Raises: AnnouncementMismatch"""
    if (message.study_digest, message.round, message.attempt) != (key.study, key.round, key.attempt):
        raise AnnouncementMismatch(f"the {_CALLED[type(message)]} is for another study, round or attempt")


# --- the set ----------------------------------------------------------------------------------------------------------


def _lock(state: Standing, request: LockRequest, roster: Roster) -> Answer:
    toss, agreed = state.toss, request.agreed_set.message
    if isinstance(toss, Unlocked):
        _check_held(state.attempt, toss, agreed, roster)
        _require_answered(state.attempt, toss, agreed)
        return Move(RoundEvent.LOCKED)
    if isinstance(toss, LockSigned) and (toss.agreed.message, toss.peer_commitment) == (agreed, request.commitment_a):
        return Reply.AGAIN
    raise ConflictingMessage(f"{state.attempt.key.label} is locked with another set or commitment")


def _check_held(attempt: Attempt, toss: Unlocked, agreed: AgreedSet, roster: Roster) -> None:
    """Require, in a round of shares, that both servers hold these contributions."""
    mine = {c.site: c for c in toss.held}
    _require_bound(attempt, agreed)
    if list(agreed.sites) != [site for site in mine if site in agreed.sites]:
        raise ProtocolViolation("the agreed set must name contributions that both servers hold, in the roster's order")
    if any(mine[c.site] != c for c in agreed.contributions):
        raise ProtocolViolation("the agreed set holds other commitments than this server received")
    lacking = shortfall(agreed, attempt.announcement, roster.requester)
    if lacking is not None:
        raise ProtocolViolation(f"the round cannot be locked: {lacking.reason}")


def _sign_set(state: Standing, agreed: AgreedSet, roster: Roster) -> Answer:
    toss, attempt = state.toss, state.attempt
    if RoundStep.COUNTERSIGN not in attempt.announcement.protection.plan.steps:
        raise ProtocolViolation("the round is one of shares, of which both servers hold their own; lock it instead")
    if isinstance(toss, Unlocked):
        _check_listed(attempt, agreed, roster)
        _require_answered(attempt, toss, agreed)
        return Move(RoundEvent.AGREED)
    if toss.agreed.message != agreed:
        raise ConflictingMessage(f"{attempt.key.label} has another agreed set; there is one per round, for ever")
    return Reply.AGAIN


def _check_listed(attempt: Attempt, agreed: AgreedSet, roster: Roster) -> None:
    """Require the announcement's set in a round of ciphertexts, of which this side holds nothing."""
    announcement = attempt.announcement
    _require_bound(attempt, agreed)
    expected = {*announcement.listed, roster.requester}
    if list(agreed.sites) != [p.name for p in roster.sites if p.name in expected and p.name in agreed.sites]:
        raise ProtocolViolation("the agreed set must name listed sites and the requester, in the roster's order")
    bound_to = (announcement.digest(), NO_COMMITMENT)
    if any((c.announcement_digest, c.commitment_b) != bound_to for c in agreed.contributions):
        raise ProtocolViolation("the agreed set names shares for side B, or contributions to another announcement")
    lacking = shortfall(agreed, announcement, roster.requester)
    if lacking is not None:
        raise ProtocolViolation(f"the round cannot be agreed on: {lacking.reason}")


def _require_answered(attempt: Attempt, toss: Unlocked, agreed: AgreedSet) -> None:
    """Side A alone closes no round early: a site outside of the set must have declined at this side, too."""
    missing = sorted(toss.awaited.difference(agreed.sites))
    if missing:
        raise Unavailable(f"{attempt.key.label}: {', '.join(missing)} may still contribute; the set waits for its time")


def _require_bound(attempt: Attempt, agreed: AgreedSet) -> None:
    key = attempt.key
    named = (agreed.study_digest, agreed.round, agreed.attempt, agreed.announcement_digest)
    if named != (key.study, key.round, key.attempt, attempt.announcement.digest()):
        raise AnnouncementMismatch("the agreed set is for another study, round, attempt or announcement")


# --- challenge and products -------------------------------------------------------------------------------------------


def _sign_challenge(state: Standing, stated: ChallengeTranscript) -> Answer:
    toss, attempt = state.toss, state.attempt
    if not isinstance(toss, LockSigned):
        raise WrongRound(f"round {attempt.key.round} is {attempt.state}; the lock comes before the challenge")
    check_transcript(attempt.key.round, toss.agreed.message, stated)
    if (stated.commitment_a, stated.nonce_b) != (toss.peer_commitment, toss.own_nonce.hex()):
        raise TranscriptMismatch("the transcript holds another commitment or nonce than were exchanged at the lock")
    if not isinstance(toss, ChallengeSigned):
        return Reply.KEEP
    if toss.transcript.message != stated:
        raise TranscriptMismatch("another challenge was signed for this attempt")
    return Reply.AGAIN


def _multiply(state: Standing, header: ProductsHeader) -> Answer:
    toss, attempt = state.toss, state.attempt
    if attempt.state is not RoundState.LOCKED or not isinstance(toss, ChallengeSigned):
        raise WrongRound(f"round {attempt.key.round} is {attempt.state}; products come between challenge and opening")
    if not isinstance(toss, Queried):
        raise Unavailable("the requester's queries are not here yet; send the same products again")
    if header.transcript_digest != toss.transcript.message.digest():
        raise TranscriptMismatch("the products are made for another challenge")
    if tuple(ref.site for ref in header.correlations) != toss.agreed.message.sites:
        raise MalformedMessage("products must name one correlation for each agreed site, in order")
    return Move(RoundEvent.MEASURED)


def opened(state: Standing) -> RoundState:
    """The state with an opening that has been made meanwhile: none is kept once skip or burn is signed.

    Raises: WrongRound
    """
    attempt = state.attempt
    if attempt.state is not RoundState.LOCKED or isinstance(state.end, EndAgreed):
        raise WrongRound(f"round {attempt.key.round} became {attempt.state} meanwhile; its opening was not made")
    return attempt.after(RoundEvent.MEASURED)


# --- release set and ends ---------------------------------------------------------------------------------------------


def _choose(state: Standing, release: ReleaseSet, roster: Roster) -> Answer:
    attempt, toss = state.attempt, state.toss
    number = attempt.key.round
    plan = attempt.announcement.purpose.plan
    if not plan.summed:
        raise WrongRound(f"round {number} {plan.does}; its vectors are never summed")
    if isinstance(state.choice, SetChosen):
        if state.choice.release_set.message != release:
            raise ConflictingMessage(f"{attempt.key.label} has another release set; there is one per round, for ever")
        return Reply.AGAIN
    measured = attempt.state is RoundState.MEASURED and not isinstance(state.end, EndAgreed)
    if not measured or isinstance(toss, Unlocked):
        raise WrongRound(f"round {number} is {attempt.state}; a release set is welcome once it is measured")
    _check_release_set(attempt, toss.agreed.message, release, roster.requester)
    return Reply.KEEP


def _check_release_set(attempt: Attempt, agreed: AgreedSet, release: ReleaseSet, requester: str) -> None:
    key = attempt.key
    named = (release.study_digest, release.round, release.attempt, release.agreed_set_digest)
    if named != (key.study, key.round, key.attempt, agreed.digest()):
        raise AnnouncementMismatch("the release set is for another study, round, attempt or agreed set")
    chosen = [site for site in agreed.sites if site in release.sites]
    if list(release.sites) != chosen:
        raise MalformedMessage("a release set names sites of the agreed set, once each and in its order")
    failed = release.failed_check
    if list(failed) != [site for site in agreed.sites if site in failed and site not in release.sites]:
        raise MalformedMessage(
            "failed_check names sites of the agreed set that are not released, once each and in the set's order"
        )
    if requester not in chosen:
        raise MalformedMessage("a release set must hold the requester itself")
    least = attempt.announcement.least_contributors
    if len(chosen) - 1 < least:
        raise MalformedMessage(f"a release set needs at least {least} contributors, found {len(chosen) - 1}")


# --- tags -------------------------------------------------------------------------------------------------------------


def _check(state: Standing, message: TagSeed) -> Answer:
    """See the seed, and say by how much the tags of this side's half are off; the half is fixed by then."""
    require_named(message, state.attempt.key)
    require_shown(state.attempt.announcement, message.seed)
    if isinstance(state.half, HalfChecked):
        return Reply.AGAIN
    _require_committed(state, "the seed of its tags")
    return Reply.KEEP


def _take_verdict(state: Standing, verdict: Go | TagsFailed) -> Answer:
    """Keep what the requester says of both checks: one word per round, and none once an end is signed here."""
    half, key = state.half, state.attempt.key
    if isinstance(half, Judged):
        if half.verdict.message != verdict:
            raise ConflictingMessage(f"{key.label}: the requester has said otherwise before; its first word stands")
        return Reply.AGAIN
    _require_committed(state, "the requester's word about its tags")
    if not isinstance(half, HalfChecked):
        raise WrongRound(f"round {key.round}: this side has not checked its half yet; show it the seed first")
    require_own(verdict, half.commitment, half.check)
    return Reply.KEEP


def _serve(state: Standing, go: Go) -> Answer:
    """Side B: A has stored go, and so signs no skip of the round; this side serves."""
    if (
        state.attempt.state is RoundState.RELEASED
        and isinstance(state.half, Judged)
        and state.half.verdict.message == go
    ):
        return Reply.AGAIN
    _take_verdict(state, go)
    return Move(RoundEvent.RELEASED)


def _require_committed(state: Standing, what: str) -> None:
    attempt, number = state.attempt, state.attempt.key.round
    if isinstance(state.end, EndAgreed):
        raise WrongRound(f"this server has signed that round {number} is {state.end.outcome.message.outcome.value}")
    if attempt.state is not RoundState.COMMITTED or isinstance(state.half, Uncommitted):
        raise WrongRound(f"round {number} is {attempt.state}; {what} is welcome once it is committed")


def _sign_sum(state: Standing, message: SumRelease) -> Answer:
    attempt, number = state.attempt, state.attempt.key.round
    if RoundStep.COUNTERSIGN not in attempt.announcement.protection.plan.steps:
        raise WrongRound(f"round {number} is one of shares; its sum is released by both servers' halves")
    if isinstance(state.end, SumAgreed):
        if state.end.sum_release.message != message:
            raise ConflictingMessage(f"{attempt.key.label} ends with another sum; there is one per round, for ever")
        return Reply.AGAIN
    require_no_other_end(attempt, state.end)
    if isinstance(state.choice, Unchosen):
        raise UnknownResource("the requester's release set is not here")
    if message.release_digest != state.choice.release_set.message.digest():
        raise AnnouncementMismatch("the sum is of another release set than this side holds")
    return Move(RoundEvent.RELEASED)


def require_no_other_end(attempt: Attempt, end: Undecided | EndAgreed) -> None:
    """Require that this side has not signed the sum of a round of ciphertexts. Raises: WrongRound"""
    if isinstance(end, EndAgreed):
        raise WrongRound(f"this server has signed that round {attempt.key.round} is {end.outcome.message.outcome}")
    if attempt.final:
        raise WrongRound(f"round {attempt.key.round} is {attempt.state} here without a signed sum; it has no other end")


def _sign_end(state: Standing, message: RoundOutcome) -> Answer:
    """Agree to A's outcome, unless this side knows better.

    A release set alone does not stop a skip: A, which has signed, adds nothing any more, so no sum can leave. If it
    could, sites would be shown a skip by one of the servers and count a released round for nothing. A round that sums
    nothing is not skipped once measured here: the requester may hold what it opens, and sites would let it ask again.
    """
    attempt, number = state.attempt, state.attempt.key.round
    plan = attempt.announcement.purpose.plan
    if isinstance(state.end, EndAgreed):
        return Reply.AGAIN
    if message.outcome is RoundState.SKIPPED:
        if attempt.state is RoundState.RELEASED:
            raise WrongRound(f"round {number} has been released here; a round is not skipped after that")
        if not plan.summed and attempt.state is RoundState.MEASURED:
            raise WrongRound(
                f"round {number} has been measured here; a round that {plan.does} is not skipped after that"
            )
        return Move(RoundEvent.SKIPPED)
    if message.outcome is RoundState.BURNT:
        return Move(RoundEvent.BURNT)
    if message.outcome is not plan.ends_as:
        raise AnnouncementMismatch(f"round {number} {plan.does}; it does not end as {message.outcome.value}")
    return Move(RoundEvent(message.outcome.value))
