"""Correlations: what an inner product between the two servers consumes, and where they come from.

``CorrelationSource`` is the seam. A source's :meth:`draw` is a conversation: a generator that yields the bytes to
send, or None when it has to hear something first, and is sent what came back; it returns one half per contributor
(a side whose message is the last is sent b"" once more to return). Whoever drives it carries the bytes: a server
over HTTP, :func:`converse` in one process. After an error the conversation is over; after ConsistencyCheckFailed all
unused halves of the session must be deleted.

    source        counterparty   who must be trusted
    OT (default)  the other server                 nobody else
    dealer        a third operator                 the dealer not to collude with a server

Source:   docs/protocol.md 7
"""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from typing import Protocol, TypeAlias

from protocol.arithmetic import ring
from protocol.arithmetic.prg import SEED_BYTES, Usage, derive, expand
from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc.ot.digits import DEFAULT, Extension
from protocol.mpc.ot.half import CorrelationHalf, checked_lengths, segment_sums
from protocol.mpc.ot.kernels import NUMBA, OtKernels
from protocol.mpc.ot.session import LengthsList, OtReceiver, OtSender

Conversation: TypeAlias = Generator[bytes | None, bytes, list[CorrelationHalf]]


class Counterparty(StrEnum):
    """Whom a source's conversation is with."""

    PEER = "peer"
    DEALER = "dealer"


class CorrelationSource(Protocol):
    """One server's side of a way to make correlations."""

    @property
    def counterparty(self) -> Counterparty: ...

    def draw(self, lengths_list: LengthsList, rand: bytes) -> Conversation:
        """Make one half per contributor, in order; ``rand`` is 32 fresh bytes.

        Raises:   MalformedMessage, ProtocolViolation, ConsistencyCheckFailed
        """
        ...


class OtSourceA:
    """Server A's side of the OT source: it speaks first."""

    counterparty = Counterparty.PEER

    def __init__(self, session: OtReceiver) -> None:
        self._session = session

    def draw(self, lengths_list: LengthsList, rand: bytes) -> Conversation:
        """See :class:`CorrelationSource`; a follows from the session's keys, so ``rand`` is not used."""
        batch, columns = self._session.extend(lengths_list)
        challenge = yield columns
        products = yield self._session.answer(batch, challenge)
        return self._session.finish(batch, products)


class OtSourceB:
    """Server B's side of the OT source: it answers."""

    counterparty = Counterparty.PEER

    def __init__(self, session: OtSender) -> None:
        self._session = session

    def draw(self, lengths_list: LengthsList, rand: bytes) -> Conversation:
        """See :class:`CorrelationSource`."""
        columns = yield None
        batch, challenge = self._session.challenge(columns, lengths_list, rand)
        answer = yield challenge
        halves, products = self._session.respond(batch, answer)
        yield products
        return halves


class DealerSourceA:
    """Server A's side of the dealer source: it waits for a seed."""

    counterparty = Counterparty.DEALER

    def draw(self, lengths_list: LengthsList, rand: bytes) -> Conversation:
        """See :class:`CorrelationSource`."""
        delivery = yield None
        seeds = _seeds(lengths_list, delivery, SEED_BYTES)
        return [dealer_half_a(seed, lengths) for seed, lengths in zip(seeds, lengths_list, strict=True)]


class DealerSourceB:
    """Server B's side of the dealer source: it waits for a seed and one ring element a product."""

    counterparty = Counterparty.DEALER

    def draw(self, lengths_list: LengthsList, rand: bytes) -> Conversation:
        """See :class:`CorrelationSource`."""
        delivery = yield None
        count = sum(len(lengths) for lengths in lengths_list)
        seeds = _seeds(lengths_list, delivery, SEED_BYTES + ring.ELEMENT_BYTES * count)
        corrections = ring.from_bytes(memoryview(delivery)[SEED_BYTES:], count)
        halves, at = [], 0
        for seed, lengths in zip(seeds, lengths_list, strict=True):
            halves.append(dealer_half_b(seed, corrections[at : at + len(lengths)], lengths))
            at += len(lengths)
        return halves


def deliver(lengths_list: LengthsList, rand: bytes) -> tuple[bytes, bytes]:
    """The dealer's part: what it sends to A and to B for one batch.

    Shapes:   rand 32 fresh bytes, never used before -> 32 bytes, 32 + 8 bytes a product
    Reveals:  to the dealer every correlation: with one server it learns every sketch
    """
    checked_lengths(lengths_list)
    seed_a, seed_b = derive(rand, "dealer to a"), derive(rand, "dealer to b")
    pairs = zip(_each(seed_a, lengths_list), _each(seed_b, lengths_list), lengths_list, strict=True)
    corrections = [ring.to_bytes(dealer_corrections(one, other, lengths)) for one, other, lengths in pairs]
    return seed_a, seed_b + b"".join(corrections)


