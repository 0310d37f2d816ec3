"""The OT's loops, compiled or in numpy with the same bits; which of the two runs is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic import kernels as ring_kernels
from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation
from protocol.mpc.ot import numpy_kernels

PACKED_WORDS: Final = 65
_BITS: Final = 64


def _compiled() -> ModuleType:
    from protocol.mpc.ot import numba_kernels

    return numba_kernels


def _plain() -> ModuleType:
    return numpy_kernels


@dataclass(frozen=True)
class OtKernels:
    """One implementation of the loops over all rows; results wrap modulo 2^64.

    The messages of one element, 64 - t bits for each t, follow each other without gaps, lowest bit first, in 65
    words of 32 bits.

    Raises:   ProtocolViolation from every method, when the shapes do not fit
    """

    ring: ring_kernels.Kernels
    _module: Callable[[], ModuleType]

    def sender_products(self, zero: Ring, one: Ring, own: Ring) -> tuple[NDArray[np.uint32], Ring]:
        """Messages zero + own - one, cut to 64 - t bits, and the terms -sum_t 2^t zero.

        Shapes:   zero, one uint64[64 m], own uint64[m] -> uint32[m, 65], uint64[m]
        """
        _require(zero.shape == one.shape == (_BITS * own.size,) and own.ndim == 1)
        packed, terms = np.empty((own.size, PACKED_WORDS), dtype=np.uint32), np.empty_like(own)
        self._module().sender_products(zero, one, own, packed, terms)
        return packed, terms

    def receiver_products(self, pads: Ring, packed: NDArray[np.uint32], own: Ring) -> Ring:
        """The terms sum_t 2^t (pad + bit t of own * message).

        Shapes:   pads uint64[64 m], packed uint32[m, 65], own uint64[m] -> uint64[m]
        """
        _require(own.ndim == 1 and pads.shape == (_BITS * own.size,) and packed.shape == (own.size, PACKED_WORDS))
        terms = np.empty_like(own)
        self._module().receiver_products(pads, packed, own, terms)
        return terms

    def fold(self, streams: Ring) -> tuple[Ring, Ring]:
        """For each bit b, the xor of the streams whose number has bit b set; and the xor of all. Uses up ``streams``.

        Shapes:   uint64[2^k, n] -> uint64[k, n], uint64[n]
        """
        bits = len(streams).bit_length() - 1
        if streams.ndim != 2 or bits < 1 or len(streams) != 1 << bits or not streams.flags.c_contiguous:
            raise ProtocolViolation(f"streams are folded in rows, a power of two of them; found shape {streams.shape}")
        columns = np.zeros((bits, streams.shape[1]), dtype=np.uint64)
        self._module().fold(streams, columns)
        return columns, streams[0].copy()


def _require(fits: bool) -> None:
    if not fits:
        raise ProtocolViolation("an OT product needs 64 pads and 65 packed words per element: check the lengths")


NUMBA: Final = OtKernels(ring_kernels.NUMBA, _compiled)
NUMPY: Final = OtKernels(ring_kernels.NUMPY, _plain)
