"""Side B's decisions as its server made them before ``protocol/rounds`` did: see old_side_a.py.

Transcribed from servers/rounds/{side_b,outcomes,release}.py and servers/ckks/{rounds,release}.py. The senders'
signatures are checked before, and what is done is said: "again" the stored answer, "keep" it, or the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from protocol.rounds.agree import check_transcript, shortfall
from protocol.rounds.transitions import RoundEvent, step
from protocol.wire.messages import (
    NO_COMMITMENT,
    AgreedSet,
    ChallengeTranscript,
    CollectedContribution,
    Purpose,
    ReleaseSet,
    Roster,
    RoundOutcome,
    RoundState,
    SumRelease,
)
from protocol.wire.peer_messages import LockRequest, ProductsHeader
from servers.store.interface import RoundRecord

Decision = tuple[Any, ...]


def side_b(record: RoundRecord, held: Sequence[CollectedContribution], message: Any, roster: Roster) -> Decision:
    match message:
        case LockRequest():
            return _lock_at_b(record, held, message, roster)
        case AgreedSet():
            return _agreed_set(record, message, roster)
        case ChallengeTranscript():
            return _challenge(record, message)
        case ProductsHeader():
            return _products(record, message)
        case ReleaseSet():
            return _accept_release_set(record, message, roster)
        case SumRelease():
            return _sum_release(record, message)
    return _outcome(record, message)


def _lock_at_b(
    record: RoundRecord, held: Sequence[CollectedContribution], request: LockRequest, roster: Roster
) -> Decision:
    agreed = request.agreed_set.message
    if record.agreed_set is not None:
        if record.agreed_set.message != agreed or record.peer_commitment != request.commitment_a:
            raise ConflictingMessage(f"{record.key.label} is locked with another set or commitment")
        return ("again",)
    mine = {c.site: c for c in held}
    named = (agreed.study_digest, agreed.round, agreed.attempt, agreed.announcement_digest)
    expected = (record.key.study, record.key.round, record.key.attempt, record.announcement.message.digest())
    if named != expected:
        raise AnnouncementMismatch("the agreed set is for another study, round, attempt or announcement")
    if list(agreed.sites) != [site for site in mine if site in agreed.sites]:
        raise ProtocolViolation("the agreed set must name contributions that both servers hold, in the roster's order")
    if any(mine[c.site] != c for c in agreed.contributions):
        raise ProtocolViolation("the agreed set holds other commitments than this server received")
    lacking = shortfall(agreed, record.announcement.message, roster.requester)
    if lacking is not None:
        raise ProtocolViolation(f"the round cannot be locked: {lacking.reason}")
    return (RoundEvent.LOCKED,)


def _agreed_set(record: RoundRecord, agreed: AgreedSet, roster: Roster) -> Decision:
    announcement = record.announcement.message
    if not announcement.protection.plan.keyed:
        raise ProtocolViolation("the round is one of shares, of which both servers hold their own; lock it instead")
    if record.agreed_set is not None:
        if record.agreed_set.message != agreed:
            raise ConflictingMessage(f"{record.key.label} has another agreed set; there is one a round, for ever")
        return ("again",)
    named = (agreed.study_digest, agreed.round, agreed.attempt, agreed.announcement_digest)
    if named != (record.key.study, record.key.round, record.key.attempt, announcement.digest()):
        raise AnnouncementMismatch("the agreed set is for another study, round, attempt or announcement")
    expected = frozenset((*announcement.listed, roster.requester))
    if list(agreed.sites) != [p.name for p in roster.sites if p.name in expected and p.name in agreed.sites]:
        raise ProtocolViolation("the agreed set must name listed sites and the requester, in the roster's order")
    if any(
        (c.announcement_digest, c.commitment_b) != (announcement.digest(), NO_COMMITMENT) for c in agreed.contributions
    ):
        raise ProtocolViolation("the agreed set names shares for side B, or contributions to another announcement")
    lacking = shortfall(agreed, announcement, roster.requester)
    if lacking is not None:
        raise ProtocolViolation(f"the round cannot be agreed on: {lacking.reason}")
    return (RoundEvent.AGREED,)


def _challenge(record: RoundRecord, stated: ChallengeTranscript) -> Decision:
    if record.agreed_set is None or record.own_nonce is None:
        raise WrongRound(f"round {record.key.round} is {record.state}; the lock comes before the challenge")
    check_transcript(record.key.round, record.agreed_set.message, stated)
    if stated.commitment_a != record.peer_commitment or stated.nonce_b != record.own_nonce.hex():
        raise TranscriptMismatch("the transcript holds another commitment or nonce than were exchanged at the lock")
    if record.transcript is None:
        return ("keep",)
    if record.transcript.message != stated:
        raise TranscriptMismatch("another challenge was signed for this attempt")
    return ("again",)


def _products(record: RoundRecord, header: ProductsHeader) -> Decision:
    if record.state is not RoundState.LOCKED or record.transcript is None:
        raise WrongRound(f"round {record.key.round} is {record.state}; products come between challenge and opening")
    if record.announcement.message.opens.queried and record.query_header is None:
        raise Unavailable("the requester's queries are not here yet; send the same products again")
    if header.transcript_digest != record.transcript.message.digest():
        raise TranscriptMismatch("the products are made for another challenge")
    if tuple(ref.site for ref in header.correlations) != record.challenged.sites:
        raise MalformedMessage("products must name one correlation for each agreed site, in order")
    return (RoundEvent.MEASURED,)


def still_locked(record: RoundRecord) -> RoundState:
    if record.state is not RoundState.LOCKED or record.outcome is not None:
        raise WrongRound(f"round {record.key.round} became {record.state} meanwhile; its opening was not made")
    return step(record.progress, RoundEvent.MEASURED).state


def _accept_release_set(record: RoundRecord, release: ReleaseSet, roster: Roster) -> Decision:
    if record.announcement.message.purpose is Purpose.RANKING:
        raise WrongRound(f"round {record.key.round} ranks the sites; its vectors are never summed")
    if record.release_set is not None:
        if record.release_set.message != release:
            raise ConflictingMessage(f"{record.key.label} has another release set; there is one a round, for ever")
        return ("again",)
    if record.state is not RoundState.MEASURED or record.agreed_set is None or record.outcome is not None:
        raise WrongRound(f"round {record.key.round} is {record.state}; a release set is welcome once it is measured")
    _check_release_set(record, record.agreed_set.message, release, roster)
    return ("keep",)


def _check_release_set(record: RoundRecord, agreed: AgreedSet, release: ReleaseSet, roster: Roster) -> None:
    named = (release.study_digest, release.round, release.attempt, release.agreed_set_digest)
    if named != (record.key.study, record.key.round, record.key.attempt, agreed.digest()):
        raise AnnouncementMismatch("the release set is for another study, round, attempt or agreed set")
    chosen = [site for site in agreed.sites if site in release.sites]
    if list(release.sites) != chosen:
        raise MalformedMessage("a release set names sites of the agreed set, once each and in its order")
    failed = release.failed_check
    if list(failed) != [site for site in agreed.sites if site in failed and site not in release.sites]:
        raise MalformedMessage(
            "failed_check names sites of the agreed set that are not released, once each and in the set's order"
        )
    if roster.requester not in chosen:
        raise MalformedMessage("a release set must hold the requester itself")
    least = record.announcement.message.least_contributors
    if len(chosen) - 1 < least:
        raise MalformedMessage(f"a release set needs at least {least} contributors, found {len(chosen) - 1}")


def _sum_release(record: RoundRecord, message: SumRelease) -> Decision:
    key = record.key
    if (message.study_digest, message.round, message.attempt) != (key.study, key.round, key.attempt):
        raise AnnouncementMismatch("the release is for another study, round or attempt")
    if not record.announcement.message.protection.plan.keyed:
        raise WrongRound(f"round {key.round} is one of shares; its sum is released by both servers' halves")
    if record.sum_release is not None:
        if record.sum_release.message != message:
            raise ConflictingMessage(f"{key.label} ends with another sum; there is one a round, for ever")
        return ("again",)
    if record.outcome is not None:
        raise WrongRound(f"this server has signed that round {key.round} is {record.outcome.message.outcome}")
    if record.progress.final:
        raise WrongRound(f"round {key.round} is {record.state} here without a signed sum; it has no other end")
    if record.release_set is None:
        raise UnknownResource("the requester's release set is not here")
    if message.release_digest != record.release_set.message.digest():
        raise AnnouncementMismatch("the sum is of another release set than this side holds")
    return (RoundEvent.RELEASED,)


def _outcome(record: RoundRecord, message: RoundOutcome) -> Decision:
    key = record.key
    if (message.study_digest, message.round, message.attempt) != (key.study, key.round, key.attempt):
        raise AnnouncementMismatch("the outcome is for another study, round or attempt")
    if record.outcome is not None:
        return ("again",)
    if message.outcome is RoundState.SKIPPED and record.state is RoundState.RELEASED:
        raise WrongRound(f"round {key.round} has been released here; a round is not skipped after that")
    ranks = record.announcement.message.purpose is Purpose.RANKING
    if message.outcome is RoundState.SKIPPED and ranks and record.state is RoundState.MEASURED:
        raise WrongRound(f"round {key.round} has been measured here; a ranking is not skipped after that")
    if message.outcome is RoundState.RANKED and not ranks:
        raise AnnouncementMismatch(f"round {key.round} ranks no sites; it is released or skipped")
    if message.outcome is RoundState.SKIPPED:
        return (RoundEvent.SKIPPED,)
    return (RoundEvent.RANKED if message.outcome is RoundState.RANKED else RoundEvent.BURNT,)
