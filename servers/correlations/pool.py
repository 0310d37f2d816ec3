"""Side A's stock of correlations, made with side B ahead of time (docs/protocol.md 7)."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from host import log
from protocol.channel.message import pack_frame, unpack_frame
from protocol.errors import MoietyError, UnknownResource
from protocol.messages.control import MAX_CONTROL_BYTES
from protocol.messages.paths import PEER_ANSWER, PEER_BASE, PEER_EXTEND, PEER_SESSION, fill
from protocol.messages.peer import BatchHeader, SessionOpen, SessionOpened
from protocol.ot.session import products_message_bytes
from servers.correlations.sessions import (
    KEY_PART_BYTES,
    Correlation,
    Lengths,
    in_batches,
    open_key_part,
    seal_key_part,
    zero_key,
)
from servers.correlations.transfer import OBLIVIOUS, Receiver, Transfer
from servers.http.peer_client import PeerClient
from servers.points import Point
from servers.server import Server

_log = log.logger("correlations")


@dataclass(frozen=True, eq=False)
class Stock:
    """Correlations taken for one attempt, all of one session, with that session's zero-sharing key."""

    zero_key: bytes = field(repr=False)
    correlations: list[Correlation]


@dataclass(eq=False)
class _Session:
    name: str
    receiver: Receiver
    zero_key: bytes = field(repr=False)
    batches: int = 0


class CorrelationPool:
    """Opens sessions, makes batches in a thread, hands correlations out once."""

    def __init__(self, server: Server, peer: PeerClient, transfer: Transfer = OBLIVIOUS) -> None:
        self._server = server
        self._peer = peer
        self._transfer = transfer
        self._lock = asyncio.Lock()
        self._session: _Session | None = None
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

    async def _open(self) -> _Session:
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
        receiver, reply = await asyncio.to_thread(self._transfer.receiver, bytes.fromhex(name), bytes(message), rand)
        self._server.failpoints.reach(Point.OT_BASE_MIDWAY)
        await self._peer.post(fill(PEER_BASE, session=name), reply, "session")
        self._session = _Session(name, receiver, zero_key(part, other))
        _log.info("session_opened", session=name)
        return self._session

    async def _make(self, session: _Session, lengths_list: list[Lengths]) -> None:
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
