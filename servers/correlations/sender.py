"""Side B's part of the OT sessions that side A opens (docs/protocol.md 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from host import log
from protocol.channel.message import pack_frame, unpack_frame
from protocol.errors import (
    ConflictingMessage,
    ConsistencyCheckFailed,
    ProtocolViolation,
    UnknownResource,
)
from protocol.messages.peer import BatchHeader, CorrelationRef, SessionOpen, SessionOpened
from protocol.ot.session import CorrelationHalf, SenderBatch
from servers.correlations.sessions import KEY_PART_BYTES, open_key_part, seal_key_part, zero_key
from servers.correlations.transfer import OBLIVIOUS, Sender, SenderOpening, Transfer
from servers.points import Point
from servers.server import Server

_log = log.logger("correlations")


@dataclass(eq=False)
class _Session:
    name: str
    zero_key: bytes = field(repr=False)
    opening: SenderOpening | None
    sender: Sender | None = None
    next_batch: int = 0
    pending: tuple[BatchHeader, SenderBatch] | None = None
    halves: dict[tuple[int, int], CorrelationHalf] = field(default_factory=dict, repr=False)


class OtSessions:
    """At most one session at a time; a new one replaces the old, and its unused correlations with it."""

    def __init__(self, server: Server, transfer: Transfer = OBLIVIOUS) -> None:
        self._server = server
        self._transfer = transfer
        self._session: _Session | None = None
        self._lock = asyncio.Lock()

    @property
    def session_open(self) -> bool:
        return self._session is not None and self._session.sender is not None

    def require(self, name: str) -> None:
        """Raises: UnknownResource, unless this session is open"""
        self._ready(name)

    async def open(self, name: str, frame: bytes) -> bytes:
        """Raises: MalformedMessage, BrokenSeal, ConflictingMessage"""
        message, _ = unpack_frame(frame, SessionOpen)
        if message.session != name:
            raise ConflictingMessage("the frame names another session than the address")
        async with self._lock:
            part_a = open_key_part(self._server, name, message.sealed_key_part)
            part_b = self._server.randomness.bytes(KEY_PART_BYTES, f"ot session {name} zero key")
            rand = self._server.randomness.bytes(32, f"ot session {name} base")
            opening, base = await asyncio.to_thread(self._transfer.sender, bytes.fromhex(name), rand)
            self._drop()
            self._session = _Session(name, zero_key(part_a, part_b), opening)
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
            session, sender = self._ready(name)
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
            session, sender = self._ready(name)
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
        session, _ = self._ready(refs[0].session)
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

    def _named(self, name: str) -> _Session:
        if self._session is None or self._session.name != name:
            raise UnknownResource("this session is not open here; open a new one")
        return self._session

    def _ready(self, name: str) -> tuple[_Session, Sender]:
        session = self._named(name)
        if session.sender is None:
            raise UnknownResource("this session's base OTs are not done; open a new one")
        return session, session.sender

    def _drop(self) -> None:
        if self._session is not None and self._session.sender is not None:
            self._session.sender.close()
        self._session = None
        self._server.metrics.pool.set(0)

    def _dropping(self) -> _DropOnError:
        return _DropOnError(self)

    def drop_after(self, error: BaseException) -> None:
        """A step failed or was cancelled: the session ends; a failed check is an alarm for both operators."""
        if isinstance(error, ConsistencyCheckFailed):
            _log.critical("consistency_check_failed", detail=error.detail)
        self._drop()


class _DropOnError:
    """Ends the session when a step raises, whatever it raises: half a step must not be followed by another."""

    def __init__(self, sessions: OtSessions) -> None:
        self._sessions = sessions

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._sessions.drop_after(error)


def _batch_frame(name: str, batch: int, frame: bytes) -> tuple[BatchHeader, memoryview]:
    header, body = unpack_frame(frame, BatchHeader)
    if (header.session, header.batch) != (name, batch):
        raise ConflictingMessage("the frame names another session or batch than the address")
    return header, body
