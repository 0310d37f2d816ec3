"""Correlations between the servers, made by oblivious transfer ahead of the rounds (docs/protocol.md 7).

Side A opens a session and keeps a stock; side B answers. A session lives in memory only. Any restart, and any error in
a step, ends it; A then opens a new one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from host import log
from protocol.channel.message import pack_frame, unpack_frame
from protocol.channel.sealing import open_small, seal_small
from protocol.errors import (
    ConflictingMessage,
    ConsistencyCheckFailed,
    MoietyError,
    ProtocolViolation,
    UnknownResource,
)
from protocol.messages.control import MAX_CONTROL_BYTES, MOST_RANKING_ROUNDS, PartyName, Purpose, Roster, RoundState
from protocol.messages.paths import PEER_ANSWER, PEER_BASE, PEER_EXTEND, PEER_SESSION, fill
from protocol.messages.peer import BatchHeader, CorrelationRef, SessionOpen, SessionOpened
from protocol.mpc.measurement import product_lengths
from protocol.ot.session import (
    BATCH_ELEMENTS,
    CorrelationHalf,
    OtReceiver,
    OtSender,
    OtSenderOpening,
    SenderBatch,
    products_message_bytes,
)
from protocol.sharing import Side
from servers.failpoints import Point
from servers.peer_client import PeerClient
from servers.server import Server
from servers.store.records import RoundRecord, StudyRecord

_log = log.logger("correlations")
Lengths = tuple[int, ...]
KEY_PART_BYTES: Final = 32


@dataclass(frozen=True, eq=False)
class Correlation:
    """One half with its place in the session."""

    session: str
    batch: int
    index: int
    half: CorrelationHalf = field(repr=False)

    def ref(self, site: PartyName) -> CorrelationRef:
        return CorrelationRef(site=site, session=self.session, batch=self.batch, index=self.index)


def in_batches(wanted: Sequence[Lengths]) -> list[list[Lengths]]:
    """Cut a demand into batches of bounded size, at least one contributor each."""
    batches: list[list[Lengths]] = []
    room = 0
    for lengths in wanted:
        size = sum(lengths)
        if not batches or size > room:
            batches.append([])
            room = BATCH_ELEMENTS
        batches[-1].append(lengths)
        room -= size
    return batches


def zero_key(part_a: bytes, part_b: bytes) -> bytes:
    """The zero-sharing key, from one part of each server: uniform if one of the two parts is."""
    return hashlib.sha256(b"moiety/2 zero sharing key\x00" + part_a + part_b).digest()


def seal_key_part(server: Server, session: str, part: bytes) -> str:
    """This server's part, for the peer."""
    return seal_small(part, server.sealing_key_of(server.peer.name), _info(session, server.side)).hex()


def open_key_part(server: Server, session: str, sealed: str) -> bytes:
    """The peer's part. Raises: BrokenSeal"""
    return open_small(bytes.fromhex(sealed), server.keys.sealing, _info(session, server.side.other))


def _info(session: str, sender: Side) -> bytes:
    return f"moiety/2 zero sharing key of session {session} from side {sender.value}".encode()


class Transfer(NamedTuple):
    """The two sides' sessions; the protocol's, or those with which a test deals correlations."""

    receiver: type[OtReceiver] = OtReceiver
    sender: type[OtSender] = OtSender


OBLIVIOUS: Final = Transfer()


# --- side A ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stock:
    """Correlations taken for one attempt, all of one session, with that session's zero-sharing key."""

    zero_key: bytes = field(repr=False)
    correlations: list[Correlation]


@dataclass(eq=False)
class _Receiving:
    name: str
    receiver: OtReceiver
    zero_key: bytes = field(repr=False)
    batches: int = 0


