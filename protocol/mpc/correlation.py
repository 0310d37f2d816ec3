"""Correlations in one process: what an inner product between the two servers consumes, from either source.

    source        who must be trusted
    OT (default)  nobody besides the two servers
    dealer        whoever deals, not to collude with a server; simulations alone have one

Between machines each server carries the same steps of a session (``protocol/mpc/ot/session.py``) over HTTP.

Source:   docs/protocol.md 7
"""

from __future__ import annotations

from protocol.arithmetic.prg import Usage, derive, expand
from protocol.arithmetic.ring import Ring
from protocol.mpc.ot.digits import DEFAULT_EXTENSION, Extension
from protocol.mpc.ot.half import CorrelationHalf, checked_lengths, segment_sums
from protocol.mpc.ot.kernels import NUMBA, OtKernels
from protocol.mpc.ot.session import LengthsList, OtReceiver, OtSender

Halves = tuple[list[CorrelationHalf], list[CorrelationHalf]]
"""A's and B's, one per contributor."""


def open_ot_sessions(
    session_id: bytes,
    rand_a: bytes,
    rand_b: bytes,
    kernels: OtKernels = NUMBA,
    extension: Extension = DEFAULT_EXTENSION,
) -> tuple[OtReceiver, OtSender]:
    """Open a session with both servers in one process."""
    opening, message = OtSender.open(session_id, rand_b, kernels, extension)
    receiver, reply = OtReceiver.open(session_id, message, rand_a, kernels, extension)
    return receiver, opening.finish(reply)


def ot_batch(receiver: OtReceiver, sender: OtSender, lengths_list: LengthsList, rand: bytes) -> Halves:
    """One batch of an open session; ``rand`` is 32 fresh bytes of B, A's part follows from the session's keys.

    Raises: ProtocolViolation, ConsistencyCheckFailed, after which all unused halves of the session must be deleted
    """
    own, columns = receiver.extend(lengths_list)
    theirs, challenge = sender.challenge(columns, lengths_list, rand)
    halves_b, products = sender.respond(theirs, receiver.answer(own, challenge))
    return receiver.finish(own, products), halves_b


def ot_pair(
    lengths_list: LengthsList,
    rand_a: bytes,
    rand_b: bytes,
    kernels: OtKernels = NUMBA,
    extension: Extension = DEFAULT_EXTENSION,
) -> Halves:
    """A whole session and one batch."""
    session_id = derive(rand_a, "session id")
    a, b = open_ot_sessions(session_id, derive(rand_a, "open"), derive(rand_b, "open"), kernels, extension)
    return ot_batch(a, b, lengths_list, derive(rand_b, "batch"))


def dealer_pair(lengths_list: LengthsList, rand: bytes) -> Halves:
    """The dealer's twin of :func:`ot_pair`.

    Shapes:   rand 32 fresh bytes, never used before
    Reveals:  to the dealer every correlation: with one server it learns every sketch
    """
    checked_lengths(lengths_list)
    seed_a, seed_b = derive(rand, "dealer to a"), derive(rand, "dealer to b")
    halves_a, halves_b = [], []
    for place, lengths in enumerate(lengths_list):
        own_a, own_b = (derive(seed, f"contributor {place}") for seed in (seed_a, seed_b))
        halves_a.append(dealer_half_a(own_a, lengths))
        halves_b.append(dealer_half_b(own_b, dealer_corrections(own_a, own_b, lengths), lengths))
    return halves_a, halves_b


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
