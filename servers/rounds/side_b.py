"""Side B's part of a round: what it answers to side A, step by step (docs/protocol.md 4, 7, 9).

Each answer is stored before it leaves and given again when the same question comes again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

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
from protocol.rounds.states import RoundKey
from protocol.rounds.transitions import RoundEvent, step
from protocol.wire.authentic import require_signatures, signature_from
from protocol.wire.messages import AgreedSet, RoundState
from protocol.wire.peer_messages import (
    ChallengeReply,
    ChallengeReveal,
    CollectedSet,
    LockReply,
    LockRequest,
    ProductsHeader,
    pack_frame,
    unpack_frame,
)
from servers.correlations.sender import OtSessions
from servers.notifications import wait_up_to
from servers.points import Point
from servers.rounds.collect import collected
from servers.rounds.sketches import (
    Sketches,
    needed_lengths,
    parameters_of,
    prepare_products,
    queries_missing,
    seal_opening,
)
from servers.server import Server
from servers.store.interface import Answer, AnswerKind, CorrelationUse, RoundRecord, StudyRecord

_LONG_POLL_S: Final = 5.0
_QUERIES_WAIT_S: Final = 5.0


@dataclass(eq=False)
class Answering:
    """Side B between two messages of side A."""

    server: Server
    sketches: Sketches
    sessions: OtSessions

    def __post_init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def round(self, key: RoundKey) -> RoundRecord:
        """Raises: UnknownResource"""
        record = self.server.store.round(key)
        if record is None:
            raise UnknownResource(f"round {key.round}, attempt {key.attempt} is not announced here yet")
        return record

    async def collected(self, study: StudyRecord, key: RoundKey) -> CollectedSet:
        """What this side holds; waits a few seconds for the last contribution."""
        deadline = self.server.clock() + _LONG_POLL_S
        while True:
            change = self.server.changes.next(study.digest)
            record = self.server.store.round(key)
            held = None if record is None else collected(self.server, record)
            if held is not None and held.complete:
                return held
            latest = deadline if record is None else min(deadline, record.closes_at_s)
            if not await wait_up_to(change, latest - self.server.clock()) and self.server.clock() >= deadline:
                return collected(self.server, self.round(key))

    def lock(self, key: RoundKey, request: LockRequest) -> LockReply:
        """Countersign the agreed set and draw n_B.

        Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, WrongRound, ProtocolViolation
        """
        server, record = self.server, self.round(key)
        agreed = require_signatures(request.agreed_set, server.roster, [server.roster.operator_a.name])
        if record.agreed_set is not None:
            if record.agreed_set.message != agreed or record.peer_commitment != request.commitment_a:
                raise ConflictingMessage(f"{key.label} is locked with another set or commitment")
            return self._lock_reply(record)
        self._check_agreed(record, agreed)
        state = step(record.progress, RoundEvent.LOCKED).state
        nonce = server.randomness.bytes(32, f"{key.label} challenge nonce")
        both = server.countersign(request.agreed_set)
        server.failpoints.reach(Point.BEFORE_LOCK_SIGNED)
        record = server.store.change_round(
            key,
            lambda r: replace(r, state=state, agreed_set=both, own_nonce=nonce, peer_commitment=request.commitment_a),
        )
        server.failpoints.reach(Point.AFTER_LOCK_SIGNED)
        server.files.delete(server.store.forget_share_files(key.study, before_round=key.round))
        return self._lock_reply(record)

    def _lock_reply(self, record: RoundRecord) -> LockReply:
        return LockReply(signature=signature_from(record.agreed, self.server.name), nonce_b=record.nonce.hex())

    def _check_agreed(self, record: RoundRecord, agreed: AgreedSet) -> None:
        mine = {c.site: c for c in collected(self.server, record).contributions}
        named = (agreed.study_digest, agreed.round, agreed.attempt, agreed.announcement_digest)
        expected = (record.key.study, record.key.round, record.key.attempt, record.announcement.message.digest())
        if named != expected:
            raise AnnouncementMismatch("the agreed set is for another study, round, attempt or announcement")
        if list(agreed.sites) != [site for site in mine if site in agreed.sites]:
            raise ProtocolViolation(
                "the agreed set must name contributions that both servers hold, in the roster's order"
            )
        if any(mine[c.site] != c for c in agreed.contributions):
            raise ProtocolViolation("the agreed set holds other commitments than this server received")
        lacking = shortfall(agreed, record.announcement.message, self.server.roster.requester)
        if lacking is not None:
            raise ProtocolViolation(f"the round cannot be locked: {lacking.reason}")

    def challenge(self, study: StudyRecord, key: RoundKey, reveal: ChallengeReveal) -> ChallengeReply:
        """Check A's opening, sign the transcript, start sketching.

        Raises: BadSignature, TranscriptMismatch, WrongRound
        """
        server, record = self.server, self.round(key)
        if record.agreed_set is None or record.own_nonce is None:
            raise WrongRound(f"round {key.round} is {record.state}; the lock comes before the challenge")
        stated = require_signatures(reveal.transcript, server.roster, [server.roster.operator_a.name])
        check_transcript(key.round, record.agreed_set.message, stated)
        if stated.commitment_a != record.peer_commitment or stated.nonce_b != record.own_nonce.hex():
            raise TranscriptMismatch("the transcript holds another commitment or nonce than were exchanged at the lock")
        if record.transcript is None:
            both = server.countersign(reveal.transcript)
            server.failpoints.reach(Point.BEFORE_CHALLENGE_STORED)
            record = server.store.change_round(key, lambda r: replace(r, transcript=both))
            server.failpoints.reach(Point.AFTER_CHALLENGE_STORED)
        signed = record.challenged.transcript
        if signed.message != stated:
            raise TranscriptMismatch("another challenge was signed for this attempt")
        if record.state is RoundState.LOCKED:
            self.sketches.begin(record, parameters_of(study, record))
        return ChallengeReply(signature=signature_from(signed, server.name))

    async def products(self, study: StudyRecord, key: RoundKey, frame: bytes) -> bytes:
        """Take A's masked vectors, store this side's opening, give this side's masked vectors.

        Raises: Unavailable, when the requester's queries are not here yet; UnknownResource, CorrelationReused,
                ConflictingMessage, TranscriptMismatch, MalformedMessage, WrongRound
        """
        header, masked = unpack_frame(frame, ProductsHeader)
        async with self._locks[key.study]:
            digest = hashlib.sha256(frame).hexdigest()
            stored = self.server.store.answer(key, AnswerKind.PRODUCTS)
            if stored is not None:
                if stored.request_digest != digest:
                    raise ConflictingMessage(f"other masked vectors came before for {key.label}")
                return stored.body
            record = await self._with_queries(key)
            return await self._measured(study, record, header, bytes(masked), digest)

    async def _with_queries(self, key: RoundKey) -> RoundRecord:
        deadline = self.server.clock() + _QUERIES_WAIT_S
        while True:
            change = self.server.changes.next(key.study)
            record = self.round(key)
            if record.state is not RoundState.LOCKED or record.transcript is None:
                raise WrongRound(f"round {key.round} is {record.state}; products come between challenge and opening")
            if not queries_missing(record):
                return record
            if not await wait_up_to(change, deadline - self.server.clock()) and self.server.clock() >= deadline:
                raise Unavailable("the requester's queries are not here yet; send the same products again")

    async def _measured(
        self, study: StudyRecord, record: RoundRecord, header: ProductsHeader, masked: bytes, digest: str
    ) -> bytes:
        server, parameters, challenged = self.server, parameters_of(study, record), record.challenged
        if header.transcript_digest != challenged.transcript.message.digest():
            raise TranscriptMismatch("the products are made for another challenge")
        if tuple(ref.site for ref in header.correlations) != challenged.sites:
            raise MalformedMessage("products must name one correlation for each agreed site, in order")
        key, halves = self.sessions.halves(header.correlations)
        if [half.lengths for half in halves] != needed_lengths(server, record, parameters):
            raise MalformedMessage("the named correlations do not have the lengths that this round needs")
        sketches = await self.sketches.begin(record, parameters)
        own = await asyncio.to_thread(prepare_products, server, record, sketches, halves, parameters)
        opening = await asyncio.to_thread(seal_opening, server, record, own, masked, key, parameters)
        answer = pack_frame(header, own.masked)
        server.failpoints.reach(Point.BEFORE_OPENING_STORED)
        state = step(self._still_locked(record.key).progress, RoundEvent.MEASURED).state
        server.store.change_round(
            record.key,
            lambda r: replace(r, state=state),
            used=[CorrelationUse(record.key, r.site, r.session, r.batch, r.index) for r in header.correlations],
            answers=[Answer(AnswerKind.OPENING, "", opening), Answer(AnswerKind.PRODUCTS, digest, answer)],
        )
        server.failpoints.reach(Point.AFTER_OPENING_STORED)
        self.sessions.spend(header.correlations)
        self.sketches.forget(record.key)
        return answer

    def _still_locked(self, key: RoundKey) -> RoundRecord:
        """The attempt as it is now: no opening is made once its skip or burn is signed. Raises: WrongRound"""
        record = self.round(key)
        if record.state is not RoundState.LOCKED or record.outcome is not None:
            raise WrongRound(f"round {key.round} became {record.state} meanwhile; its opening was not made")
        return record
