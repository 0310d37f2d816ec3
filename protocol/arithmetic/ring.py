"""Vectors over the ring Z_{2^64}: numpy uint64 arrays, whose arithmetic wraps (docs/protocol.md 2).

Only arrays are added and multiplied here: numpy wraps them silently, whereas its scalars warn.
In a study whose shares are modulo 2^48 the arrays are the same, and count modulo 2^48 alone: since 2^48 divides 2^64,
sums may wrap at either, and :func:`lifted` reads what they are (docs/protocol.md 24).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.errors import MalformedMessage
from protocol.parameters import WORD_BITS, RingBits

Ring: TypeAlias = NDArray[np.uint64]
Signed: TypeAlias = NDArray[np.int64]

ELEMENT_BYTES = 8
MODULUS = 1 << 64
_WIRE = np.dtype("<u8")


def to_signed(x: Ring) -> Signed:
    """The two's complement reading, in [-2^63, 2^63); a view of the same memory."""
    return x.view(np.int64)


def from_signed(x: Signed) -> Ring:
    """The inverse of :func:`to_signed`; a view of the same memory."""
    return x.view(np.uint64)


def lifted(x: Ring, bits: RingBits) -> Ring:
    """The element of Z_{2^64} with the same signed reading as x has modulo 2^bits; ``x`` itself in 64 bits.

    Shapes:   uint64[...] -> uint64[...], every entry's signed reading in [-2^(bits-1), 2^(bits-1))
    """
    if bits == WORD_BITS:
        return x
    shift = np.int64(WORD_BITS - bits)
    return from_signed((to_signed(x) << shift) >> shift)


def dot(a: Ring, b: Ring) -> int:
    """Inner product modulo 2^64."""
    return int(np.dot(a, b))


def to_bytes(x: Ring) -> bytes:
    """Eight little-endian bytes per element."""
    return x.astype(_WIRE, copy=False).tobytes()


def octets(x: Ring) -> memoryview:
    """As :func:`to_bytes`, without a copy where the machine writes numbers so."""
    return np.ascontiguousarray(x.astype(_WIRE, copy=False)).view(np.uint8).data


def from_bytes(b: bytes | bytearray | memoryview, length: int) -> Ring:
    """Read ``length`` elements; the result may be a read-only view of ``b``.

    Raises:   MalformedMessage, when ``b`` is not exactly 8 * length bytes
    """
    found = memoryview(b).nbytes
    if found != ELEMENT_BYTES * length:
        raise MalformedMessage(
            f"a vector of {length} ring elements takes {ELEMENT_BYTES * length} bytes, found {found}; "
            "check that both parties use the same study parameters"
        )
    return np.frombuffer(b, dtype=_WIRE).astype(np.uint64, copy=False)
