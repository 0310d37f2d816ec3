"""Kernels of the prototype: vectors modulo 2^48, packed six bytes an element, four elements in three words.

Element i of four begins at bit 48 i of the 192; words are little-endian, so the bytes are six little-endian ones each.
Lengths are multiples of four. Each kernel reads or writes packed words in the same pass as it computes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from protocol.arithmetic.ring import Ring

BITS: Final = 48
MASK: Final = np.uint64((1 << BITS) - 1)
_16, _32, _48 = np.uint64(16), np.uint64(32), np.uint64(48)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def pack(x: Ring, words: Ring) -> None:  # pragma: no cover - compiled
    """uint64[4n], read modulo 2^48 -> uint64[3n]."""
    for i in range(words.size // 3):
        a, b, c, d = x[4 * i] & MASK, x[4 * i + 1] & MASK, x[4 * i + 2] & MASK, x[4 * i + 3] & MASK
        words[3 * i] = a | (b << _48)
        words[3 * i + 1] = (b >> _16) | (c << _32)
        words[3 * i + 2] = (c >> _32) | (d << _16)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def unpack(words: Ring, x: Ring) -> None:  # pragma: no cover - compiled
    """uint64[3n] -> uint64[4n], below 2^48."""
    for i in range(words.size // 3):
        p, q, r = words[3 * i], words[3 * i + 1], words[3 * i + 2]
        x[4 * i] = p & MASK
        x[4 * i + 1] = ((p >> _48) | (q << _16)) & MASK
        x[4 * i + 2] = ((q >> _32) | (r << _32)) & MASK
        x[4 * i + 3] = r >> _16


@njit(nogil=True)  # type: ignore[untyped-decorator]
def mask(x: Ring, pad: Ring, words: Ring) -> None:  # pragma: no cover - compiled
    """x - pad modulo 2^48, packed: uint64[4n] and uint64[3n] -> uint64[3n]; ``pad`` may be ``words``."""
    for i in range(words.size // 3):
        p, q, r = pad[3 * i], pad[3 * i + 1], pad[3 * i + 2]
        a = (x[4 * i] - (p & MASK)) & MASK
        b = (x[4 * i + 1] - ((p >> _48) | (q << _16))) & MASK
        c = (x[4 * i + 2] - ((q >> _32) | (r << _32))) & MASK
        d = (x[4 * i + 3] - (r >> _16)) & MASK
        words[3 * i] = a | (b << _48)
        words[3 * i + 1] = (b >> _16) | (c << _32)
        words[3 * i + 2] = (c >> _32) | (d << _16)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def add_into(total: Ring, words: Ring) -> None:  # pragma: no cover - compiled
    """Add a packed share to uint64[4n], which wraps at 2^64 and is cut to 48 bits when it is packed."""
    for i in range(words.size // 3):
        p, q, r = words[3 * i], words[3 * i + 1], words[3 * i + 2]
        total[4 * i] += p & MASK
        total[4 * i + 1] += ((p >> _48) | (q << _16)) & MASK
        total[4 * i + 2] += ((q >> _32) | (r << _32)) & MASK
        total[4 * i + 3] += r >> _16


@njit(nogil=True)  # type: ignore[untyped-decorator]
def open_into(words: Ring, pad: Ring, x: Ring) -> None:  # pragma: no cover - compiled
    """The signed sum of a packed masked vector and its packed pad, sign-extended to 64 bits: exact, no share of it."""
    for i in range(words.size // 3):
        p, q, r = words[3 * i], words[3 * i + 1], words[3 * i + 2]
        s, t, u = pad[3 * i], pad[3 * i + 1], pad[3 * i + 2]
        x[4 * i] = p + s
        x[4 * i + 1] = ((p >> _48) | (q << _16)) + ((s >> _48) | (t << _16))
        x[4 * i + 2] = ((q >> _32) | (r << _32)) + ((t >> _32) | (u << _32))
        x[4 * i + 3] = (r >> _16) + (u >> _16)
        for j in range(4 * i, 4 * i + 4):
            x[j] = np.uint64(np.int64(x[j] << _16) >> 16)
