"""Vectors over the ring Z_{2^64}, and their expansion from seeds (docs/protocol.md 2, 3).

Vectors are numpy uint64 arrays. Only arrays are added and multiplied here: numpy wraps them silently, whereas its
scalars warn. In a study whose shares are modulo 2^48 the arrays are the same, and count modulo 2^48 alone: since 2^48
divides 2^64, sums may wrap at either, and :func:`lifted` reads what they are (docs/protocol.md 24).

A seed expands by AES-256 in counter mode. The counter block is the usage tag (8 bytes, big endian) followed by the
block's index (8 bytes, big endian), so streams of different purposes never overlap under one seed, and any place of a
stream can be reached directly.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum, unique
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.parameters import WORD_BITS, RingBits

Ring: TypeAlias = NDArray[np.uint64]
Signed: TypeAlias = NDArray[np.int64]
Real: TypeAlias = NDArray[np.float64]
Update: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

ELEMENT_BYTES = 8
MODULUS = 1 << 64
NORM_BLOCK = 4096
LEAST_EXPONENT = -1000
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


SEED_BYTES = 32
_BLOCK_BYTES = 16
_ZEROS = bytes(1 << 16)


@unique
class Usage(IntEnum):
    """The purpose of a stream. A number, once given, never changes its meaning."""

    SHARE = 1
    SKETCH = 2
    PROJECTIONS = 3
    QUERY = 4
    OUTPUT_MASK = 5
    ZERO_SHARING = 6
    DEALER_A = 7
    DEALER_B = 8
    OT_EXTENSION = 9
    OT_CHOICES = 10
    OT_MASKS = 11
    TAGS = 12
    ROUNDING = 13
    CANARY = 14
    SEEDED = 15
    MEMORY = 16
    FIRST_MODEL = 17
    CHECKS = 18
    NOISE = 19


def expand(seed: bytes, usage: Usage, length: int, *, start: int = 0) -> Ring:
    """Elements ``start`` to ``start + length`` of the seed's stream for this usage.

    Shapes:   -> uint64[length], ring 2^64
    Raises:   MalformedMessage, when the seed is not 32 bytes
    """
    raw = _stream(seed, usage, ELEMENT_BYTES * length, ELEMENT_BYTES * start)
    return raw.view(_WIRE).astype(np.uint64, copy=False)


def expand_into(seed: bytes, usage: Usage, out: Ring, *, start: int = 0) -> None:
    """Write elements ``start`` to ``start + out.size`` of the stream into ``out``; allocates nothing.

    Shapes:   out uint64[n], contiguous and little-endian, as everywhere on the hosts the kernels run on
    Raises:   MalformedMessage, when the seed is not 32 bytes; ProtocolViolation, when ``out`` is not such an array
    """
    if out.dtype != _WIRE or out.ndim != 1 or not out.flags.c_contiguous:
        raise ProtocolViolation(
            f"a stream is written into a contiguous little-endian uint64 vector, found {out.dtype.str} of shape "
            f"{out.shape}; pass such a buffer"
        )
    _fill(seed, usage, out.view(np.uint8), ELEMENT_BYTES * start)


def expand_bytes(seed: bytes, usage: Usage, n: int, *, start: int = 0) -> bytes:
    """Bytes ``start`` to ``start + n`` of the same stream that :func:`expand` reads as ring elements."""
    return _stream(seed, usage, n, start).tobytes()


def derive(seed: bytes, label: str) -> bytes:
    """A fresh 32-byte key for the purpose that ``label`` names: HMAC-SHA256(seed, label)."""
    return hmac.new(seed, label.encode(), hashlib.sha256).digest()


def _stream(seed: bytes, usage: Usage, n: int, start: int) -> NDArray[np.uint8]:
    if n < 0:
        raise ProtocolViolation(f"a stream has no piece of length {n}; it must be at least zero")
    out = np.empty(n, dtype=np.uint8)
    _fill(seed, usage, out, start)
    return out


def _fill(seed: bytes, usage: Usage, out: NDArray[np.uint8], start: int) -> None:
    if len(seed) != SEED_BYTES:
        raise MalformedMessage(f"a seed has {SEED_BYTES} bytes, found {len(seed)}; check which field was read")
    if start < 0:
        raise ProtocolViolation(f"a stream has no piece at {start}; its place must be at least zero")
    block, skip = divmod(start, _BLOCK_BYTES)
    counter = int(usage).to_bytes(8, "big") + block.to_bytes(8, "big")
    encryptor = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()
    encryptor.update(bytes(skip))
    room, zeros = out.data, memoryview(_ZEROS)
    done = 0
    while done < out.size:
        done += encryptor.update_into(zeros[: out.size - done], room[done:])