def dealer_half_a(seed_a: bytes, lengths: tuple[int, ...]) -> CorrelationHalf:
    """A's half for one contributor: all of it from the seed."""
    elements = checked_lengths([lengths])
    drawn = expand(seed_a, Usage.DEALER_A, elements + len(lengths))
    return CorrelationHalf(lengths, drawn[:elements].copy(), drawn[elements:].copy())


def dealer_half_b(seed_b: bytes, corrections: Ring, lengths: tuple[int, ...]) -> CorrelationHalf:
    """B's half for one contributor: b from the seed, c_B as the dealer computed it."""
    return CorrelationHalf(lengths, expand(seed_b, Usage.DEALER_B, checked_lengths([lengths])), corrections.copy())


def dealer_corrections(seed_a: bytes, seed_b: bytes, lengths: tuple[int, ...]) -> Ring:
    """c_B = <a, b> - c_A of every product of one contributor."""
    half_a = dealer_half_a(seed_a, lengths)
    own_b = expand(seed_b, Usage.DEALER_B, half_a.vector.size)
    return segment_sums([lengths], half_a.vector * own_b) - half_a.products


def converse(a: Conversation, b: Conversation) -> tuple[list[CorrelationHalf], list[CorrelationHalf]]:
    """Drive the two servers' conversations with each other in one process: A speaks first, B last.

    Raises:   ProtocolViolation, when one side stops or waits out of turn
    """
    waits, heard = next(b), next(a)
    if waits is not None or heard is None:
        raise ProtocolViolation("A speaks first in a conversation and B answers; check which side is which")
    while True:
        reply = _resume(b, heard)
        if isinstance(reply, list):
            raise ProtocolViolation("B stopped while A still waits; check that both use one source")
        result = _resume(a, reply)
        if isinstance(result, list):
            return result, _finished(_resume(b, b""))
        heard = result


def open_ot_sessions(
    session_id: bytes, rand_a: bytes, rand_b: bytes, kernels: OtKernels = NUMBA, extension: Extension = DEFAULT
) -> tuple[OtReceiver, OtSender]:
    """Open a session with both servers in one process."""
    opening, message = OtSender.open(session_id, rand_b, kernels, extension)
    receiver, reply = OtReceiver.open(session_id, message, rand_a, kernels, extension)
    return receiver, opening.finish(reply)


def ot_pair(
    lengths_list: LengthsList,
    rand_a: bytes,
    rand_b: bytes,
    kernels: OtKernels = NUMBA,
    extension: Extension = DEFAULT,
) -> tuple[list[CorrelationHalf], list[CorrelationHalf]]:
    """A whole session and one batch in one process, for tests and simulation."""
    session_id = derive(rand_a, "session id")
    a, b = open_ot_sessions(session_id, derive(rand_a, "open"), derive(rand_b, "open"), kernels, extension)
    return converse(
        OtSourceA(a).draw(lengths_list, derive(rand_a, "batch")),
        OtSourceB(b).draw(lengths_list, derive(rand_b, "batch")),
    )


def dealer_pair(lengths_list: LengthsList, rand: bytes) -> tuple[list[CorrelationHalf], list[CorrelationHalf]]:
    """The dealer's twin of :func:`ot_pair`, through the same sources as between machines."""
    to_a, to_b = deliver(lengths_list, rand)
    sides = (DealerSourceA().draw(lengths_list, b""), DealerSourceB().draw(lengths_list, b""))
    halves = []
    for side, delivery in zip(sides, (to_a, to_b), strict=True):
        next(side)
        halves.append(_finished(_resume(side, delivery)))
    return halves[0], halves[1]


def _resume(side: Conversation, message: bytes) -> bytes | list[CorrelationHalf]:
    try:
        spoken = side.send(message)
    except StopIteration as end:
        halves: list[CorrelationHalf] = end.value
        return halves
    if spoken is None:
        raise ProtocolViolation("a conversation waits twice in a row; check that both sides use one source")
    return spoken


def _finished(result: bytes | list[CorrelationHalf]) -> list[CorrelationHalf]:
    if isinstance(result, list):
        return result
    raise ProtocolViolation("a conversation goes on where it should have ended; check that both sides use one source")


def _each(seed: bytes, lengths_list: LengthsList) -> list[bytes]:
    return [derive(seed, f"contributor {i}") for i in range(len(lengths_list))]


def _seeds(lengths_list: LengthsList, delivery: bytes, length: int) -> list[bytes]:
    checked_lengths(lengths_list)
    if len(delivery) != length:
        raise MalformedMessage(f"the dealer's delivery for this batch has {length} bytes, found {len(delivery)}")
    return _each(delivery[:SEED_BYTES], lengths_list)
