"""Side A's stock of correlations, made with side B ahead of time (docs/protocol.md 7)."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from host import log
from protocol.channel.message import pack_frame, unpack_frame
from protocol.errors import MoietyError, UnknownResource
from protocol.messages.control import MAX_CONTROL_BYTES, MOST_RANKING_ROUNDS, Purpose, Roster, RoundState
from protocol.messages.paths import PEER_ANSWER, PEER_BASE, PEER_EXTEND, PEER_SESSION, fill
from protocol.messages.peer import BatchHeader, SessionOpen, SessionOpened
from protocol.mpc.measurement import product_lengths
from protocol.ot.session import products_message_bytes
from servers.correlations.oblivious_transfer import (
    KEY_PART_BYTES,
    OBLIVIOUS,
    Correlation,
    Lengths,
    Receiver,
    Transfer,
    in_batches,
    open_key_part,
    seal_key_part,
    zero_key,
)
from servers.failpoints import Point
from servers.peer_client import PeerClient
from servers.server import Server
from servers.store.records import RoundRecord, StudyRecord

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
    counting = of.rule.name.counts_classes and (last is None or last.progress.state is RoundState.SKIPPED)
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
