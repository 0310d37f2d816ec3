"""The few loops over all parameters, compiled or in numpy with the same bits.

Which of the two runs is an argument (``kernels: Kernels = NUMBA``), never read from the environment.
numba is loaded at the first call of a compiled kernel, not at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic import numpy_kernels
from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation

Bits = NDArray[np.uint8]
SKETCH_BLOCKS = numpy_kernels.LANES
MAX_BUCKETS = 1 << (numpy_kernels.LANE_BITS - 1)
BIT_COLUMNS = 128
ROW_MULTIPLE = 64


def _compiled() -> ModuleType:
    from protocol.arithmetic import numba_kernels

    return numba_kernels


def _plain() -> ModuleType:
    return numpy_kernels


def _require_same_length(*vectors: Ring) -> None:
    lengths = {vector.shape for vector in vectors}
    if len(lengths) != 1 or vectors[0].ndim != 1:
        raise ProtocolViolation(
            f"ring vectors must be one-dimensional and equally long, found shapes {[v.shape for v in vectors]}; "
            "check that all shares belong to one study"
        )


@dataclass(frozen=True)
class Kernels:
    """One implementation of every kernel; all results wrap modulo 2^64.

    Raises:   ProtocolViolation from every method, when the shapes do not fit
    """

    name: str
    _module: Callable[[], ModuleType]

    def mask(self, x: Ring, pad: Ring, out: Ring) -> None:
        """out = x - pad, for vectors of one length; ``out`` may be ``x``."""
        _require_same_length(x, pad, out)
        self._module().mask(x, pad, out)

    def add_into(self, total: Ring, x: Ring) -> None:
        """total += x."""
        _require_same_length(total, x)
        self._module().add_into(total, x)

    def sketch_into(self, buckets: Ring, words: Ring, x: Ring) -> None:
        """Add every ±x[i] to one bucket in each of the four blocks of ``buckets``.

        Lane b of words[i] (bits 16b to 16b+15) places it in block b: the low bits name the bucket, the top bit
        the sign (docs/protocol.md 5).

        Shapes:   buckets uint64[k], k/4 a power of two of at most 2^15; words and x uint64[n]
        """
        _require_same_length(words, x)
        size = buckets.size // SKETCH_BLOCKS
        if buckets.shape != (SKETCH_BLOCKS * size,) or not 1 <= size <= MAX_BUCKETS or size & (size - 1):
            raise ProtocolViolation(
                f"a sketch is four blocks of a power of two of at most {MAX_BUCKETS} buckets, found shape "
                f"{buckets.shape}; take its length from the study parameters"
            )
        self._module().sketch_into(buckets, words, x)

    def transpose_bits(self, columns: Bits) -> Bits:
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
        self._module().transpose_bits(np.ascontiguousarray(columns), out)
        return out


NUMBA = Kernels("numba", _compiled)
NUMPY = Kernels("numpy", _plain)
