"""Shares as a server with a cluster keeps them, and what one process makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from protocol.arithmetic.ring import Ring, Usage, expand, to_bytes
from protocol.channel.sealing import encrypt_body
from protocol.messages.control import ShareKind
from protocol.mpc.sketch import sketch_shares
from protocol.parameters import StudyParameters
from protocol.release import masked_sum_of
from protocol.sharing import ChunkSource
from servers.scale.passes import Here, Shards, Workers
from servers.scale.ranges import Bound, StoredShare, WrappingKey
from servers.store.chunk_tags import ENCRYPTED, Tagger
from servers.store.object_storage import Storage

STEP = 2**15
"""The shortest range: one chunk of an encrypted body."""
D = 3 * STEP + 77
KEY_TEXT = "5a" * 32
WRAPPING = WrappingKey(bytes.fromhex(KEY_TEXT))
BOUND = Bound("ab" * 32, 3, 1, "cd" * 32, "ef" * 32)
MASK = bytes.fromhex("9d" + "17e0c4" * 10 + "b2")
PARAMETERS = StudyParameters(dimension=D, clip_norm=1.0, least_contributors=3)
SITES = 3
SEEDED = 1
"""The site among them that sent a seed."""


def content_key(site: int) -> bytes:
    return bytes([0xC0 + site]) * 32


def seed(site: int) -> bytes:
    return bytes([0x50 + site]) * 32


def values(site: int) -> Ring:
    """The share in clear."""
    if site == SEEDED:
        return expand(seed(site), Usage.SHARE, D)
    drawn: Ring = np.random.default_rng(site).integers(0, 2**64, D, dtype=np.uint64)
    return drawn


def store_all(storage: Storage) -> list[StoredShare]:
    """Every site's encrypted body, as it would have come."""
    stored = []
    for site in range(SITES):
        name = f"{site:064x}"
        content = seed(site) if site == SEEDED else to_bytes(values(site))
        body, tagger = b"".join(encrypt_body(content_key(site), [content])), Tagger(ENCRYPTED)
        tagger.write(body)
        storage.write(name, body)
        kind = ShareKind.SEED if site == SEEDED else ShareKind.VECTOR
        stored.append(StoredShare(name, kind, D, WRAPPING.wrap(content_key(site), name), tagger.finish()))
    return stored


def cut_by(workers: Workers, storage: Storage, folder: Path) -> Shards:
    """Passes in the shortest ranges, two shares a task; what is written of them lies in ``folder``."""
    return Shards(workers, storage, WRAPPING, folder, range_elements=STEP, shares_a_task=2)


def here(storage: Storage, folder: Path) -> Shards:
    """Passes of this process."""
    return cut_by(Here(storage, WRAPPING), storage, folder)


def sources() -> list[ChunkSource]:
    return [lambda start, stop, site=site: values(site)[start:stop] for site in range(SITES)]  # type: ignore[misc]


def sketches_of_one_process() -> list[Ring]:
    return sketch_shares(bytes.fromhex(BOUND.challenge), sources(), PARAMETERS)


def masked_sum_of_one_process(mask: bytes = MASK) -> Ring:
    return masked_sum_of(sources(), mask, 0, D, 2**16)


def require_bits(cut: Shards, stored: Sequence[StoredShare], bound: Bound = BOUND) -> None:
    """Sketches and the masked sum are those of one process, bit for bit."""
    found = cut.sketches(bound, stored, PARAMETERS)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in sketches_of_one_process()]
    require_sum(cut, stored, bound)


def require_sum(cut: Shards, stored: Sequence[StoredShare], bound: Bound = BOUND) -> None:
    masked = cut.masked_sum(bound, stored, MASK, D)
    assert masked.elements(0, D).tobytes() == masked_sum_of_one_process().tobytes()


def write_key(folder: Path) -> Path:
    path = folder / "wrapping.key"
    path.write_text(KEY_TEXT + "\n")
    path.chmod(0o600)
    return path