class CorrelationPool:
    """Opens sessions, makes batches in a thread, hands correlations out once."""

    def __init__(self, server: Server, peer: PeerClient, transfer: Transfer = OBLIVIOUS) -> None:
        self._server = server
        self._peer = peer
        self._transfer = transfer
        self._lock = asyncio.Lock()
        self._session: _Receiving | None = None
        self._opened = 0
        self._free: defaultdict[Lengths, deque[Correlation]] = defaultdict(deque)

    @property
    def session_open(self) -> bool:
        return self._session is not None

    async def check_session(self) -> None:
        """Drop the session if the peer has lost it, for instance by a restart."""
        async with self._lock:
            if self._session is None:
                return
            try:
                await self._peer.get(fill(PEER_SESSION, session=self._session.name), "session")
            except UnknownResource:
                _log.info("session_lost", session=self._session.name)
                self._drop()

    async def stock(self, wanted: Sequence[Lengths]) -> None:
        """Make what is missing. After any error the session is gone and the next call opens a new one."""
        async with self._lock:
            missing = Counter(wanted)
            missing.subtract({lengths: len(free) for lengths, free in self._free.items()})
            if self._session is not None and not +missing:
                return
            try:
                session = self._session or await self._open()
                for batch in in_batches(sorted((+missing).elements(), reverse=True)):
                    await self._make(session, batch)
            except BaseException:
                self._drop()
                raise

    async def take(self, wanted: Sequence[Lengths]) -> Stock:
        """One correlation for each of ``wanted``, never handed out again."""
        while True:
            await self.stock(wanted)
            if self._session is not None and all(len(self._free[w]) >= n for w, n in Counter(wanted).items()):
                taken = [self._free[lengths].popleft() for lengths in wanted]
                self._count()
                return Stock(self._session.zero_key, taken)

    def _drop(self) -> None:
        if self._session is not None:
            self._session.receiver.close()
        self._session = None
        self._free.clear()
        self._count()

    def _count(self) -> None:
        self._server.metrics.pool.set(sum(len(free) for free in self._free.values()))

    async def _open(self) -> _Receiving:
        """Base OTs and the zero-sharing key. The name holds boot and count: in seeded mode no secret comes twice."""
        self._opened += 1
        label = f"ot session {self._server.boot} {self._opened}"
        name = self._server.randomness.bytes(32, f"{label} name").hex()
        part = self._server.randomness.bytes(KEY_PART_BYTES, f"{label} zero key")
        path = fill(PEER_SESSION, session=name)
        opening = SessionOpen(session=name, sealed_key_part=seal_key_part(self._server, name, part))
        answer = await self._peer.post(path, pack_frame(opening), "session")
        opened, message = unpack_frame(answer, SessionOpened)
        other = open_key_part(self._server, name, opened.sealed_key_part)
        rand = self._server.randomness.bytes(32, f"{label} base")
        receiver, reply = await asyncio.to_thread(
            self._transfer.receiver.open, bytes.fromhex(name), bytes(message), rand
        )
        self._server.failpoints.reach(Point.OT_BASE_MIDWAY)
        await self._peer.post(fill(PEER_BASE, session=name), reply, "session")
        self._session = _Receiving(name, receiver, zero_key(part, other))
        _log.info("session_opened", session=name)
        return self._session

    async def _make(self, session: _Receiving, lengths_list: list[Lengths]) -> None:
        number = session.batches
        session.batches += 1
        pending, columns = await asyncio.to_thread(session.receiver.extend, lengths_list)
        header = BatchHeader(session=session.name, batch=number, lengths=tuple(lengths_list))
        challenge = await self._step(PEER_EXTEND, header, columns, MAX_CONTROL_BYTES)
        self._server.failpoints.reach(Point.OT_BATCH_MIDWAY)
        answer = await asyncio.to_thread(session.receiver.answer, pending, challenge)
        most = products_message_bytes(sum(map(sum, lengths_list)))
        corrections = await self._step(PEER_ANSWER, header, answer, most)
        halves = await asyncio.to_thread(session.receiver.finish, pending, corrections)
        for index, half in enumerate(halves):
            self._free[half.lengths].append(Correlation(session.name, number, index, half))
        self._server.metrics.correlations.labels("made").inc(len(halves))
        self._count()

    async def _step(self, template: str, header: BatchHeader, body: bytes, most_bytes: int) -> bytes:
        path = fill(template, session=header.session, batch=header.batch)
        return await self._peer.post(path, pack_frame(header, body), "ot", most_bytes)


