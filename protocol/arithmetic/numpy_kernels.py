"""The numpy twins of the compiled kernels: same arguments, same bits, easy to read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring

LANES = 4
LANE_BITS = 16


def mask(x: Ring, pad: Ring, out: Ring) -> None:
    """out = x - pad."""
    np.subtract(x, pad, out=out)


def add_into(total: Ring, x: Ring) -> None:
    """total += x."""
    np.add(total, x, out=total)


def sketch_into(buckets: Ring, words: Ring, x: Ring) -> None:
    """Add every x[i], with its sign, to its bucket in each of the four blocks of ``buckets``."""
    size = buckets.size // LANES
    for lane in range(LANES):
        bits = (words >> np.uint64(LANE_BITS * lane)).astype(np.uint16)
        place = (bits & np.uint16(size - 1)).astype(np.intp) + lane * size
        negative = (bits >> np.uint16(LANE_BITS - 1)).astype(np.bool_)
        np.add.at(buckets, place, np.where(negative, np.uint64(0) - x, x))


def transpose_bits(columns: NDArray[np.uint8], rows: NDArray[np.uint8]) -> None:
    """rows[i, j // 8] bit j % 8 = columns[j, i // 8] bit i % 8."""
    bits = np.unpackbits(columns, axis=1, bitorder="little")
    rows[:] = np.packbits(bits.T, axis=1, bitorder="little")
