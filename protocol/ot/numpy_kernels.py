"""The numpy twins of the OT kernels: same bits, slower."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring

_BITS: Final = 64
_SHIFTS: Final = np.arange(_BITS, dtype=np.uint64)
# Of the 64 x 64 bits of an element's messages, bit t of the choice needs the low 64 - t.
_NEEDED: Final = np.flatnonzero((np.arange(_BITS)[np.newaxis] + np.arange(_BITS)[:, np.newaxis] < _BITS).ravel())
_CHUNK: Final = 1 << 10


def sender_products(zero: Ring, one: Ring, own: Ring, packed: NDArray[np.uint32], terms: Ring) -> None:
    """See ``kernels.OtKernels.sender_products``."""
    for at in range(0, own.size, _CHUNK):
        piece, rows = slice(at, at + _CHUNK), slice(_BITS * at, _BITS * (at + _CHUNK))
        pads = zero[rows].reshape(-1, _BITS)
        terms[piece] = -np.sum(pads << _SHIFTS, axis=1, dtype=np.uint64)
        messages = pads + own[piece, np.newaxis] - one[rows].reshape(-1, _BITS)
        bits = np.unpackbits(
            messages.astype("<u8").view(np.uint8).reshape(len(messages), -1), axis=1, bitorder="little"
        )
        wire = np.packbits(bits[:, _NEEDED], axis=1, bitorder="little")
        packed[piece] = np.ascontiguousarray(wire).view("<u4")


def receiver_products(pads: Ring, packed: NDArray[np.uint32], own: Ring, terms: Ring) -> None:
    """See ``kernels.OtKernels.receiver_products``."""
    for at in range(0, own.size, _CHUNK):
        piece, rows = slice(at, at + _CHUNK), slice(_BITS * at, _BITS * (at + _CHUNK))
        wire = np.ascontiguousarray(packed[piece], dtype="<u4")
        bits = np.zeros((len(wire), _BITS * _BITS), dtype=np.uint8)
        bits[:, _NEEDED] = np.unpackbits(wire.view(np.uint8), axis=1, bitorder="little")
        messages = np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)
        chosen = (own[piece, np.newaxis] >> _SHIFTS) & np.uint64(1)
        values = pads[rows].reshape(-1, _BITS) + messages * chosen
        terms[piece] = np.sum(values << _SHIFTS, axis=1, dtype=np.uint64)


def fold(streams: NDArray[np.uint64], columns: NDArray[np.uint64], total: Ring) -> None:
    """See ``kernels.OtKernels.fold``."""
    rest = streams
    for column in columns:
        np.bitwise_xor(column, np.bitwise_xor.reduce(rest[1::2], axis=0), out=column)
        rest = rest[0::2] ^ rest[1::2]
    total[:] = rest[0]


def tweak(once: Ring, index: np.uint64, out: Ring) -> None:
    """See ``kernels.OtKernels.tweak``."""
    out[:] = once
    out[::2] ^= np.arange(out.size // 2, dtype=np.uint64) + index


def shift_rows(rows: Ring, low: np.uint64, high: np.uint64, out: Ring) -> None:
    """See ``kernels.OtKernels.shift_rows``."""
    np.bitwise_xor(rows.reshape(-1, 2), np.array([low, high]), out=out.reshape(-1, 2))


def first_words(once: Ring, twice: Ring, out: Ring) -> None:
    """See ``kernels.OtKernels.first_words``."""
    np.bitwise_xor(once[::2], twice[::2], out=out)
