"""The public random sketch of every share, and the range check on it (docs/protocol.md 5, 6).

The sketch: four blocks of k/4 buckets; every coordinate falls into one pseudo-random bucket of each block with a
pseudo-random sign. ||Sx||^2 / 4 estimates ||x||^2 with a relative standard deviation of about sqrt(2/k). Buckets are
hashed independently: in a regular pattern a vector of entries 2^63 would cancel in every bucket. Vectors of at most k
coordinates are left as they are.

The range check, that random projections of the sketch are small. Why: in Z_{2^64} a site can add 2^63 to an entry, or
use multiples of 2^32, and keep its squared distance small while it wrecks the sum. This stops wrap-around; it is not a
norm bound.

For every projection s = <r, Sx>, shared as s = s_A + s_B, A adds 2^(h-1) to s_A; u = top bits of A's value, v = top
bits of -s_B. Then e = u - v mod 2^(64-h) is 0 or 1 whenever |s| < 2^(h-1), never when |s| > 1.5 * 2^h, and in between
as the shares fall. The requester opens m = e (e - 1), which is zero exactly when e is 0 or 1. [u v] is a share of u v:

    A:  u^2 - u - 2 [u v]_A          B:  v^2 + v - 2 [u v]_B          all mod 2^(64-h)

An honest site shows zeros alone; a site out of range shows about how large its projections are.

A failed check means "check failed", never "site cheated": a deviating server can cause one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.arithmetic import kernels
from protocol.arithmetic.kernels import Ternary
from protocol.arithmetic.ring import Ring, Usage, expand, expand_bytes, lifted
from protocol.errors import MalformedMessage
from protocol.parameters import RANGE_PROJECTIONS, StudyParameters
from protocol.sharing import ChunkSource, Side

DEFAULT_CHUNK = 1 << 16


def sketch_shares(
    challenge: bytes,
    shares: Sequence[ChunkSource],
    parameters: StudyParameters,
    chunk: int = DEFAULT_CHUNK,
) -> list[Ring]:
    """Sketches of many shares in one pass over the coordinates.

    Why: the map's pseudo-random words are drawn once a chunk, for all sites; no more than one chunk of one share is
    in memory.

    In a study of 48 bits each sketch is of shares modulo 2^48, and each server reads its own as signed numbers, by
    itself: but for a chance of at most 2 E sqrt(k) / 2^48 both add up to the sketch modulo 2^64, and else the range
    check fails (section 24).

    Shapes:   each share uint64[D], read as source(start, stop) -> one uint64[min(D, k)] each, ring 2^64
    Reveals:  nothing; linear, so the sketches of two shares are shares of the sketch
    Raises:   MalformedMessage, when a source returns another number of elements than asked for
    Source:   Kane and Nelson 2014 (sparse Johnson-Lindenstrauss, block construction)
    """
    whole = sketch_range(challenge, shares, parameters, 0, parameters.dimension, chunk)
    return [lifted(one, parameters.ring_bits) for one in whole]


def sketch_range(
    challenge: bytes,
    shares: Sequence[ChunkSource],
    parameters: StudyParameters,
    start: int,
    stop: int,
    chunk: int = DEFAULT_CHUNK,
) -> list[Ring]:
    """The part of each sketch that coordinates ``start`` to ``stop`` make: parts of all coordinates add up to it.

    The sum of all parts is then to be lifted, as :func:`sketch_shares` does.

    Shapes, reveals, raises: as :func:`sketch_shares`
    """
    totals = [np.zeros(parameters.sketched_length, dtype=np.uint64) for _ in shares]
    for at in range(start, stop, chunk):
        end = min(at + chunk, stop)
        if parameters.exact_distances:
            for total, source in zip(totals, shares, strict=True):
                total[at:end] = _read(source, at, end)
            continue
        words = expand(challenge, Usage.SKETCH, end - at, start=at)
        for total, source in zip(totals, shares, strict=True):
            kernels.sketch_into(total, words, _read(source, at, end))
    return totals


def sketch_vector(challenge: bytes, x: Ring, parameters: StudyParameters) -> Ring:
    """The sketch of one vector in memory.

    Shapes:   uint64[D] -> uint64[min(D, k)], ring 2^64
    Raises:   MalformedMessage, when ``x`` does not have the study's dimension
    """
    if x.shape != (parameters.dimension,):
        raise MalformedMessage(f"the study's vectors have {parameters.dimension} elements, found shape {x.shape}")
    return sketch_shares(challenge, [lambda start, stop: x[start:stop]], parameters)[0]


def _read(source: ChunkSource, start: int, stop: int) -> Ring:
    piece = source(start, stop)
    if piece.shape != (stop - start,):
        raise MalformedMessage(
            f"elements {start} to {stop} of a share were asked for, found shape {piece.shape}; "
            "the share is shorter than the study's dimension"
        )
    return piece


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


def project(sketch_share: Ring, rows: Ternary) -> Ring:
    """Share of s = <r, Sx> for every projection r.

    Shapes:   with k' = min(D, k): uint64[k'], int8[40, k'] -> uint64[40], ring 2^64
    """
    if sketch_share.shape != rows.shape[1:]:
        raise MalformedMessage(
            f"a sketch share has {rows.shape[1]} elements, found shape {sketch_share.shape}; check the study parameters"
        )
    return kernels.project(rows, sketch_share)


def top_bits(side: Side, projected: Ring, parameters: StudyParameters) -> Ring:
    """u for A, v for B: the top 64-h bits of s_A + 2^(h-1), or of -s_B. Element-wise, any shape."""
    h = np.uint64(parameters.range_bits)
    if side is Side.A:
        return (projected + (np.uint64(1) << (h - np.uint64(1)))) >> h
    return np.negative(projected) >> h


def range_operand(side: Side, sketch_share: Ring, rows: Ternary, parameters: StudyParameters) -> Ring:
    """This side's factor of the product u v, for every projection.

    Shapes:   with k' = min(D, k): sketch_share uint64[k'], rows int8[40, k'] -> uint64[40], below 2^(64-h)
    Raises:   MalformedMessage
    """
    return top_bits(side, project(sketch_share, rows), parameters)


def range_check_shares(side: Side, own: Ring, product_shares: Ring, parameters: StudyParameters) -> Ring:
    """This side's shares of m = e (e - 1). Element-wise, any shape.

    Shapes:   own (from :func:`range_operand`) and product_shares uint64[40] -> uint64[40], mod 2^(64-h)
    """
    sign = np.negative(own) if side is Side.A else own
    return cut(own * own + sign - (product_shares + product_shares), parameters)


def cut(x: Ring, parameters: StudyParameters) -> Ring:
    """x mod 2^(64-h)."""
    return x & np.uint64((1 << (64 - parameters.range_bits)) - 1)


def passed_range_check(opened: Ring, parameters: StudyParameters) -> bool:
    """Return whether every m, the sum of both sides' shares, is zero mod 2^(64-h).

    Soundness: a sketch with an entry of at least 3 * 2^h passes with probability at most 2^-40. An update can hide
    from the sketch: two entries of 2^63 cancel if they meet in all four blocks, with probability (4/k)^4.
    Source:   Gentry, Halevi and Lyubashevsky 2021 (projections); docs/protocol.md 6
    """
    return not np.any(cut(opened, parameters))
