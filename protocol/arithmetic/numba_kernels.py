"""The compiled kernels. Imported on first use only, since loading numba takes a while.

Each releases the interpreter lock. None checks its arguments: ``kernels.py`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from protocol.arithmetic.ring import LEAST_EXPONENT, NORM_BLOCK, Real, Ring, Update

_Words = NDArray[np.uint64]
_Shorts = NDArray[np.uint16]
_Bits = NDArray[np.uint32] | NDArray[np.uint64]
_IN = types.Array(types.uint64, 1, "C", readonly=True)
_OUT = types.Array(types.uint64, 1, "C")
_IN_2D = types.Array(types.uint64, 2, "C", readonly=True)
_OUT_2D = types.Array(types.uint64, 2, "C")
_SINGLE, _DOUBLE = (types.Array(t, 1, "C", readonly=True) for t in (types.float32, types.float64))
_SINGLE_BITS = types.Array(types.uint32, 1, "C", readonly=True)
_REAL_OUT = types.Array(types.float64, 1, "C")
_SHIFT = np.uint64(11)
_STEP = 2.0**-53
_ENCODED_LIMIT = 2.0**62
_HALF_WIDTH = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)
_SHORTS_IN, _SHORTS_OUT = types.Array(types.uint16, 1, "C", readonly=True), types.Array(types.uint16, 1, "C")
_WIDTH = 8  # words of a column taken together: one cache line


def _mask(x: Ring, pad: Ring, out: Ring) -> None:  # pragma: no cover - compiled
    for i in range(out.size):
        out[i] = x[i] - pad[i]


def _add_into(total: Ring, x: Ring) -> None:  # pragma: no cover - compiled
    for i in range(total.size):
        total[i] += x[i]


def _pack(x: Ring, words: _Shorts) -> None:  # pragma: no cover - compiled
    for i in range(x.size):
        one = x[i]
        words[3 * i] = np.uint16(one)
        words[3 * i + 1] = np.uint16(one >> np.uint64(16))
        words[3 * i + 2] = np.uint16(one >> np.uint64(32))


def _unpack(words: _Shorts, x: Ring) -> None:  # pragma: no cover - compiled
    for i in range(x.size):
        low = np.uint64(words[3 * i]) | (np.uint64(words[3 * i + 1]) << np.uint64(16))
        x[i] = np.uint64((np.int64(low | (np.uint64(words[3 * i + 2]) << np.uint64(32))) << 16) >> 16)


def _multiply_into(  # pragma: no cover - compiled
    totals: Ring, words: Ring, scales: Ring, x: Ring, place: int
) -> None:
    at, block = 0, 0
    while at < x.size:
        size = min(words.size - 1 - place, x.size - at)
        values, one, other = x[at : at + size], words[place : place + size], words[place + 1 : place + 1 + size]
        first, second = np.uint64(0), np.uint64(0)
        for i in range(size):
            value = values[i]
            first += one[i] * value
            second += other[i] * value
        totals[0] += scales[2 * block] * first
        totals[1] += scales[2 * block + 1] * second
        at, block, place = at + size, block + 1, 0


def _sketch_into(buckets: Ring, words: Ring, x: Ring) -> None:  # pragma: no cover - compiled
    size = np.uint64(buckets.size // 4)
    low = size - np.uint64(1)
    zero, one = np.uint64(0), np.uint64(1)
    for i in range(words.size):
        word, value = words[i], x[i]
        base = zero
        for _ in range(4):
            flip = zero - ((word >> np.uint64(15)) & one)  # all ones to negate
            buckets[base + (word & low)] += (value ^ flip) - flip
            word >>= np.uint64(16)
            base += size


def _sketch_reals(buckets: Real, words: Ring, values: Update) -> None:  # pragma: no cover - compiled
    size = np.uint64(buckets.size // 4)
    low = size - np.uint64(1)
    totals = np.zeros(buckets.size, dtype=np.float64)
    for i in range(words.size):
        word, value = words[i], np.float64(values[i])
        base = np.uint64(0)
        for _ in range(4):
            totals[base + (word & low)] += -value if (word >> np.uint64(15)) & np.uint64(1) else value
            word >>= np.uint64(16)
            base += size
    for i in range(buckets.size):
        buckets[i] += totals[i]


def _project(rows: NDArray[np.int8], x: Ring, out: Ring) -> None:  # pragma: no cover - compiled
    for p in range(out.size):
        row, total = rows[p], np.uint64(0)
        for j in range(x.size):
            total += np.uint64(np.int64(row[j])) * x[j]
        out[p] = total


def _transpose_words(columns: _Words, rows: _Words) -> None:  # pragma: no cover - compiled
    """64 x 64 bit matrices by recursive swapping (Warren, Hacker's Delight, 7-3), eight at a time."""
    words = columns.shape[1]
    block = np.zeros((64, _WIDTH), dtype=np.uint64)
    for half in range(2):
        for start in range(0, words, _WIDTH):
            width = min(_WIDTH, words - start)
            for r in range(64):
                for w in range(width):
                    block[r, w] = columns[64 * half + r, start + w]
            step, low = 32, np.uint64(0xFFFFFFFF)
            while step:
                shift = np.uint64(step)
                for r in range(64):
                    if r & step == 0:
                        for w in range(_WIDTH):
                            swap = ((block[r, w] >> shift) ^ block[r + step, w]) & low
                            block[r, w] ^= swap << shift
                            block[r + step, w] ^= swap
                step >>= 1
                low ^= low << np.uint64(step)
            for w in range(width):
                for r in range(64):
                    rows[64 * (start + w) + r, half] = block[r, w]


def _block_squares(
    values: Update, bits: _Bits, magnitude: np.uint64, peaks: Real, squares: Real
) -> None:  # pragma: no cover - compiled
    """``bits`` is ``values`` read as integers: without the sign they are ordered as magnitudes are, NaN on top."""
    cell = np.zeros(1, dtype=bits.dtype)
    peak = cell.view(values.dtype)
    terms = np.empty(NORM_BLOCK, dtype=np.float64)
    for block in range(peaks.size):
        piece = values[block * NORM_BLOCK : (block + 1) * NORM_BLOCK]  # indices from 0 vectorise
        piece_bits = bits[block * NORM_BLOCK : (block + 1) * NORM_BLOCK]
        top = np.uint64(0)
        for i in range(piece.size):
            bare = piece_bits[i] & magnitude
            top = bare if bare > top else top  # vectorises, unlike max()
        cell[0] = top
        peaks[block] = peak[0]
        if not math.isfinite(peaks[block]):
            peaks[block] = squares[block] = np.inf
            continue
        _, exponent = math.frexp(peaks[block])
        unit = math.ldexp(1.0, -max(exponent, LEAST_EXPONENT))
        for i in range(piece.size):
            x = piece[i] * unit
            terms[i] = x * x
        terms[piece.size :] = 0.0
        half = NORM_BLOCK // 2
        while half:
            low, high = terms[:half], terms[half : 2 * half]
            for i in range(half):
                low[i] += high[i]
            half //= 2
        squares[block] = terms[0]


def _round(scaled: float, word: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    whole = np.floor(scaled)
    up = np.int64(word >> _SHIFT) * _STEP < scaled - whole
    return np.uint64(np.int64(whole) + np.int64(up))


_rounded: Callable[[float, np.uint64], np.uint64] = njit(inline="always")(_round)


def _encode(
    values: Update, unit: float, factor: float, weight: float, scale: float, words: Ring
) -> bool:  # pragma: no cover - compiled
    fits = True
    for i in range(words.size):
        scaled = values[i] * unit * factor * weight * scale
        inside = abs(scaled) < _ENCODED_LIMIT
        fits &= inside
        words[i] = _rounded(scaled if inside else 0.0, words[i])
    return fits


def _open_average(
    masked: Ring, pad: Ring, bound: int, divisor: float, out: NDArray[np.float32], unused: int
) -> tuple[int, np.uint64, np.uint64]:  # pragma: no cover - compiled
    beyond, upper, lower = 0, np.uint64(0), np.uint64(0)
    for i in range(out.size):
        opened = (np.int64(masked[i] + pad[i]) << unused) >> unused
        word = np.uint64(opened)
        beyond += int((opened > bound) | (opened < -bound))
        sign = np.uint64(opened >> np.int64(63))  # all ones for a negative number
        magnitude = ((word ^ sign) - sign) & _LOW_HALF
        square = magnitude * magnitude
        upper += square >> _HALF_WIDTH
        lower += square & _LOW_HALF
        out[i] = opened / divisor
    return beyond, upper, lower


mask: Callable[[Ring, Ring, Ring], None] = njit(types.void(_IN, _IN, _OUT), cache=True, nogil=True)(_mask)
add_into: Callable[[Ring, Ring], None] = njit(types.void(_OUT, _IN), cache=True, nogil=True)(_add_into)
pack: Callable[[Ring, _Shorts], None] = njit(types.void(_IN, _SHORTS_OUT), cache=True, nogil=True)(_pack)
unpack: Callable[[_Shorts, Ring], None] = njit(types.void(_SHORTS_IN, _OUT), cache=True, nogil=True)(_unpack)
multiply_into: Callable[[Ring, Ring, Ring, Ring, int], None] = njit(
    types.void(_OUT, _IN, _IN, _IN, types.int64), cache=True, nogil=True
)(_multiply_into)
sketch_into: Callable[[Ring, Ring, Ring], None] = njit(types.void(_OUT, _IN, _IN), cache=True, nogil=True)(_sketch_into)
sketch_reals: Callable[[Real, Ring, Update], None] = njit(
    [types.void(_REAL_OUT, _IN, update) for update in (_SINGLE, _DOUBLE)], cache=True, nogil=True
)(_sketch_reals)
project: Callable[[NDArray[np.int8], Ring, Ring], None] = njit(
    types.void(types.Array(types.int8, 2, "C", readonly=True), _IN, _OUT), cache=True, nogil=True
)(_project)
_transpose: Callable[[_Words, _Words], None] = njit(types.void(_IN_2D, _OUT_2D), cache=True, nogil=True)(
    _transpose_words
)

_FACTORS = (types.float64,) * 4
_squares: Callable[[Update, _Bits, np.uint64, Real, Real], None] = njit(
    [
        types.void(_SINGLE, _SINGLE_BITS, types.uint64, _REAL_OUT, _REAL_OUT),
        types.void(_DOUBLE, _IN, types.uint64, _REAL_OUT, _REAL_OUT),
    ],
    cache=True,
    nogil=True,
)(_block_squares)
encode: Callable[[Update, float, float, float, float, Ring], bool] = njit(
    [types.boolean(update, *_FACTORS, _OUT) for update in (_SINGLE, _DOUBLE)], cache=True, nogil=True
)(_encode)

_OPENED = types.Tuple((types.int64, types.uint64, types.uint64))
open_average: Callable[[Ring, Ring, int, float, NDArray[np.float32], int], tuple[int, np.uint64, np.uint64]] = njit(
    _OPENED(_IN, _IN, types.int64, types.float64, types.Array(types.float32, 1, "C"), types.int64),
    cache=True,
    nogil=True,
    error_model="numpy",  # the caller refuses a divisor of 0: without the check in every step the loop vectorises
)(_open_average)


def block_squares(values: Update, peaks: Real, squares: Real) -> None:
    """Read the values once."""
    bits: _Bits = values.view(np.uint32) if values.dtype == np.float32 else values.view(np.uint64)
    _squares(values, bits, np.uint64(np.iinfo(bits.dtype).max >> 1), peaks, squares)


def transpose_bits(columns: NDArray[np.uint8], rows: NDArray[np.uint8]) -> None:
    """Read and write 64 bits at a time."""
    _transpose(columns.view(np.uint64), rows.view(np.uint64))
