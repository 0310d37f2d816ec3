"""Seed -> ring vector: AES-256 in counter mode, with one usage tag per purpose (docs/protocol.md 3).

The counter block is the usage tag (8 bytes, big endian) followed by the block's index (8 bytes, big endian), so
streams of different purposes never overlap under one seed, and any place of a stream can be reached directly.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum, unique

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from protocol.arithmetic.ring import ELEMENT_BYTES, Ring
from protocol.errors import MalformedMessage, ProtocolViolation

SEED_BYTES = 32
_BLOCK_BYTES = 16
_ZEROS = bytes(1 << 16)
_WIRE = np.dtype("<u8")


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