async def stock_quietly(pool: CorrelationPool, wanted: Sequence[Lengths]) -> None:
    """Make correlations ahead of time; a failure only means that the round makes them itself."""
    try:
        await pool.stock(wanted)
    except MoietyError as error:
        _log.info("not_stocked", code=error.code, detail=error.detail)


def demand(roster: Roster, study: StudyRecord, last: RoundRecord | None) -> list[tuple[int, ...]]:
    """Product lengths of every site, as far as the last round or the rule tells; the requester's place is 0.

    When a rule measures again is not known here; what such a round lacks is made once it is announced.
    """
    of = study.study
    if ranks_next(study, last):
        opens, parameters = Purpose.RANKING.plan.opened(of.rule.needs), of.parameters_in(Purpose.RANKING)
        return [product_lengths(opens, place, place == 0, parameters) for place in range(len(roster.sites))]
    if last is not None and last.announcement.message.purpose.plan.dispensable:
        last = None
    counting = of.rule.name.counts_classes and (last is None or last.state is RoundState.SKIPPED)
    if not of.protection.plan.opens and not counting:
        return []
    contributors, opens = len(roster.contributors), of.rule.needs
    if last is None and of.last_round(Purpose.MEASURE):
        opens = Purpose.MEASURE.plan.opened(opens)
    elif last is not None and last.state is not RoundState.CLOSED:
        contributors, opens = len(last.announcement.message.listed), last.announcement.message.opens
    return [product_lengths(opens, place, place == 0, of.parameters) for place in range(contributors + 1)]


def ranks_next(study: StudyRecord, last: RoundRecord | None) -> bool:
    """Return whether the round under way, or the next one, ranks the sites: the first, and each try after a skip."""
    if study.study.ranking is None or last is None:
        return study.study.ranking is not None
    if last.announcement.message.purpose.plan.summed or last.state is RoundState.RANKED:
        return False
    return last.state is not RoundState.SKIPPED or last.key.round < MOST_RANKING_ROUNDS


# --- side B ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Sending:
    name: str
    zero_key: bytes = field(repr=False)
    opening: OtSenderOpening | None
    sender: OtSender | None = None
    next_batch: int = 0
    pending: tuple[BatchHeader, SenderBatch] | None = None
    halves: dict[tuple[int, int], CorrelationHalf] = field(default_factory=dict, repr=False)


