"""The compiled OT kernels; imported at their first call, since loading numba takes a while.

All release the interpreter lock, and none checks its arguments: ``kernels.py`` does.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring

_IN = types.Array(types.uint64, 1, "C", readonly=True)
_OUT = types.Array(types.uint64, 1, "C")
_ROWS = types.Array(types.uint64, 2, "C")
_PACKED_IN = types.Array(types.uint32, 2, "C", readonly=True)
_PACKED_OUT = types.Array(types.uint32, 2, "C")
_TILE_WORDS = 512


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


def _fold(streams: NDArray[np.uint64], columns: NDArray[np.uint64]) -> None:  # pragma: no cover - compiled
    """Level by level, in place: a pair's odd row belongs to the level's bit, their sum goes on to the next."""
    for start in range(0, streams.shape[1], _TILE_WORDS):
        end = min(start + _TILE_WORDS, streams.shape[1])
        count = streams.shape[0]
        for bit in range(columns.shape[0]):
            count //= 2
            column = columns[bit, start:end]
            for i in range(count):
                even, odd, out = streams[2 * i, start:end], streams[2 * i + 1, start:end], streams[i, start:end]
                for w in range(column.size):
                    value = odd[w]
                    column[w] ^= value
                    out[w] = even[w] ^ value


sender_products = njit(types.void(_IN, _IN, _IN, _PACKED_OUT, _OUT), cache=True, nogil=True)(_sender_products)
receiver_products = njit(types.void(_IN, _PACKED_IN, _IN, _OUT), cache=True, nogil=True)(_receiver_products)
fold = njit(types.void(_ROWS, _ROWS), cache=True, nogil=True)(_fold)
