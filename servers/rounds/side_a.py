"""Side A drives every round from its announcement to its end; one task a study (docs/protocol.md 4 to 9).

The task looks at the stored round, does what its state asks for, and looks again. So a restart needs nothing but
the database: only what depends on an OT session is lost with it, and then the attempt is burnt.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

from host import log
from protocol.errors import (
    ConflictingMessage,
    MoietyError,
    ProtocolViolation,
    RefusedMessage,
    Unavailable,
    UnknownResource,
)
from protocol.release import masking_side
from protocol.rounds.agree import agree, nonce_commitment, shortfall, transcript
from protocol.rounds.transitions import RoundEvent, step
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import check_signature, with_signature
from protocol.wire.messages import (
    MAX_CONTROL_BYTES,
    AgreedSet,
    ChallengeTranscript,
    OutcomeCause,
    Purpose,
    RoundState,
    Signed,
)
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
from servers.ckks.rounds import EncryptedRounds
from servers.correlations.pool import CorrelationPool, Stock, stock_quietly
from servers.correlations.wanted import demand
from servers.http.peer_client import PeerClient
from servers.notifications import ANY_STUDY, wait_up_to
from servers.points import Point
from servers.rounds.collect import beyond_hope, collected, is_complete
from servers.rounds.end_round import Endings, NotYet, round_path
from servers.rounds.masked_sum_transfer import fetch_masked_sum, send_masked_sum
from servers.rounds.sketches import (
    Products,
    Sketches,
    needed_lengths,
    parameters_of,
    prepare_products,
    queries_missing,
    seal_opening,
)
from servers.rounds.timing import Phases
from servers.server import Server
from servers.store.interface import Answer, AnswerKind, CorrelationUse, RoundKey, RoundRecord, StudyRecord

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0
_RELEASE_SET_POLL_S: Final = 2.0
_SESSION_CHECK_S: Final = 10.0
_SESSION_RETRY_S: Final = 0.3
_SESSION: Final = "session"
_BOTH: Final = 2
_log = log.logger("driver")


@dataclass(eq=False)
class Driver:
    """Side A's tasks."""

    server: Server
    peer: PeerClient
    pool: CorrelationPool
    sketches: Sketches
    endings: Endings
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _stocked: set[RoundKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._phases = Phases(self.server)
        self._encrypted = EncryptedRounds(
            self.server, self.peer, self.endings, self._phases, self._release_set, self._deadline_s
        )

    async def run(self) -> None:
        """Start a task for every open study, now and whenever one is created; runs until cancelled."""
        self._tasks[_SESSION] = asyncio.create_task(self._keep_session())
        try:
            while True:
                change = self.server.changes.next(ANY_STUDY)
                try:
                    self._start_tasks()
                except Exception:
                    _log.exception("driver_failed", study="all")
                    await wait_up_to(change, _LAST_RETRY_S)
                else:
                    await change.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _start_tasks(self) -> None:
        """A task for every open study that has none, or whose task has come to an end."""
        self._tasks = {digest: task for digest, task in self._tasks.items() if not task.done()}
        for record in self.server.store.studies():
            if not record.state.ended and record.digest not in self._tasks:
                self._tasks[record.digest] = asyncio.create_task(self._drive(record.digest))

    async def _keep_session(self) -> None:
        """Open an OT session early, and another when the peer has lost it."""
        while True:
            try:
                await self.pool.check_session()
            except MoietyError as error:
                _log.info("session_not_checked", code=error.code)
            except Exception:
                _log.exception("driver_failed", study="all")
            await stock_quietly(self.pool, [])
            await asyncio.sleep(_SESSION_CHECK_S if self.pool.session_open else _SESSION_RETRY_S)

    async def _drive(self, digest: str) -> None:
        retry_s, name = _FIRST_RETRY_S, digest
        while True:
            change = self.server.changes.next(digest)
            try:
                study = self.server.store.study(digest)
                name = study.name
                if study.state.ended:
                    return
                record = self.server.store.current_round(digest)
                if record is None or self._settled(record):
                    self._phases.forget(digest)
                    await stock_quietly(self.pool, self._demand(study, record))
                    await change.wait()
                else:
                    await self._advance(study, record)
                retry_s = _FIRST_RETRY_S
            except MoietyError as error:
                if not isinstance(error, NotYet):
                    _log.warning("round_waits", study=name, code=error.code, detail=error.detail)
                await wait_up_to(change, retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
            except Exception:
                _log.exception("driver_failed", study=name)
                await asyncio.sleep(_LAST_RETRY_S)

    @staticmethod
    def _settled(record: RoundRecord) -> bool:
        if record.state in (RoundState.SKIPPED, RoundState.RANKED):
            return record.outcome is not None and len(record.outcome.signatures) == _BOTH
        return record.progress.final

    def _demand(self, study: StudyRecord, last: RoundRecord | None) -> list[tuple[int, ...]]:
        """What the next round will consume."""
        return demand(self.server.roster, study, last)

    async def _advance(self, study: StudyRecord, record: RoundRecord) -> None:
        if record.state is RoundState.SKIPPED or record.outcome is not None:
            await self.endings.deliver(record)
        elif record.announcement.message.encrypted:
            await self._encrypted.advance(study, record)
        elif record.state in (RoundState.ANNOUNCED, RoundState.COLLECTING):
            await self._collect(study, record)
        elif record.state is RoundState.LOCKED:
            await self._measure(study, record)
        elif record.state is RoundState.MEASURED:
            await self._release(study, record)
        else:
            raise ProtocolViolation(f"{record.key.label} is {record.state}, which asks for nothing")

    # --- collecting ---------------------------------------------------------------------------------------------------

    async def _collect(self, study: StudyRecord, record: RoundRecord) -> None:
        self._phases.mark(study, "announced")
        change = self.server.changes.next(study.digest)
        if not is_complete(self.server, record):  # asked after every contribution: reads none of them
            hopeless = beyond_hope(self.server, record)
            if hopeless is not None:
                await self.endings.skip(record, hopeless)
                return
            await self._stock_ahead(study, record)
            await wait_up_to(change, record.closes_at_s - self.server.clock())
            return
        path = round_path(paths.PEER_COLLECTED, study, record)
        try:
            theirs = CollectedSet.parse(await self.peer.get(path, "collected"))
        except UnknownResource:
            if self.server.clock() < record.closes_at_s:
                raise NotYet("the peer does not know this round yet") from None
            await self.endings.skip(record, OutcomeCause.ANNOUNCED_AT_ONE_SERVER)
            return
        if not theirs.complete:
            return
        record = self.server.store.round(record.key) or record
        mine = collected(self.server, record)
        announcement = record.announcement.message
        agreed = agree(announcement, record.key.attempt, self.server.roster, mine.contributions, theirs.contributions)
        lacking = shortfall(agreed, announcement, self.server.roster.requester)
        if lacking is not None:
            await self.endings.skip(record, lacking)
            return
        nonce = self.server.randomness.bytes(32, f"{record.key.label} challenge nonce")
        state = step(record.progress, RoundEvent.LOCKED).state
        signed = self.server.sign(agreed)
        self.server.failpoints.reach(Point.BEFORE_LOCK_SIGNED)
        self.server.store.change_round(
            record.key, lambda r: replace(r, state=state, agreed_set=signed, own_nonce=nonce)
        )
        self.server.failpoints.reach(Point.AFTER_LOCK_SIGNED)
        self.server.files.delete(self.server.store.forget_share_files(study.digest, before_round=record.key.round))
        self._phases.observe(study, "announced", "collecting")
        self._phases.mark(study, "locked")

    async def _stock_ahead(self, study: StudyRecord, record: RoundRecord) -> None:
        if record.key not in self._stocked:
            self._stocked.add(record.key)
            await stock_quietly(self.pool, self._demand(study, record))

    # --- lock, challenge, products ------------------------------------------------------------------------------------

    async def _measure(self, study: StudyRecord, record: RoundRecord) -> None:
        if self.server.store.correlations_used(record.key):
            await self.endings.burn(record, OutcomeCause.CORRELATIONS_LOST)
            return
        if record.transcript is None and self.server.clock() >= self._deadline_s(record):
            await self.endings.skip(record, OutcomeCause.NOT_AGREED_IN_TIME)
            return
        record = await self._locked(study, record)
        record = await self._challenged(study, record)
        parameters = parameters_of(study, record)
        sketching = self.sketches.begin(record, parameters)
        record = await self._queries(record)
        if record.outcome is not None:
            return
        sketches, _ = await asyncio.gather(sketching, self.pool.check_session())
        stock = await self.pool.take(needed_lengths(self.server, record, parameters))
        halves = [c.half for c in stock.correlations]
        own = await asyncio.to_thread(prepare_products, self.server, record, sketches, halves, parameters)
        await self._exchange(study, record, stock, own)

    async def _locked(self, study: StudyRecord, record: RoundRecord) -> RoundRecord:
        """Both signatures under the agreed set; n_B is taken from B's answer when the transcript is made."""
        if record.transcript is not None:
            return record
        agreed, nonce = record.locked.agreed_set, record.locked.own_nonce
        commitment = nonce_commitment(record.key.round, agreed.message.digest(), nonce)
        only_mine = Signed[AgreedSet](message=agreed.message, signatures=agreed.signatures[:1])
        request = LockRequest(agreed_set=only_mine, commitment_a=commitment)
        body = await self.peer.post(round_path(paths.PEER_LOCK, study, record), request.canonical(), "lock")
        reply = LockReply.parse(body)
        check_signature(agreed.message, reply.signature, self.server.peer)
        stated = transcript(record.key.round, agreed.message.digest(), nonce, bytes.fromhex(reply.nonce_b))
        both = with_signature(agreed, reply.signature)
        return replace(record, agreed_set=both, transcript=self.server.sign(stated))

    async def _challenged(self, study: StudyRecord, record: RoundRecord) -> RoundRecord:
        signed = record.challenged.transcript
        if len(signed.signatures) == _BOTH:
            return record
        reveal = ChallengeReveal(transcript=signed)
        self.server.failpoints.reach(Point.BEFORE_CHALLENGE_SENT)
        body = await self.peer.post(round_path(paths.PEER_CHALLENGE, study, record), reveal.canonical(), "challenge")
        reply = ChallengeReply.parse(body)
        check_signature(signed.message, reply.signature, self.server.peer)
        both: Signed[ChallengeTranscript] = with_signature(signed, reply.signature)
        agreed = record.agreed_set
        self.server.failpoints.reach(Point.BEFORE_CHALLENGE_STORED)
        record = self.server.store.change_round(record.key, lambda r: replace(r, agreed_set=agreed, transcript=both))
        self.server.failpoints.reach(Point.AFTER_CHALLENGE_STORED)
        return record

    async def _queries(self, record: RoundRecord) -> RoundRecord:
        """Wait for the requester's queries; when they do not come in time the round is skipped."""
        deadline = self._deadline_s(record)
        while queries_missing(record):
            change = self.server.changes.next(record.key.study)
            record = self.server.store.round(record.key) or record
            if not queries_missing(record):
                break
            self._require_open(record)
            if self.server.clock() >= deadline:
                await self.endings.skip(record, OutcomeCause.QUERIES_MISSING)
                return self.server.store.round(record.key) or record
            await wait_up_to(change, deadline - self.server.clock())
        return record

    async def _exchange(self, study: StudyRecord, record: RoundRecord, stock: Stock, own: Products) -> None:
        """Mark the correlations as used, exchange the masked vectors, store the opening."""
        challenged = record.challenged
        refs = tuple(c.ref(site) for c, site in zip(stock.correlations, challenged.sites, strict=True))
        self.server.failpoints.reach(Point.BEFORE_CORRELATIONS_MARKED)
        self.server.store.mark_used(
            [CorrelationUse(record.key, ref.site, ref.session, ref.batch, ref.index) for ref in refs]
        )
        self.server.failpoints.reach(Point.AFTER_CORRELATIONS_MARKED)
        self.server.metrics.correlations.labels("used").inc(len(refs))
        header = ProductsHeader(transcript_digest=challenged.transcript.message.digest(), correlations=refs)
        answer = await self._products_answer(study, record, pack_frame(header, own.masked))
        if answer is None:
            return
        self.server.failpoints.reach(Point.AFTER_MASKED_SENT)
        theirs, masked = unpack_frame(answer, ProductsHeader)
        if theirs != header:
            raise ProtocolViolation("the peer answered with products for other sites or correlations")
        opening = await asyncio.to_thread(
            seal_opening, self.server, record, own, masked, stock.zero_key, parameters_of(study, record)
        )
        state = step(record.progress, RoundEvent.MEASURED).state
        self.server.failpoints.reach(Point.BEFORE_OPENING_STORED)
        self.server.store.change_round(
            record.key, lambda r: replace(r, state=state), answers=[Answer(AnswerKind.OPENING, "", opening)]
        )
        self.server.failpoints.reach(Point.AFTER_OPENING_STORED)
        self.sketches.forget(record.key)
        self._phases.observe(study, "locked", "measuring")

    async def _products_answer(self, study: StudyRecord, record: RoundRecord, frame: bytes) -> bytes | None:
        """Send the same bytes until B has its queries; None once the round has been skipped or burnt."""
        path = round_path(paths.PEER_PRODUCTS, study, record)
        deadline = self._deadline_s(record)
        while True:
            try:
                return await self.peer.post(path, frame, "products", MAX_CONTROL_BYTES + len(frame))
            except Unavailable:
                self._require_open(record)
                if self.server.clock() >= deadline:
                    await self.endings.skip(record, OutcomeCause.QUERIES_MISSING)
                    return None
                await asyncio.sleep(_FIRST_RETRY_S)
            except (RefusedMessage, ProtocolViolation) as error:
                await self.endings.burn(record, OutcomeCause.PRODUCTS_REFUSED, error.code)
                return None

    # --- release ------------------------------------------------------------------------------------------------------

    async def _release(self, study: StudyRecord, record: RoundRecord) -> None:
        if record.announcement.message.purpose is Purpose.RANKING:
            await self.endings.rank(record, OutcomeCause.RANKED)
            return
        self._phases.mark(study, "measured")
        record = await self._release_set(study, record)
        if record.release_set is None:
            return
        self._phases.observe(study, "measured", "waiting_for_release_set")
        path = round_path(paths.PEER_RELEASE_SET, study, record)
        try:
            await self.peer.put(path, record.release_set.canonical(), "release_set")
        except ConflictingMessage as error:
            record = await self.endings.adopt_peers_release_set(study, record, error)
        if masking_side(record.key.round) is Side.A:
            await send_masked_sum(self.server, self.peer, study, record)
        else:
            await fetch_masked_sum(self.server, self.peer, study, record)
        self._phases.observe(study, "locked", "lock_to_release")

    async def _release_set(self, study: StudyRecord, record: RoundRecord) -> RoundRecord:
        deadline = self._deadline_s(record)
        change = self.server.changes.next(study.digest)
        record = self.server.store.round(record.key) or record
        if record.release_set is not None:
            return record
        left_s = deadline - self.server.clock()
        if await wait_up_to(change, min(_RELEASE_SET_POLL_S, left_s)):
            return self.server.store.round(record.key) or record
        try:
            await self.endings.take_peers_release_set(study, record)
        except UnknownResource:
            if left_s <= 0:
                await self.endings.skip(record, OutcomeCause.RELEASE_SET_MISSING)
        return self.server.store.round(record.key) or record

    # --- small things -------------------------------------------------------------------------------------------------

    def _deadline_s(self, record: RoundRecord) -> float:
        """Until when queries and release set are waited for."""
        return record.closes_at_s + self.server.settings.limits.grace_s

    def _require_open(self, record: RoundRecord) -> None:
        if self.server.store.study(record.key.study).state.ended:
            raise NotYet("the study has ended")
