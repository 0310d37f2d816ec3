"""The OT's loops over all rows: checks of shapes here, compiled code in ``numba_kernels.py``, loaded at the first call.

The messages of one element, 64 - t bits for each t, follow each other without gaps, lowest bit first, in 65 words of
32 bits. Results wrap modulo 2^64.

Raises:   ProtocolViolation from every function, when the shapes do not fit
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation

PACKED_WORDS: Final = 65
_BITS: Final = 64
_ROW_WORDS: Final = 2


def _compiled() -> ModuleType:
    from protocol.ot import numba_kernels

    return numba_kernels


def sender_products(zero: Ring, one: Ring, own: Ring) -> tuple[NDArray[np.uint32], Ring]:
    """Messages zero + own - one, cut to 64 - t bits, and the terms -sum_t 2^t zero.

    Shapes:   zero, one uint64[64 m], own uint64[m] -> uint32[m, 65], uint64[m]
    """
    _require(zero.shape == one.shape == (_BITS * own.size,) and own.ndim == 1)
    packed, terms = np.empty((own.size, PACKED_WORDS), dtype=np.uint32), np.empty_like(own)
    _compiled().sender_products(zero, one, own, packed, terms)
    return packed, terms


def receiver_products(pads: Ring, packed: NDArray[np.uint32], own: Ring) -> Ring:
    """The terms sum_t 2^t (pad + bit t of own * message).

    Shapes:   pads uint64[64 m], packed uint32[m, 65], own uint64[m] -> uint64[m]
    """
    _require(own.ndim == 1 and pads.shape == (_BITS * own.size,) and packed.shape == (own.size, PACKED_WORDS))
    terms = np.empty_like(own)
    _compiled().receiver_products(pads, packed, own, terms)
    return terms


def fold(streams: Ring, columns: Ring, total: Ring) -> None:
    """Xor into ``columns[b]`` the streams whose number has bit b set; write the xor of all streams to ``total``.

    Shapes:   uint64[2^k, n], columns uint64[k, n], total uint64[n]
    """
    bits = len(streams).bit_length() - 1
    if streams.ndim != 2 or len(streams) != 1 << max(bits, 0) or not streams.flags.c_contiguous:
        raise ProtocolViolation(f"streams are folded in rows, a power of two of them; found shape {streams.shape}")
    if (columns.shape, total.shape) != ((bits, streams.shape[1]), streams.shape[1:]):
        raise ProtocolViolation(
            f"streams of shape {streams.shape} are folded into {bits} columns and a total, found shapes "
            f"{columns.shape} and {total.shape}"
        )
    _compiled().fold(streams, columns, total)


def shift_rows(rows: Ring, shift: Ring, out: Ring) -> None:
    """Every row of 16 bytes xor ``shift``. Shapes: uint64[2 n], uint64[2] -> out uint64[2 n]"""
    _require_rows(rows.size == out.size and shift.size == _ROW_WORDS, out)
    _compiled().shift_rows(rows, shift[0], shift[1], out)


def tweak(rows: Ring, first: int, out: Ring) -> None:
    """Row i of 16 bytes xor ``first`` + i. Shapes: uint64[2 n] -> out uint64[2 n]"""
    _require_rows(rows.size == out.size, out)
    _compiled().tweak(rows, np.uint64(first), out)


def first_words(rows: Ring, others: Ring, out: Ring) -> None:
    """The first eight bytes of every row of 16, xor the other's. Shapes: uint64[2 n] twice -> out uint64[n]"""
    _require_rows(rows.size == others.size == _ROW_WORDS * out.size, rows)
    _compiled().first_words(rows, others, out)


def _require(fits: bool) -> None:
    if not fits:
        raise ProtocolViolation("an OT product needs 64 pads and 65 packed words per element: check the lengths")


def _require_rows(fits: bool, rows: Ring) -> None:
    if not fits or rows.size % _ROW_WORDS:
        raise ProtocolViolation("the rows of an OT have two words each, as many rows in as out: check the lengths")
