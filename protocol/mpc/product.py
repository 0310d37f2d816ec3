"""Inner products of a vector that A knows with one that B knows, as additive shares (docs/protocol.md 7).

A holds x, B holds y; a correlation gives A a and c_A, B b and c_B, with c_A + c_B = <a, b>. In two steps:

1. Each server sends :func:`mask` of its vector to the other: x - a and y - b.
2. Each calls :func:`finish`: A's share is <x, y - b> + c_A, B's is <x - a, b> + c_B; they add up to <x, y>.

Many products go in one batch: their vectors one after the other, cut by the correlation's ``lengths``.

Correlations come from either source:

    source        who must be trusted
    OT (default)  nobody, as long as the two servers do not collude
    dealer        whoever deals, not to collude with a server; simulations alone have one

Between machines each server carries the same steps of a session (``protocol/ot/session.py``) over HTTP.

Source:   docs/protocol.md 7
"""

from __future__ import annotations

from protocol.arithmetic.ring import Ring, Usage, derive, expand
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.ot.base import DEFAULT_EXTENSION, Extension
from protocol.ot.session import CorrelationHalf, LengthsList, OtReceiver, OtSender, checked_lengths, segment_sums
from protocol.sharing import Side


def mask(own: Ring, half: CorrelationHalf) -> Ring:
    """Step 1: the own vector minus the correlation's, to be sent to the peer.

    Shapes:   uint64[sum(lengths)] -> uint64[sum(lengths)], ring 2^64
    Consumes: the correlation: it must be marked as used, durably, before this leaves
    Reveals:  a uniform vector to the peer
    Raises:   ProtocolViolation, when the correlation was made for other lengths
    """
    _require_fit(own, half)
    return own - half.vector


def finish(own: Ring, peer_masked: Ring, half: CorrelationHalf, side: Side) -> Ring:
    """Step 2: this side's share of every product.

    Shapes:   uint64[sum(lengths)] twice -> uint64[len(lengths)], ring 2^64
    Reveals:  nothing
    Raises:   MalformedMessage, when the peer's vector has another length; ProtocolViolation as :func:`mask`
    Source:   Beaver 1991, for one-sided inputs
    """
    _require_fit(own, half)
    if peer_masked.shape != own.shape:
        raise MalformedMessage(
            f"the peer's masked vector must have {own.size} elements, found shape {peer_masked.shape}; "
            "both servers must batch the same sites in the same order"
        )
    terms = own * peer_masked if side is Side.A else peer_masked * half.vector
    return segment_sums([half.lengths], terms) + half.products


def zero_sharing(key: bytes, context: str, n: int) -> Ring:
    """Pseudo-random elements that A adds and B subtracts, to refresh shares before they are opened.

    Requires: ``key`` common to A and B alone; ``context`` never used for two openings
    Shapes:   -> uint64[n], ring 2^64
    """
    return expand(derive(key, f"zero sharing {context.encode().hex()}"), Usage.ZERO_SHARING, n)


def _require_fit(own: Ring, half: CorrelationHalf) -> None:
    if own.shape != half.vector.shape:
        raise ProtocolViolation(
            f"the correlation serves products of {len(half.lengths)} vectors with {half.vector.size} elements in all, "
            f"found operands of shape {own.shape}; take a correlation of the round's lengths"
        )


Halves = tuple[list[CorrelationHalf], list[CorrelationHalf]]
"""A's and B's, one per site, the requester among them."""


def open_ot_sessions(
    session_id: bytes,
    rand_a: bytes,
    rand_b: bytes,
    extension: Extension = DEFAULT_EXTENSION,
) -> tuple[OtReceiver, OtSender]:
    """Open a session with both servers in one process."""
    opening, message = OtSender.open(session_id, rand_b, extension)
    receiver, reply = OtReceiver.open(session_id, message, rand_a, extension)
    return receiver, opening.finish(reply)


def ot_batch(receiver: OtReceiver, sender: OtSender, lengths_list: LengthsList, rand: bytes) -> Halves:
    """One batch of an open session; ``rand`` is 32 fresh bytes of B, A's part follows from the session's keys.

    Raises: ProtocolViolation, ConsistencyCheckFailed, after which all unused halves of the session must be deleted
    """
    own, columns = receiver.extend(lengths_list)
    theirs, challenge = sender.challenge(columns, lengths_list, rand)
    halves_b, products = sender.respond(theirs, receiver.answer(own, challenge))
    return receiver.finish(own, products), halves_b


def ot_pair(lengths_list: LengthsList, rand_a: bytes, rand_b: bytes) -> Halves:
    """A whole session and one batch."""
    session_id = derive(rand_a, "session id")
    a, b = open_ot_sessions(session_id, derive(rand_a, "open"), derive(rand_b, "open"))
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
