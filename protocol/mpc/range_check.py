"""Range check: random projections of the sketch are small (docs/protocol.md 6).

Why: in Z_{2^64} a site can add 2^63 to an entry, or use multiples of 2^32, and keep its squared distance small while
it wrecks the sum. This stops wrap-around; it is not a norm bound.

For every projection y = <r, Sx>, shared as y = a + b, A adds 2^(h-1) to a; u = top bits of A's value, v = top bits
of -b, so that w = u - v is 0 or 1 mod 2^(64-h) when y is in range. The servers open m = w (w - 1), zero exactly then.

    A:  u^2 - u - 2 <u v>_A          B:  v^2 + v - 2 <u v>_B          all mod 2^(64-h)

A failed check means "check failed", never "site cheated": a deviating server can cause one.
"""

from __future__ import annotations

import numpy as np

from protocol.arithmetic.kernels import NUMBA, Kernels, Ternary
from protocol.arithmetic.prg import Usage, expand_bytes
from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage
from protocol.parameters import RANGE_PROJECTIONS, StudyParameters
from protocol.sharing import Side

_ENTRIES_PER_BYTE = 4
_ENTRY_OF_CODE = np.array([0, 0, 1, -1], dtype=np.int8)
_CODES_OF_BYTE = (np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3
_ENTRIES_OF_BYTE = _ENTRY_OF_CODE[_CODES_OF_BYTE].view(np.uint32).ravel()  # four entries, moved as one


def projections(challenge: bytes, parameters: StudyParameters) -> Ternary:
    """The ternary vectors r of one challenge: 0 with probability 1/2, +1 and -1 with 1/4 each.

    Entry j, counted row by row, is the two bits from 2 (j mod 4) of byte j // 4 of the stream: 00 and 01 -> 0,
    10 -> +1, 11 -> -1.

    Shapes:   -> int8[40, min(D, k)]
    """
    entries = RANGE_PROJECTIONS * parameters.sketched_length
    raw = np.frombuffer(expand_bytes(challenge, Usage.PROJECTIONS, entries // _ENTRIES_PER_BYTE), dtype=np.uint8)
    rows: Ternary = _ENTRIES_OF_BYTE.take(raw).view(np.int8).reshape(RANGE_PROJECTIONS, parameters.sketched_length)
    return rows


def project(sketch_share: Ring, rows: Ternary, kernels: Kernels = NUMBA) -> Ring:
    """Share of y = <r, Sx> for every projection r.

    Shapes:   uint64[k'], int8[40, k'] -> uint64[40], ring 2^64
    """
    if sketch_share.shape != rows.shape[1:]:
        raise MalformedMessage(
            f"a sketch share has {rows.shape[1]} elements, found shape {sketch_share.shape}; check the study parameters"
        )
    return kernels.project(rows, sketch_share)


def top_bits(side: Side, projected: Ring, parameters: StudyParameters) -> Ring:
    """u for A, v for B: the top 64-h bits of a + 2^(h-1), or of -b. Element-wise, any shape."""
    h = np.uint64(parameters.range_bits)
    if side is Side.A:
        return (projected + (np.uint64(1) << (h - np.uint64(1)))) >> h
    return np.negative(projected) >> h


def range_operand(
    side: Side, sketch_share: Ring, rows: Ternary, parameters: StudyParameters, kernels: Kernels = NUMBA
) -> Ring:
    """This side's factor of the product u v, for every projection.

    Shapes:   sketch_share uint64[k'], rows int8[40, k'] -> uint64[40], below 2^(64-h)
    Raises:   MalformedMessage
    """
    return top_bits(side, project(sketch_share, rows, kernels), parameters)


def range_check_shares(side: Side, own: Ring, product_shares: Ring, parameters: StudyParameters) -> Ring:
    """This side's shares of m = w (w - 1). Element-wise, any shape.

    Shapes:   own (from :func:`range_operand`) and product_shares uint64[40] -> uint64[40], mod 2^(64-h)
    """
    sign = np.negative(own) if side is Side.A else own
    return cut(own * own + sign - (product_shares + product_shares), parameters)


def cut(x: Ring, parameters: StudyParameters) -> Ring:
    """x mod 2^(64-h)."""
    return x & np.uint64((1 << (64 - parameters.range_bits)) - 1)


def passed_range_check(opened: Ring, parameters: StudyParameters) -> bool:
    """Return whether every m, the sum of both sides' shares, is zero mod 2^(64-h).

    Soundness: an update whose sketch has an entry of at least 3 * 2^h passes with probability at most
    (4/k)^4 + 2^-40.
    Source:   Gentry, Halevi and Lyubashevsky 2021 (projections); docs/protocol.md 6
    """
    return not np.any(cut(opened, parameters))
