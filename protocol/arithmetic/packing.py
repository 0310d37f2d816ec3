"""Ring vectors as bytes, in the study's ring: eight bytes an element, or six (docs/protocol.md 24).

An element of Z_{2^48} is written as its six low bytes, little-endian, and read with its sign: as the element of
Z_{2^64} that has the same signed reading.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from protocol.arithmetic import ring
from protocol.arithmetic.kernels import NUMBA, Kernels
from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage
from protocol.parameters import WORD_BITS, RingBits

_BITS_PER_BYTE: Final = 8
_WORDS: Final = 3
"""Of 16 bits each, in an element of 48."""
_WIRE: Final = np.dtype("<u2")


def element_bytes(bits: RingBits) -> int:
    """Return the bytes that one element takes."""
    return bits // _BITS_PER_BYTE


def packed(x: Ring, bits: RingBits, kernels: Kernels = NUMBA) -> memoryview:
    """The elements modulo 2^bits, one after the other; without a copy in 64 bits.

    Shapes:   uint64[n] -> n * bits / 8 bytes
    """
    if bits == WORD_BITS:
        return ring.octets(x)
    words = np.empty(_WORDS * x.size, dtype=np.uint16)
    kernels.pack(np.ascontiguousarray(x), words)
    return words.astype(_WIRE, copy=False).view(np.uint8).data


def unpacked(
    b: bytes | bytearray | memoryview, length: int, bits: RingBits, kernels: Kernels = NUMBA, out: Ring | None = None
) -> Ring:
    """The inverse of :func:`packed`, up to :func:`protocol.arithmetic.ring.lifted`; into ``out`` where it is given.

    Shapes:   length * bits / 8 bytes -> uint64[length]; may be a read-only view of ``b`` in 64 bits
    Raises:   MalformedMessage, when ``b`` has another length
    """
    if bits == WORD_BITS:
        return ring.from_bytes(b, length)
    found = memoryview(b).nbytes
    if found != element_bytes(bits) * length:
        raise MalformedMessage(
            f"a vector of {length} elements of {bits} bits takes {element_bytes(bits) * length} bytes, found {found}; "
            "check that both parties use the same study parameters"
        )
    words = np.require(np.frombuffer(b, dtype=_WIRE).astype(np.uint16, copy=False), requirements=["C", "A"])
    into = np.empty(length, dtype=np.uint64) if out is None else out
    kernels.unpack(words, into)
    return into
