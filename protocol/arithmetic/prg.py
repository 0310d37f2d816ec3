"""Seed -> ring vector: AES-256 in counter mode, with one usage tag a purpose (docs/protocol.md 3).

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


@unique
class Usage(IntEnum):
    """What a stream is for. A number, once given, never changes its meaning."""

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


def expand(seed: bytes, usage: Usage, length: int, *, start: int = 0) -> Ring:
    """Elements ``start`` to ``start + length`` of the seed's stream for this usage.

    Shapes:   -> uint64[length], ring 2^64
    Raises:   MalformedMessage, when the seed is not 32 bytes
    """
    raw = _stream(seed, usage, ELEMENT_BYTES * length, ELEMENT_BYTES * start)
    return raw.view(np.dtype("<u8")).astype(np.uint64, copy=False)


def expand_bytes(seed: bytes, usage: Usage, n: int, *, start: int = 0) -> bytes:
    """Bytes ``start`` to ``start + n`` of the same stream that :func:`expand` reads as ring elements."""
    return _stream(seed, usage, n, start).tobytes()


def derive(seed: bytes, label: str) -> bytes:
    """A fresh 32-byte key for the purpose that ``label`` names: HMAC-SHA256(seed, label)."""
    return hmac.new(seed, label.encode(), hashlib.sha256).digest()


def _stream(seed: bytes, usage: Usage, n: int, start: int) -> NDArray[np.uint8]:
    if len(seed) != SEED_BYTES:
        raise MalformedMessage(f"a seed has {SEED_BYTES} bytes, found {len(seed)}; check which field was read")
    if n < 0 or start < 0:
        raise ProtocolViolation(f"a stream has no piece of length {n} at {start}; both must be at least zero")
    block, skip = divmod(start, _BLOCK_BYTES)
    counter = int(usage).to_bytes(8, "big") + block.to_bytes(8, "big")
    encryptor = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()
    out = np.empty(skip + n + _BLOCK_BYTES, dtype=np.uint8)  # update_into may ask for one block of room
    room, zeros = out.data, memoryview(_ZEROS)
    done, wanted = 0, skip + n
    while done < wanted:
        done += encryptor.update_into(zeros[: wanted - done], room[done:])
    return out[skip:wanted]
