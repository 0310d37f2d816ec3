"""Side A drives every round from its announcement to its end; one task per study (docs/protocol.md 4 to 9).

The task looks at the stored round, does what its state asks for, and looks again. So a restart needs nothing but
the database: only what depends on an OT session is lost with it, and then the attempt is burnt.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

from host import log
from protocol.channel.message import pack_frame, unpack_frame
from protocol.errors import (
    MoietyError,
    PeerUnreachable,
    ProtocolViolation,
    RefusedMessage,
    ShareAltered,
    Unavailable,
    UnknownResource,
)
from protocol.messages import paths
from protocol.messages.control import MAX_CONTROL_BYTES, RoundState, check_signature, with_signature
from protocol.messages.peer import ChallengeReply, ChallengeReveal, CollectedSet, LockReply, ProductsHeader
from protocol.release import masking_side
from protocol.rounds.side_a import (
    Act,
    AwaitGo,
    AwaitReleaseSet,
    BothHold,
    End,
    Halt,
    Lock,
    Refused,
    Step,
    Wait,
    lock_request,
    lost_share,
    tossed,
)
from protocol.rounds.states import (
    AtA,
    Attempt,
    AwaitingQueries,
    Collecting,
    Countersigning,
    Locked,
    Over,
    RoundEvent,
    RoundKey,
    SumSigned,
)
from protocol.sharing import Side
from servers.correlations import CorrelationPool, Stock, demand, stock_quietly
from servers.event_loop import wait_until, wait_up_to
from servers.failpoints import Point
from servers.monitoring import Phases
from servers.peer_client import AlteredAtPeer, PeerClient
from servers.rounds.ciphertexts import countersigned_set, deliver_sum_release, sum_up
from servers.rounds.contributions import collected
from servers.rounds.endings import Endings, NotYet, ask_for_go, hand_over_go, next_step, round_path
from servers.rounds.masked_sum import fetch_masked_sum, send_masked_sum
from servers.rounds.sketches import (
    Products,
    Sketches,
    needed_lengths,
    parameters_of,
    prepare_products,
    seal_opening,
)
from servers.rounds.state import at_a
from servers.server import Server
from servers.store.records import A_NEW_STUDY, Answer, AnswerKind, CorrelationUse, RoundRecord, StudyRecord

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0
_SESSION_CHECK_S: Final = 10.0
_SESSION_RETRY_S: Final = 0.3
_SESSION: Final = "session"
_NOTHING: Final = object()
_log = log.logger("driver")


@dataclass(frozen=True)
class _Turn:
    """A look at a study's round; ``change`` was taken before it and is set by whatever changes the study after it,
    ``shown`` likewise by all but contributions that no view shows.
    """

    study: StudyRecord
    record: RoundRecord
    state: AtA
    change: asyncio.Event
    shown: asyncio.Event


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
    _told: dict[str, Attempt | object | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._phases = Phases(self.server.metrics, self.server.clock)

    async def run(self) -> None:
        """Start a task for every open study, now and whenever one is created; runs until cancelled."""
        self._tasks[_SESSION] = asyncio.create_task(self._keep_session())
        try:
            while True:
                change = self.server.changes.next(A_NEW_STUDY)
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
        self._tasks = {digest: task for digest, task in self._tasks.items() if not task.done()}
        for record in self.server.store.studies():
            if record.goes_on and record.digest not in self._tasks:
                self._tasks[record.digest] = asyncio.create_task(self._drive(record.digest))

    async def _keep_session(self) -> None:
        """Open an OT session early, and another when the peer has lost it; the longer it is away, the rarer."""
        retry_s = _SESSION_RETRY_S
        while True:
            try:
                await self.pool.check_session()
            except MoietyError as error:
                _log.info("session_not_checked", code=error.code)
            except Exception:
                _log.exception("driver_failed", study="all")
            await stock_quietly(self.pool, [])
            opened = self.pool.session_open
            await asyncio.sleep(_SESSION_CHECK_S if opened else retry_s)
            retry_s = _SESSION_RETRY_S if opened else min(2 * retry_s, _LAST_RETRY_S)

    async def _drive(self, digest: str) -> None:
        retry_s, name = _FIRST_RETRY_S, digest
        while True:
            change, shown = self.server.changes.next(digest), self.server.changes.next_shown(digest)
            try:
                name = self.server.store.study(digest).name
                await self._tell(digest)
                study = self.server.store.study(digest)
                if not study.goes_on:
                    self._phases.forget(digest)  # its last round may have ended while the peer was told
                    return
                record = self.server.store.current_round(digest)
                state = None if record is None else at_a(self.server, record)
                if record is None or state is None or isinstance(state, Over):
                    self._phases.forget(digest)
                    await stock_quietly(self.pool, self._demand(study, record))
                    await change.wait()
                else:
                    await self._carry_out(_Turn(study, record, state, change, shown))
                retry_s = _FIRST_RETRY_S
            except MoietyError as error:
                if not isinstance(error, NotYet):
                    _log.warning("round_waits", study=name, code=error.code, detail=error.detail)
                await wait_up_to(change, retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
            except Exception:
                _log.exception("driver_failed", study=name)
                await asyncio.sleep(_LAST_RETRY_S)

    async def _tell(self, digest: str) -> None:
        """The peer hears how far this server came once there is a study, a round is measured, and once it is over."""
        self.server.history.require_current()
        record = self.server.store.current_round(digest)
        begun = None if record is None else record.begun
        waits = begun is not None and begun.state is RoundState.MEASURED
        if self._told.get(digest, _NOTHING) == begun or not (begun is None or begun.final or waits):
            return
        try:
            await self.peer.compare()
        except PeerUnreachable:
            if waits:
                raise
            return  # nothing waits for it: the next one brings more
        self._told[digest] = begun

    def _demand(self, study: StudyRecord, last: RoundRecord | None) -> list[tuple[int, ...]]:
        """Return the correlations that the next round will consume."""
        return demand(self.server.roster, study, last)

    # --- what the round's state asks for ------------------------------------------------------------------------------

    async def _carry_out(self, turn: _Turn) -> None:
        try:
            await self._do(next_step(self.server, turn.state), turn)
        except ShareAltered as error:
            await self._end_without_share(turn, error)

    async def _end_without_share(self, turn: _Turn, error: ShareAltered) -> None:
        """Skip the round, naming the server and the site. Raises: ``error``, where the round is over anyhow"""
        server, at = self.server, Side.B if isinstance(error, AlteredAtPeer) else Side.A
        record = server.store.round(turn.record.key) or turn.record
        if record.outcome is not None or server.store.study(turn.study.digest).state.ended:
            raise error
        named = [site for site in record.agreed.message.sites if error.is_of(site)]
        _log.error("share_altered", study=turn.study.name, server=at.value, site=", ".join(named), detail=error.detail)
        step = lost_share(at_a(server, record), error, at, named[0] if named else None)
        if isinstance(step, Halt):
            raise ProtocolViolation(step.detail)
        await self.endings.end(record, step)

    async def _do(self, step: Step, turn: _Turn) -> None:
        study, record = turn.study, turn.record
        match step:
            case Wait(until_s):
                await self._prepare(turn)
                await self._changed(turn, until_s)
            case AwaitReleaseSet() | AwaitGo():
                await self._await_requester(turn, step)
            case Lock():
                self._lock(turn, step)
            case End():
                await self.endings.end(record, step)
            case Act.COMPARE | Act.READ_OWN:
                self._phases.mark(study.digest, "announced")
                await self._compare(turn, step is Act.COMPARE)
            case Act.TOSS if isinstance(turn.state, Locked):
                await self._toss(turn, turn.state)
            case Act.MULTIPLY:
                await self._multiply(turn)
            case Act.COUNTERSIGN:
                await self._countersign(turn)
            case Act.HAND_OVER | Act.SUM_UP | Act.HAND_OVER_GO:
                await self._release(turn, step)
            case Act.LOOK_AGAIN:
                pass
            case _:
                raise ProtocolViolation(f"{record.key.label}: {step} is no step to carry out; this is a defect")

    async def _changed(self, turn: _Turn, until_s: float) -> None:
        """Wait; for a contribution that more must follow, one count is read and not the round again."""
        server, change = self.server, turn.change
        while await wait_until(change, until_s, server.clock) and not turn.shown.is_set():
            change = server.changes.next(turn.study.digest)
            if not (isinstance(turn.state, Collecting) and self._more_to_come(turn.state)):
                return

    def _more_to_come(self, state: Collecting) -> bool:
        answered = self.server.store.contributions_held(state.attempt.key) + len(state.absent)
        return answered < len(state.attempt.announcement.listed)

    async def _prepare(self, turn: _Turn) -> None:
        """Before a wait: what the next step will need."""
        study, record = turn.study, turn.record
        if isinstance(turn.state, AwaitingQueries):
            self.sketches.begin(record, parameters_of(study, record))
            return
        self._phases.mark(study.digest, "announced")
        if record.key not in self._stocked:
            self._stocked.add(record.key)
            await stock_quietly(self.pool, self._demand(study, record))

    async def _countersign(self, turn: _Turn) -> None:
        study, record = turn.study, turn.record
        match turn.state:
            case Countersigning():
                await countersigned_set(self.server, self.peer, study, record)
            case SumSigned():
                await deliver_sum_release(self.server, self.peer, study, record)
                self._phases.observe(study.digest, "locked", "lock_to_release")
            case _:
                await self.endings.deliver(record)

    # --- collecting ---------------------------------------------------------------------------------------------------

    async def _compare(self, turn: _Turn, with_peer: bool) -> None:
        """Side B's list first, or none where it holds nothing."""
        server, record = self.server, turn.record
        theirs: CollectedSet | None = None
        if with_peer:
            try:
                path = round_path(paths.PEER_COLLECTED, turn.study, record)
                theirs = CollectedSet.parse(await self.peer.get(path, "collected"))
            except UnknownResource as error:
                await self._do(next_step(server, turn.state, Refused(error)), turn)
                return
        with server.store.alone(turn.study.digest):  # nothing is stored between what is held and the lock
            mine = collected(server, record)
            following = next_step(server, turn.state, BothHold(mine, theirs or mine))
            if isinstance(following, Lock):
                self._lock(turn, following)
                return
        await self._do(following, turn)

    def _lock(self, turn: _Turn, lock: Lock) -> None:
        server, study = self.server, turn.study
        record = server.store.round(turn.record.key) or turn.record
        nonce = server.randomness.bytes(32, f"{record.key.label} challenge nonce") if lock.tosses else None
        state = record.begun.after(RoundEvent.LOCKED)
        signed = server.sign(lock.agreed)
        server.failpoints.reach(Point.BEFORE_LOCK_SIGNED)
        server.store.change_round(record.key, lambda r: replace(r, state=state, agreed_set=signed, own_nonce=nonce))
        server.failpoints.reach(Point.AFTER_LOCK_SIGNED)
        server.files.delete(server.store.forget_share_files(study.digest, before_round=record.key.round))
        server.shares.forget(study.digest)
        self._phases.observe(study.digest, "announced", "collecting")
        self._phases.mark(study.digest, "locked")

    # --- challenge, products ------------------------------------------------------------------------------------------

    async def _toss(self, turn: _Turn, state: Locked) -> None:
        """Both signatures under set and challenge; what B says to the lock is the same whenever it is asked again."""
        server, study, record = self.server, turn.study, turn.record
        request = lock_request(state)
        body = await self.peer.post(round_path(paths.PEER_LOCK, study, record), request.canonical(), "lock")
        toss = tossed(state, LockReply.parse(body), server.peer)
        signed = server.sign(toss.transcript)
        reveal = ChallengeReveal(transcript=signed)
        server.failpoints.reach(Point.BEFORE_CHALLENGE_SENT)
        body = await self.peer.post(round_path(paths.PEER_CHALLENGE, study, record), reveal.canonical(), "challenge")
        reply = ChallengeReply.parse(body)
        check_signature(signed.message, reply.signature, server.peer)
        both = with_signature(signed, reply.signature)
        server.failpoints.reach(Point.BEFORE_CHALLENGE_STORED)
        server.store.change_round(record.key, lambda r: replace(r, agreed_set=toss.agreed, transcript=both))
        server.failpoints.reach(Point.AFTER_CHALLENGE_STORED)

    async def _multiply(self, turn: _Turn) -> None:
        """Try until it works, or until the round's time is over."""
        try:
            stock, own = await self._multiplied(turn)
        except ShareAltered:
            raise
        except Exception:
            following = next_step(self.server, turn.state, Refused(Unavailable("side A cannot measure now")))
            if following is Act.SEND_AGAIN:
                raise
            _log.exception("not_measured", study=turn.study.name)
            await self._do(following, turn)
        else:
            await self._exchange(turn, stock, own)

    async def _multiplied(self, turn: _Turn) -> tuple[Stock, Products]:
        study, record = turn.study, turn.record
        parameters = parameters_of(study, record)
        sketching = self.sketches.begin(record, parameters)
        sketches, _ = await asyncio.gather(sketching, self.pool.check_session())
        stock = await self.pool.take(needed_lengths(self.server, record, parameters))
        halves = [c.half for c in stock.correlations]
        return stock, await asyncio.to_thread(prepare_products, self.server, record, sketches, halves, parameters)

    async def _exchange(self, turn: _Turn, stock: Stock, own: Products) -> None:
        study, record = turn.study, turn.record
        challenged = record.challenged
        refs = tuple(c.ref(site) for c, site in zip(stock.correlations, challenged.sites, strict=True))
        self.server.failpoints.reach(Point.BEFORE_CORRELATIONS_MARKED)
        self.server.store.mark_used(
            [CorrelationUse(record.key, ref.site, ref.session, ref.batch, ref.index) for ref in refs]
        )
        self.server.failpoints.reach(Point.AFTER_CORRELATIONS_MARKED)
        self.server.metrics.correlations.labels("used").inc(len(refs))
        header = ProductsHeader(transcript_digest=challenged.transcript.message.digest(), correlations=refs)
        answer = await self._products_answer(turn, pack_frame(header, own.masked))
        if answer is None:
            return
        self.server.failpoints.reach(Point.AFTER_MASKED_SENT)
        theirs, masked = unpack_frame(answer, ProductsHeader)
        if theirs != header:
            raise ProtocolViolation("the peer answered with products for other sites or correlations")
        opening = await asyncio.to_thread(
            seal_opening, self.server, record, own, masked, stock.zero_key, parameters_of(study, record)
        )
        state = record.begun.after(RoundEvent.MEASURED)
        self.server.failpoints.reach(Point.BEFORE_OPENING_STORED)
        self.server.store.change_round(
            record.key, lambda r: replace(r, state=state), answers=[Answer(AnswerKind.OPENING, "", opening)]
        )
        self.server.failpoints.reach(Point.AFTER_OPENING_STORED)
        self.sketches.forget(record.key)
        self._phases.observe(study.digest, "locked", "measuring")

    async def _products_answer(self, turn: _Turn, frame: bytes) -> bytes | None:
        """Send the same bytes until B has its queries; None once the round has been skipped or burnt."""
        path = round_path(paths.PEER_PRODUCTS, turn.study, turn.record)
        while True:
            try:
                return await self.peer.post(path, frame, "products", MAX_CONTROL_BYTES + len(frame))
            except ShareAltered:
                raise
            except (Unavailable, RefusedMessage, ProtocolViolation) as error:
                following = next_step(self.server, turn.state, Refused(error))
            if following is not Act.SEND_AGAIN:
                await self._do(following, turn)
                return None
            await asyncio.sleep(_FIRST_RETRY_S)

    # --- release ------------------------------------------------------------------------------------------------------

    async def _await_requester(self, turn: _Turn, step: AwaitReleaseSet | AwaitGo) -> None:
        """Its release set, or its go: wait for it here, then ask B."""
        study, record = turn.study, turn.record
        waits_for_go = isinstance(step, AwaitGo)
        self._phases.mark(study.digest, "committed" if waits_for_go else "measured")
        if await wait_up_to(turn.change, step.for_s):
            return
        if waits_for_go:
            await self._do(await ask_for_go(self.server, self.peer, study, record), turn)
        else:
            await self._do(await self.endings.ask_for_release_set(study, record), turn)

    async def _release(self, turn: _Turn, step: Step) -> None:
        study, record = turn.study, turn.record
        if step is Act.HAND_OVER_GO:
            await hand_over_go(self.server, self.peer, study, record)
            self._phases.observe(study.digest, "committed", "waiting_for_go")
        else:
            self._phases.mark(study.digest, "measured")
            self._phases.observe(study.digest, "measured", "waiting_for_release_set")
            await self._sum(study, await self.endings.hand_over_release_set(study, record), step)
        if step is Act.HAND_OVER_GO or (step is Act.HAND_OVER and not record.announcement.message.tagged):
            self._phases.observe(study.digest, "locked", "lock_to_release")

    async def _sum(self, study: StudyRecord, record: RoundRecord, step: Step) -> None:
        if step is Act.SUM_UP:
            await sum_up(self.server, study, record)
        elif masking_side(record.key.round) is Side.A:
            await send_masked_sum(self.server, self.peer, study, record)
        else:
            await fetch_masked_sum(self.server, self.peer, study, record)
