"""Commitments of each server to its half of an output, made before it sees the seed of the tags (docs/protocol.md 9,
15).

The side that has the mask's seed t commits to t, which is 32 random bytes, so a hash hides it. The other one signs the
digest of its whole vector v, tags included; v is uniform to whoever lacks t.
"""

from __future__ import annotations

import hashlib
from typing import Final

from protocol.arithmetic.prg import SEED_BYTES
from protocol.parameters import PROTOCOL_VERSION
from protocol.wire.channel.sealing import Octets
from protocol.wire.keys import require_length

_MASK_SEED_DOMAIN: Final = f"{PROTOCOL_VERSION} output mask\x00".encode()
_VECTOR_DOMAIN: Final = f"{PROTOCOL_VERSION} output vector\x00".encode()


def mask_digest(t_seed: bytes) -> str:
    """The commitment to t, in hex. Raises: MalformedMessage, when t is not 32 bytes"""
    require_length("a mask's seed", t_seed, SEED_BYTES)
    return hashlib.sha256(_MASK_SEED_DOMAIN + t_seed).hexdigest()


class VectorDigest:
    """The digest of v, whose bytes come in pieces of any size: 8 little-endian bytes an element."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(_VECTOR_DOMAIN)

    def update(self, piece: Octets) -> None:
        self._hash.update(piece)

    def hexdigest(self) -> str:
        """Return the digest of everything so far."""
        return self._hash.hexdigest()
