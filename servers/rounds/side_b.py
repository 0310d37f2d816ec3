"""Side B's part of a round: what it answers to side A, step by step (docs/protocol.md 4, 7, 9).

Each answer is stored before it leaves and given again when the same question comes again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

from protocol.channel.message import pack_frame, unpack_frame
from protocol.errors import (
    ConflictingMessage,
    MalformedMessage,
    Unavailable,
)
from protocol.messages.control import RoundState, require_signatures, signature_from
from protocol.messages.peer import ChallengeReply, ChallengeReveal, CollectedSet, LockReply, LockRequest, ProductsHeader
from protocol.rounds.side_b import Move, Reply, answer, opened
from protocol.rounds.states import RoundEvent, RoundKey
from servers.correlations import OtSessions
from servers.event_loop import wait_until
from servers.failpoints import Point
from servers.rounds.contributions import collected, roster_of
from servers.rounds.sketches import (
    Sketches,
    needed_lengths,
    parameters_of,
    prepare_products,
    seal_opening,
)
from servers.rounds.state import known_round, standing
from servers.server import Server
from servers.store.records import Answer, AnswerKind, CorrelationUse, RoundRecord, StudyRecord

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
        return known_round(self.server, key)

    async def collected(self, study: StudyRecord, key: RoundKey) -> CollectedSet:
        """Return what this side holds; waits a few seconds for the last contribution."""
        deadline = self.server.clock() + _LONG_POLL_S
        while True:
            change = self.server.changes.next(study.digest)
            record = self.server.store.round(key)
            held = None if record is None else collected(self.server, record)
            if held is not None and held.complete:
                return held
            latest = deadline if record is None else min(deadline, record.closes_at_s)
            if not await wait_until(change, latest, self.server.clock) and self.server.clock() >= deadline:
                return collected(self.server, self.round(key))

    def lock(self, key: RoundKey, request: LockRequest) -> LockReply:
        """Countersign the agreed set and draw n_B.

        Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, WrongRound, ProtocolViolation
        """
        server, record = self.server, self.round(key)
        require_signatures(request.agreed_set, server.roster, [server.roster.operator_a.name])
        if isinstance(answer(standing(server, record), request, roster_of(server, record)), Move):
            record = self._locked(record, request)
        return LockReply(signature=signature_from(record.agreed, server.name), nonce_b=record.nonce.hex())

    def _locked(self, record: RoundRecord, request: LockRequest) -> RoundRecord:
        server, key = self.server, record.key
        state = record.begun.after(RoundEvent.LOCKED)
        nonce = server.randomness.bytes(32, f"{key.label} challenge nonce")
        both = server.countersign(request.agreed_set)
        server.failpoints.reach(Point.BEFORE_LOCK_SIGNED)
        record = server.store.change_round(
            key,
            lambda r: replace(r, state=state, agreed_set=both, own_nonce=nonce, peer_commitment=request.commitment_a),
        )
        server.failpoints.reach(Point.AFTER_LOCK_SIGNED)
        server.files.delete(server.store.forget_share_files(key.study, before_round=key.round))
        server.shares.forget(key.study)
        return record

    def challenge(self, study: StudyRecord, key: RoundKey, reveal: ChallengeReveal) -> ChallengeReply:
        """Check A's opening, sign the transcript, start sketching.

        Raises: BadSignature, TranscriptMismatch, WrongRound
        """
        server, record = self.server, self.round(key)
        stated = require_signatures(reveal.transcript, server.roster, [server.roster.operator_a.name])
        if answer(standing(server, record), stated, roster_of(server, record)) is Reply.KEEP:
            both = server.countersign(reveal.transcript)
            server.failpoints.reach(Point.BEFORE_CHALLENGE_STORED)
            record = server.store.change_round(key, lambda r: replace(r, transcript=both))
            server.failpoints.reach(Point.AFTER_CHALLENGE_STORED)
        if record.state is RoundState.LOCKED:
            self.sketches.begin(record, parameters_of(study, record))
        return ChallengeReply(signature=signature_from(record.challenged.transcript, server.name))

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
            record = await self._with_queries(key, header)
            return await self._measured(study, record, header, bytes(masked), digest)

    async def _with_queries(self, key: RoundKey, header: ProductsHeader) -> RoundRecord:
        """The round once the products can be taken."""
        server, deadline = self.server, self.server.clock() + _QUERIES_WAIT_S
        while True:
            change = server.changes.next(key.study)
            record = self.round(key)
            try:
                answer(standing(server, record), header, roster_of(server, record))
            except Unavailable:
                if not await wait_until(change, deadline, server.clock) and server.clock() >= deadline:
                    raise
            else:
                return record

    async def _measured(
        self, study: StudyRecord, record: RoundRecord, header: ProductsHeader, masked: bytes, digest: str
    ) -> bytes:
        server, parameters = self.server, parameters_of(study, record)
        key, halves = self.sessions.halves(header.correlations)
        if [half.lengths for half in halves] != needed_lengths(server, record, parameters):
            raise MalformedMessage("the named correlations do not have the lengths that this round needs")
        sketches = await self.sketches.begin(record, parameters)
        own = await asyncio.to_thread(prepare_products, server, record, sketches, halves, parameters)
        opening = await asyncio.to_thread(seal_opening, server, record, own, masked, key, parameters)
        reply = pack_frame(header, own.masked)
        server.failpoints.reach(Point.BEFORE_OPENING_STORED)
        with server.store.alone(record.key.study):
            state = opened(standing(server, self.round(record.key)))
            server.store.change_round(
                record.key,
                lambda r: replace(r, state=state),
                used=[CorrelationUse(record.key, r.site, r.session, r.batch, r.index) for r in header.correlations],
                answers=[Answer(AnswerKind.OPENING, "", opening), Answer(AnswerKind.PRODUCTS, digest, reply)],
            )
        server.failpoints.reach(Point.AFTER_OPENING_STORED)
        self.sessions.spend(header.correlations)
        self.sketches.forget(record.key)
        return reply
