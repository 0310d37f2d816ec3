"""The compiled OT kernels; imported at their first call, since loading numba takes a while.

All release the interpreter lock, and none checks its arguments: ``kernels.py`` does.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring

_IN = types.Array(types.uint64, 1, "C", readonly=True)
_OUT = types.Array(types.uint64, 1, "C")
_ROWS = types.Array(types.uint64, 2, "C")
_PACKED_IN = types.Array(types.uint32, 2, "C", readonly=True)
_PACKED_OUT = types.Array(types.uint32, 2, "C")
_Rows: TypeAlias = NDArray[np.uint64]


def _sender_products(  # pragma: no cover - compiled
    zero: Ring, one: Ring, own: Ring, packed: NDArray[np.uint32], terms: Ring
) -> None:
    nought, last, ones = np.uint64(0), np.uint64(63), np.uint64(0xFFFFFFFFFFFFFFFF)
    half, step = np.uint64(32), np.uint64(1)
    for j in range(own.size):
        total, word, filled, place = nought, nought, nought, 0
        shift = nought
        for row in range(64 * j, 64 * j + 64):
            total -= zero[row] << shift
            value = (zero[row] + own[j] - one[row]) & (ones >> shift)
            word |= value << filled
            filled += np.uint64(64) - shift
            if filled > last:
                packed[j, place] = np.uint32(word)
                packed[j, place + 1] = np.uint32(word >> half)
                place += 2
                filled &= last
                taken = np.uint64(64) - shift - filled
                word = value >> taken if taken <= last else nought
            shift += step
        packed[j, place] = np.uint32(word)
        terms[j] = total


def _receiver_products(  # pragma: no cover - compiled
    pads: Ring, packed: NDArray[np.uint32], own: Ring, terms: Ring
) -> None:
    nought, ones, five, low = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(5), np.uint64(31)
    half, step, width = np.uint64(32), np.uint64(1), np.uint64(64)
    words = packed.shape[1]
    for j in range(own.size):
        total, bit, shift = nought, nought, nought
        for row in range(64 * j, 64 * j + 64):
            place, skip = np.int64(bit >> five), bit & low
            value = np.uint64(packed[j, place]) >> skip
            if place + 1 < words:
                value |= (np.uint64(packed[j, place + 1]) << half) >> skip
            if place + 2 < words and skip > nought:
                value |= np.uint64(packed[j, place + 2]) << (width - skip)
            chosen = nought - ((own[j] >> shift) & step)  # all ones or zero: no branch on the choice
            total += (pads[row] + (value & (ones >> shift) & chosen)) << shift
            bit += width - shift
            shift += step
        terms[j] = total


def _fold_eight(streams: _Rows, columns: _Rows, total: Ring) -> None:  # pragma: no cover - compiled
    """Three levels of a tree at once: every stream is read once, every column once for eight of them."""
    s0, s1, s2, s3 = streams[0], streams[1], streams[2], streams[3]
    s4, s5, s6, s7 = streams[4], streams[5], streams[6], streams[7]
    lowest, middle, highest = columns[0], columns[1], columns[2]
    for w in range(total.size):
        one, two, three, five, six, seven = s1[w], s2[w], s3[w], s5[w], s6[w], s7[w]
        pair, upper, last = two ^ three, s4[w] ^ five, six ^ seven
        lowest[w] ^= one ^ three ^ five ^ seven
        middle[w] ^= pair ^ last
        highest[w] ^= upper ^ last
        total[w] = s0[w] ^ one ^ pair ^ upper ^ last


def _fold_two(streams: _Rows, columns: _Rows, total: Ring) -> None:  # pragma: no cover - compiled
    even, odd, column = streams[0], streams[1], columns[0]
    for w in range(total.size):
        value = odd[w]
        column[w] ^= value
        total[w] = even[w] ^ value


def _tweak(once: Ring, index: np.uint64, out: Ring) -> None:  # pragma: no cover - compiled
    for row in range(out.size // 2):
        out[2 * row] = once[2 * row] ^ (index + np.uint64(row))
        out[2 * row + 1] = once[2 * row + 1]


def _shift_rows(rows: Ring, low: np.uint64, high: np.uint64, out: Ring) -> None:  # pragma: no cover - compiled
    for row in range(out.size // 2):
        out[2 * row] = rows[2 * row] ^ low
        out[2 * row + 1] = rows[2 * row + 1] ^ high


def _first_words(once: Ring, twice: Ring, out: Ring) -> None:  # pragma: no cover - compiled
    for row in range(out.size):
        out[row] = once[2 * row] ^ twice[2 * row]


sender_products = njit(types.void(_IN, _IN, _IN, _PACKED_OUT, _OUT), cache=True, nogil=True)(_sender_products)
receiver_products = njit(types.void(_IN, _PACKED_IN, _IN, _OUT), cache=True, nogil=True)(_receiver_products)
_eight = njit(types.void(_ROWS, _ROWS, _OUT), cache=True, nogil=True)(_fold_eight)
_two = njit(types.void(_ROWS, _ROWS, _OUT), cache=True, nogil=True)(_fold_two)
tweak = njit(types.void(_IN, types.uint64, _OUT), cache=True, nogil=True)(_tweak)
shift_rows = njit(types.void(_IN, types.uint64, types.uint64, _OUT), cache=True, nogil=True)(_shift_rows)
first_words = njit(types.void(_IN, _IN, _OUT), cache=True, nogil=True)(_first_words)


def fold(streams: _Rows, columns: _Rows, total: Ring) -> None:
    """Eight streams become one as long as there are eight, then two."""
    rest, bit = streams, 0
    while len(rest) > 1:
        step, bits, fold_step = (8, 3, _eight) if len(rest) >= 8 else (2, 1, _two)
        last = len(rest) == step
        sums = total[np.newaxis] if last else np.empty((len(rest) // step, total.size), dtype=np.uint64)
        for i, folded in enumerate(sums):
            fold_step(rest[step * i : step * (i + 1)], columns[bit : bit + bits], folded)
        rest, bit = sums, bit + bits
    if rest is streams:
        total[:] = streams[0]
