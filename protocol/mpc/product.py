"""Inner products of a vector that A knows with one that B knows, as additive shares (docs/protocol.md 7).

A holds x, B holds y; a correlation gives A a and c_A, B b and c_B, with c_A + c_B = <a, b>. In two steps:

1. Each server sends :func:`mask` of its vector to the other: x - a and y - b.
2. Each calls :func:`finish`: A's share is <x, y - b> + c_A, B's is <x - a, b> + c_B; they add up to <x, y>.

Many products go in one batch: their vectors one after the other, cut by the correlation's ``lengths``.
"""

from __future__ import annotations

from protocol.arithmetic.prg import Usage, derive, expand
from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc.ot.half import CorrelationHalf, segment_sums
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


def zero_sharing(key: bytes, context: bytes | str, n: int) -> Ring:
    """Pseudo-random elements that A adds and B subtracts, to refresh shares before they are opened.

    Requires: ``key`` common to A and B alone; ``context`` never used for two openings
    Shapes:   -> uint64[n], ring 2^64
    """
    raw = context.encode() if isinstance(context, str) else context
    return expand(derive(key, f"zero sharing {raw.hex()}"), Usage.ZERO_SHARING, n)


def _require_fit(own: Ring, half: CorrelationHalf) -> None:
    if own.shape != half.vector.shape:
        raise ProtocolViolation(
            f"the correlation serves products of {len(half.lengths)} vectors with {half.vector.size} elements in all, "
            f"found operands of shape {own.shape}; take a correlation of the round's lengths"
        )