class OtSessions:
    """At most one session at a time; a new one replaces the old, and its unused correlations with it."""

    def __init__(self, server: Server, transfer: Transfer = OBLIVIOUS) -> None:
        self._server = server
        self._transfer = transfer
        self._session: _Sending | None = None
        self._lock = asyncio.Lock()

    @property
    def session_open(self) -> bool:
        return self._session is not None and self._session.sender is not None

    async def open(self, name: str, frame: bytes) -> bytes:
        """Raises: MalformedMessage, BrokenSeal, ConflictingMessage"""
        message, _ = unpack_frame(frame, SessionOpen)
        if message.session != name:
            raise ConflictingMessage("the frame names another session than the address")
        async with self._lock:
            part_a = open_key_part(self._server, name, message.sealed_key_part)
            part_b = self._server.randomness.bytes(KEY_PART_BYTES, f"ot session {name} zero key")
            rand = self._server.randomness.bytes(32, f"ot session {name} base")
            opening, base = await asyncio.to_thread(self._transfer.sender.open, bytes.fromhex(name), rand)
            self._drop()
            self._session = _Sending(name, zero_key(part_a, part_b), opening)
        self._server.failpoints.reach(Point.OT_BASE_MIDWAY)
        answer = SessionOpened(session=name, sealed_key_part=seal_key_part(self._server, name, part_b))
        return pack_frame(answer, base)

    async def finish_base(self, name: str, reply: bytes) -> None:
        async with self._lock:
            session = self._named(name)
            if session.opening is None:
                raise ProtocolViolation("this session's base OTs are done; open a new session")
            with self._dropping():
                session.sender = await asyncio.to_thread(session.opening.finish, reply)
            session.opening = None
            _log.info("session_opened", session=name)

    async def extend(self, name: str, batch: int, frame: bytes) -> bytes:
        header, body = _batch_frame(name, batch, frame)
        async with self._lock:
            session, sender = self.require(name)
            if batch != session.next_batch:  # a copy would move this side's streams on, and not the other's
                raise ProtocolViolation(f"batch {session.next_batch} comes next in this session, found {batch}")
            session.next_batch += 1
            rand = self._server.randomness.bytes(32, f"ot batch {name} {batch}")
            with self._dropping():
                pending, challenge = await asyncio.to_thread(
                    sender.challenge, bytes(body), [tuple(x) for x in header.lengths], rand
                )
            session.pending = (header, pending)
        self._server.failpoints.reach(Point.OT_BATCH_MIDWAY)
        return challenge

    async def answer(self, name: str, batch: int, frame: bytes) -> bytes:
        header, body = _batch_frame(name, batch, frame)
        async with self._lock:
            session, sender = self.require(name)
            if session.pending is None or session.pending[0] != header:
                raise ProtocolViolation(f"batch {batch} was not extended with these lengths; open a new session")
            with self._dropping():
                halves, corrections = await asyncio.to_thread(sender.respond, session.pending[1], bytes(body))
            session.pending = None
            session.halves |= {(batch, index): half for index, half in enumerate(halves)}
            self._server.metrics.correlations.labels("made").inc(len(halves))
            self._server.metrics.pool.set(len(session.halves))
        return corrections

    def halves(self, refs: Sequence[CorrelationRef]) -> tuple[bytes, list[CorrelationHalf]]:
        """The zero-sharing key and the halves that A names; they stay until ``spend``.

        Raises: UnknownResource
        """
        session, _ = self.require(refs[0].session)
        missing = [r for r in refs if r.session != session.name or (r.batch, r.index) not in session.halves]
        if missing or len({(r.batch, r.index) for r in refs}) != len(refs):
            raise UnknownResource(
                f"{len(missing)} of {len(refs)} correlations are not in this session's stock, or named twice"
            )
        return session.zero_key, [session.halves[r.batch, r.index] for r in refs]

    def spend(self, refs: Sequence[CorrelationRef]) -> None:
        """Forget what has been marked as used."""
        if self._session is None:
            return
        for ref in refs:
            self._session.halves.pop((ref.batch, ref.index), None)
        self._server.metrics.correlations.labels("used").inc(len(refs))
        self._server.metrics.pool.set(len(self._session.halves))

    def _named(self, name: str) -> _Sending:
        if self._session is None or self._session.name != name:
            raise UnknownResource("this session is not open here; open a new one")
        return self._session

    def require(self, name: str) -> tuple[_Sending, OtSender]:
        """The session of this name. Raises: UnknownResource, unless it is open"""
        session = self._named(name)
        if session.sender is None:
            raise UnknownResource("this session's base OTs are not done; open a new one")
        return session, session.sender

    def _drop(self) -> None:
        if self._session is not None and self._session.sender is not None:
            self._session.sender.close()
        self._session = None
        self._server.metrics.pool.set(0)

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """End the session when a step fails or is cancelled: half a step must not be followed by another."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, ConsistencyCheckFailed):  # an alarm for both operators
                _log.critical("consistency_check_failed", detail=error.detail)
            self._drop()
            raise


def _batch_frame(name: str, batch: int, frame: bytes) -> tuple[BatchHeader, memoryview]:
    header, body = unpack_frame(frame, BatchHeader)
    if (header.session, header.batch) != (name, batch):
        raise ConflictingMessage("the frame names another session or batch than the address")
    return header, body
