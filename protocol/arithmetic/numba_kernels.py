"""The compiled kernels. Imported on first use only, since loading numba takes a while.

Each releases the interpreter lock. None checks its arguments: ``kernels.py`` does, for both twins.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring

_Words = NDArray[np.uint64]
_IN = types.Array(types.uint64, 1, "C", readonly=True)
_OUT = types.Array(types.uint64, 1, "C")
_IN_2D = types.Array(types.uint64, 2, "C", readonly=True)
_OUT_2D = types.Array(types.uint64, 2, "C")
_WIDTH = 8  # words of a column taken together: one cache line


def _mask(x: Ring, pad: Ring, out: Ring) -> None:  # pragma: no cover - compiled
    for i in range(out.size):
        out[i] = x[i] - pad[i]


def _add_into(total: Ring, x: Ring) -> None:  # pragma: no cover - compiled
    for i in range(total.size):
        total[i] += x[i]


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


mask: Callable[[Ring, Ring, Ring], None] = njit(types.void(_IN, _IN, _OUT), cache=True, nogil=True)(_mask)
add_into: Callable[[Ring, Ring], None] = njit(types.void(_OUT, _IN), cache=True, nogil=True)(_add_into)
sketch_into: Callable[[Ring, Ring, Ring], None] = njit(types.void(_OUT, _IN, _IN), cache=True, nogil=True)(_sketch_into)
_transpose: Callable[[_Words, _Words], None] = njit(types.void(_IN_2D, _OUT_2D), cache=True, nogil=True)(
    _transpose_words
)


def transpose_bits(columns: NDArray[np.uint8], rows: NDArray[np.uint8]) -> None:
    """See the numpy twin; reads and writes 64 bits at a time."""
    _transpose(columns.view(np.uint64), rows.view(np.uint64))
