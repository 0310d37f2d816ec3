"""Bodies as tests open and seal them: whatever the header says, with the same layout as everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from protocol.channel.keys import SealingPublicKey
from protocol.channel.message import Message
from protocol.channel.sealing import CHUNK_BYTES
from protocol.messages import bodies
from tests.unit.client_agent.federation import REQUESTER, keys

SITE = "c2"
OTHER = "cd" * 32
SECRET = bytes(range(64))
KEY = keys(REQUESTER).sealing
CHUNK = CHUNK_BYTES // 8
LENGTHS = st.sampled_from([1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
PIECES = st.sampled_from([999, 2**16, 2**20])
FEW = settings(max_examples=12, deadline=None)


def closed(header: Message, content: Sequence[bytes], recipient: SealingPublicKey) -> bytes:
    """A body in memory, under a key and a salt that everybody knows."""
    return bodies.seal_body(header, content, recipient, bytes(bodies.SECRET_BYTES)).whole()


def vector(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, size=length, dtype=np.uint64)


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


def damaged(body: bytes) -> list[bytes]:
    """Cut anywhere, lengthened, altered at the end, behind something else."""
    altered = bytearray(body)
    altered[-1] ^= 1
    return [body[:-1], body[: len(body) // 2], body[:9], b"", body + b"\0", bytes(altered), b"not sealed" + body]
