"""The few loops over all parameters: checks of shapes here, compiled code in ``numba_kernels.py``.

numba is loaded at the first call, not at import. All results wrap modulo 2^64.

Raises:   ProtocolViolation from every function, when the shapes do not fit
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import NORM_BLOCK, Real, Ring, Update
from protocol.errors import ProtocolViolation
from protocol.parameters import WORD_BITS, RingBits

Bits = NDArray[np.uint8]
Ternary = NDArray[np.int8]
SKETCH_BLOCKS = 4
MAX_BUCKETS = 1 << 15
BIT_COLUMNS = 128
ROW_MULTIPLE = 64
Single = NDArray[np.float32]
Shorts = NDArray[np.uint16]


def _compiled() -> ModuleType:
    from protocol.arithmetic import numba_kernels

    return numba_kernels


def _require_same_length(*vectors: Ring) -> None:
    lengths = {vector.shape for vector in vectors}
    if len(lengths) != 1 or vectors[0].ndim != 1:
        raise ProtocolViolation(
            f"ring vectors must be one-dimensional and equally long, found shapes {[v.shape for v in vectors]}; "
            "check that all shares belong to one study"
        )


def _require_three_words(x: Ring, words: Shorts) -> None:
    if x.ndim != 1 or words.shape != (3 * x.size,) or words.dtype != np.uint16:
        raise ProtocolViolation(
            f"{x.shape} elements of 48 bits are three words of 16 bits each, found {words.dtype}{list(words.shape)}; "
            "pass such a buffer"
        )


def _require_blocks(buckets: Ring | Real) -> None:
    size = buckets.size // SKETCH_BLOCKS
    if buckets.shape != (SKETCH_BLOCKS * size,) or not 1 <= size <= MAX_BUCKETS or size & (size - 1):
        raise ProtocolViolation(
            f"a sketch is four blocks of a power of two of at most {MAX_BUCKETS} buckets, found shape "
            f"{buckets.shape}; take its length from the study parameters"
        )


def _contiguous(values: Update, *vectors: Ring) -> Update:
    if values.dtype not in (np.float32, np.float64):
        raise ProtocolViolation(f"an update holds float32 or float64, found {values.dtype}; convert it first")
    if values.ndim != 1 or any(vector.shape != values.shape for vector in vectors):
        raise ProtocolViolation(
            f"an update and its ring vectors must be one-dimensional and equally long, found shapes "
            f"{[values.shape, *(v.shape for v in vectors)]}; pass buffers of the update's length"
        )
    return values if values.flags.c_contiguous else values.copy()


@dataclass(frozen=True)
class Scaling:
    """The factors of a value before it is rounded, in the order of multiplication.

    ``unit`` is a power of two and ``factor`` does the rest of the clipping (both 1 for a short update); ``weight``
    is the site's; ``scale`` is the study's 2^f.
    """

    unit: float = field(default=1.0, repr=False)
    factor: float = field(default=1.0, repr=False)
    weight: float = field(default=1.0, repr=False)
    scale: float = 1.0

    @property
    def clips(self) -> bool:
        """True if the update is longer than the clip norm."""
        return (self.unit, self.factor) != (1.0, 1.0)


def mask(x: Ring, pad: Ring, out: Ring) -> None:
    """out = x - pad, for vectors of one length; ``out`` may be ``x``."""
    _require_same_length(x, pad, out)
    _compiled().mask(x, pad, out)


def add_into(total: Ring, x: Ring) -> None:
    """total += x."""
    _require_same_length(total, x)
    _compiled().add_into(total, x)


def pack(x: Ring, words: Shorts) -> None:
    """words[3 i : 3 i + 3] = the low 48 bits of x[i], the lowest 16 first.

    Shapes:   x uint64[n], words uint16[3 n]
    """
    _require_three_words(x, words)
    _compiled().pack(x, words)


def unpack(words: Shorts, x: Ring) -> None:
    """The inverse of `pack`, with the sign of 48 bits in the upper 16.

    Shapes:   words uint16[3 n], x uint64[n]
    """
    _require_three_words(x, words)
    _compiled().unpack(words, x)


def multiply_into(totals: Ring, words: Ring, scales: Ring, x: Ring, place: int) -> None:
    """totals[j] += scales[2 b + j] times the inner product of block b of ``x`` with ``words`` from place j on.

    j is 0 and 1; a block has as many elements as there are words less one, and ``x`` begins ``place`` elements
    into its first, whose number is 0.

    Shapes:   totals uint64[2], words uint64[block + 1], scales uint64[2 blocks], x uint64[n]
    """
    block = words.size - 1
    if totals.shape != (2,) or x.ndim != 1 or words.ndim != 1 or not 0 <= place < block:
        raise ProtocolViolation(
            f"two products of a vector of shape {x.shape} go into two totals, from a place in a block of {block}; "
            f"found {totals.shape} totals and place {place}"
        )
    if scales.ndim != 1 or scales.size < 2 * -(-(place + x.size) // block):
        raise ProtocolViolation(
            f"{x.size} elements from place {place} of a block of {block} take two scales a block, found "
            f"{scales.shape}; expand as many"
        )
    contiguous = (np.ascontiguousarray(one) for one in (words, scales, x))
    _compiled().multiply_into(totals, *contiguous, place)


def sketch_into(buckets: Ring, words: Ring, x: Ring) -> None:
    """Add every ±x[i] to one bucket in each of the four blocks of ``buckets``.

    Lane b of words[i] (bits 16b to 16b+15) places it in block b: the low bits name the bucket, the top bit
    the sign (docs/protocol.md 5).

    Shapes:   buckets uint64[k], k/4 a power of two of at most 2^15; words and x uint64[n]
    """
    _require_same_length(words, x)
    _require_blocks(buckets)
    _compiled().sketch_into(buckets, words, x)


def sketch_reals(buckets: Real, words: Ring, values: Update) -> None:
    """As `sketch_into`, of real numbers: a bucket's new ones are summed in their order, then added to it.

    Shapes:   buckets float64[k], k as in `sketch_into`; words uint64[n], values float[n]
    """
    values = _contiguous(values, words)
    _require_blocks(buckets)
    _compiled().sketch_reals(buckets, words, values)


def project(rows: Ternary, x: Ring) -> Ring:
    """The products of ``x`` with several vectors of small signed entries.

    Shapes:   rows int8[m, n], x uint64[n] -> uint64[m], ring 2^64
    """
    if rows.ndim != 2 or x.shape != rows.shape[1:]:
        raise ProtocolViolation(
            f"{rows.shape} rows do not fit a vector of shape {x.shape}; each row is as long as the vector"
        )
    out = np.empty(rows.shape[0], dtype=np.uint64)
    _compiled().project(np.ascontiguousarray(rows), np.ascontiguousarray(x), out)
    return out


def transpose_bits(columns: Bits) -> Bits:
    """Bit i of column j, (columns[j, i // 8] >> (i % 8)) & 1, becomes bit j % 8 of rows[i, j // 8].

    Shapes:   columns uint8[128, n/8], n a multiple of 64 -> uint8[n, 16]
    """
    rows = 8 * columns.shape[-1]
    if columns.shape != (BIT_COLUMNS, rows // 8) or rows % ROW_MULTIPLE:
        raise ProtocolViolation(
            f"bit columns must have shape (128, n/8) with n a multiple of 64, found {columns.shape}; "
            "pad the number of rows"
        )
    out = np.empty((rows, BIT_COLUMNS // 8), dtype=np.uint8)
    _compiled().transpose_bits(np.ascontiguousarray(columns), out)
    return out


def block_squares(values: Update) -> tuple[Real, Real]:
    """Largest magnitude p of every block of 4096 values, and the block's sum of (x / unit)^2.

    ``unit`` is the least power of two above p, at least 2^-1000, so that no square overflows and only those
    that cannot matter underflow. A block, the last one filled up with zeros, adds its second half to its first
    until one sum is left. Where a value is NaN or infinite, both results are infinite. Reads the values once.

    Shapes:   float[n] -> float64[ceil(n / 4096)] twice
    """
    values = _contiguous(values)
    blocks = -(-values.size // NORM_BLOCK)
    peaks, squares = np.empty(blocks, dtype=np.float64), np.empty(blocks, dtype=np.float64)
    _compiled().block_squares(values, peaks, squares)
    return peaks, squares


def encode(values: Update, scaling: Scaling, words: Ring) -> bool:
    """Replace random ``words`` by the values in fixed point, stochastically rounded (docs/protocol.md 2).

    With s = x * unit * factor * weight * scale: floor(s), plus 1 where the word's upper 53 bits over 2^53 are
    below s - floor(s). False, and no usable result, when an |s| is not below 2^62.

    Shapes:   float[n], uint64[n]
    """
    values = _contiguous(values, words)
    s = scaling
    return bool(_compiled().encode(values, s.unit, s.factor, s.weight, s.scale, words))


def open_average(
    masked: Ring, pad: Ring, bound: int, divisor: float, out: Single, bits: RingBits = 64
) -> tuple[int, int]:
    """out = (masked + pad) / divisor: the sum read as a signed integer of ``bits`` bits, divided in float64,
    rounded to float32.

    -> how many of the signed integers are beyond ``bound`` on either side, and the exact sum of their squares,
    which holds where none is beyond and ``bound`` is below 2^32

    Shapes:   masked and pad uint64[n], out float32[n]; 0 <= bound < 2^63, divisor above 0
    """
    _require_same_length(masked, pad)
    if out.dtype != np.float32 or out.shape != masked.shape or not 0 <= bound < 1 << 63 or not divisor > 0:
        raise ProtocolViolation(
            f"an average of {masked.size} elements goes into float32[{masked.size}], with a bound in [0, 2^63) and "
            f"a divisor above 0; found {out.dtype}{list(out.shape)}, {bound}, {divisor}"
        )
    beyond, upper, lower = _compiled().open_average(masked, pad, bound, divisor, out, WORD_BITS - bits)
    return int(beyond), (int(upper) << 32) + int(lower)
