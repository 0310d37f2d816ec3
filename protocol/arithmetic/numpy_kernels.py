"""The numpy twins of the compiled kernels: same arguments, same bits, easy to read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring

LANES = 4
LANE_BITS = 16
NORM_BLOCK = 4096
LEAST_EXPONENT = -1000
ENCODED_LIMIT = 2.0**62
UNIFORM_SHIFT = 11
UNIFORM_STEP = 2.0**-53
HALF_WIDTH = np.uint64(32)
LOW_HALF = np.uint64(2**32 - 1)

Real = NDArray[np.float64]
Update = NDArray[np.float32] | NDArray[np.float64]


def mask(x: Ring, pad: Ring, out: Ring) -> None:
    """out = x - pad."""
    np.subtract(x, pad, out=out)


def add_into(total: Ring, x: Ring) -> None:
    """total += x."""
    np.add(total, x, out=total)


def pack(x: Ring, words: NDArray[np.uint16]) -> None:
    """words[3 i : 3 i + 3] = the low 48 bits of x[i], the lowest 16 first."""
    for place in range(3):
        words[place::3] = (x >> np.uint64(16 * place)).astype(np.uint16)


def unpack(words: NDArray[np.uint16], x: Ring) -> None:
    """The inverse of pack, with the sign of 48 bits in the upper 16."""
    x[:] = 0
    for place in range(3):
        x |= words[place::3].astype(np.uint64) << np.uint64(16 * (place + 1))
    x[:] = (x.view(np.int64) >> np.int64(16)).view(np.uint64)


def multiply_into(totals: Ring, words: Ring, scales: Ring, x: Ring, place: int) -> None:
    """totals[j] += scales[2 b + j] <words[j:], x of block b>, for j = 0 and 1."""
    at, block = 0, 0
    while at < x.size:
        size = min(words.size - 1 - place, x.size - at)
        for j in range(2):
            product = np.dot(words[place + j : place + j + size], x[at : at + size])
            totals[j : j + 1] += scales[2 * block + j : 2 * block + j + 1] * product
        at, block, place = at + size, block + 1, 0


def sketch_into(buckets: Ring, words: Ring, x: Ring) -> None:
    """Add every x[i], with its sign, to its bucket in each of the four blocks of ``buckets``."""
    size = buckets.size // LANES
    for lane in range(LANES):
        bits = (words >> np.uint64(LANE_BITS * lane)).astype(np.uint16)
        place = (bits & np.uint16(size - 1)).astype(np.intp) + lane * size
        negative = (bits >> np.uint16(LANE_BITS - 1)).astype(np.bool_)
        np.add.at(buckets, place, np.where(negative, np.uint64(0) - x, x))


def sketch_reals(buckets: Real, words: Ring, values: Update) -> None:
    """As sketch_into, of real numbers: what is added to a bucket is summed first, in the values' order."""
    size = buckets.size // LANES
    for lane in range(LANES):
        bits = (words >> np.uint64(LANE_BITS * lane)).astype(np.uint16)
        place = (bits & np.uint16(size - 1)).astype(np.intp)
        signed = np.where(bits >> np.uint16(LANE_BITS - 1), -values, values).astype(np.float64)
        buckets[lane * size : (lane + 1) * size] += np.bincount(place, weights=signed, minlength=size)


def project(rows: NDArray[np.int8], x: Ring, out: Ring) -> None:
    """out = rows x; the signs wrap to the ring's."""
    np.matmul(rows.astype(np.int64).view(np.uint64), x, out=out)


def transpose_bits(columns: NDArray[np.uint8], rows: NDArray[np.uint8]) -> None:
    """rows[i, j // 8] bit j % 8 = columns[j, i // 8] bit i % 8."""
    bits = np.unpackbits(columns, axis=1, bitorder="little")
    rows[:] = np.packbits(bits.T, axis=1, bitorder="little")


def block_squares(values: Update, peaks: Real, squares: Real) -> None:
    """Largest magnitude of each block of 4096, and the sum of (x / unit)^2, added by halves."""
    blocks = np.zeros((peaks.size, NORM_BLOCK), dtype=np.float64)
    blocks.reshape(-1)[: values.size] = values
    peaks[:] = np.max(np.abs(blocks), axis=1, initial=0.0)
    unusable = ~np.isfinite(peaks)
    blocks[unusable] = 0.0
    _, exponents = np.frexp(np.where(unusable, 0.0, peaks))
    blocks *= np.ldexp(1.0, -np.maximum(exponents, LEAST_EXPONENT))[:, None]
    np.square(blocks, out=blocks)
    while blocks.shape[1] > 1:
        half = blocks.shape[1] // 2
        blocks = blocks[:, :half] + blocks[:, half:]
    squares[:] = blocks[:, 0]
    peaks[unusable] = squares[unusable] = np.inf


def encode(values: Update, unit: float, factor: float, weight: float, scale: float, words: Ring) -> bool:
    """Scaled and rounded up where the word's upper 53 bits, as a number in [0, 1), are below the fraction."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values.astype(np.float64) * unit * factor * weight * scale
    fits = np.abs(scaled) < ENCODED_LIMIT
    scaled[~fits] = 0.0
    whole = np.floor(scaled)
    uniform = (words >> np.uint64(UNIFORM_SHIFT)) * UNIFORM_STEP
    words[:] = (whole.astype(np.int64) + (uniform < scaled - whole)).view(np.uint64)
    return bool(np.all(fits))


def open_average(
    masked: Ring, pad: Ring, bound: int, divisor: float, out: NDArray[np.float32], unused: int
) -> tuple[int, int, int]:
    """out = (masked + pad) / divisor, read as signed integers without their ``unused`` upper bits; -> how many of those
    are beyond the bound, and the sum of the squares of their magnitudes' lower 32 bits, as the sum of the squares'
    upper halves and of their lower ones.
    """
    opened = ((masked + pad).view(np.int64) << np.int64(unused)) >> np.int64(unused)
    out[:] = opened / divisor
    squares = np.abs(opened).view(np.uint64) & LOW_HALF
    squares *= squares
    beyond = int(np.count_nonzero((opened > bound) | (opened < -bound)))
    return beyond, int((squares >> HALF_WIDTH).sum()), int((squares & LOW_HALF).sum())
