"""One range of a sketch or a masked sum as a pure function of the storage, and the key that wraps its secrets.

What a cluster schedules it also keeps: arguments of tasks lie in its tables and on its disks. So content keys, seeds
and masks go in wrapped, under a key that server and workers read from a file of their own, and what comes back is
under a pad that both derive from it.

In: names in the storage, a range of coordinates, wrapped keys. Out: parts of sketches under a pad, or a range of the
masked sum, written to the storage. Nothing here draws a random byte, so a range done again has the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from host.files import read_secret
from protocol.arithmetic.fixed_point import element_bytes, unpacked
from protocol.arithmetic.ring import SEED_BYTES, Ring, Usage, derive, expand, from_bytes, to_bytes
from protocol.channel.sealing import CHUNK_BYTES, BodyRange, sealed_length
from protocol.errors import BrokenSeal, ConfigurationError
from protocol.messages.bodies import content_bytes
from protocol.messages.control import ShareKind
from protocol.mpc.sketch import sketch_range
from protocol.parameters import StudyParameters
from protocol.release import masked_sum_of
from protocol.sharing import ChunkSource
from servers.store.chunk_tags import ENCRYPTED, ChunkTags
from servers.store.object_storage import Storage

_ONCE: Final = bytes(12)
"""The nonce: every key derived here wraps one secret."""


class WrappingKey:
    """``what`` names one secret for ever, so the same call gives the same bytes. It cannot be put into a task."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def wrap(self, secret: bytes, what: str) -> bytes:
        return AESGCM(derive(self._key, f"wrapped {what}")).encrypt(_ONCE, secret, None)

    def unwrap(self, wrapped: bytes, what: str) -> bytes:
        """Raises: BrokenSeal, under another key or another name"""
        try:
            return AESGCM(derive(self._key, f"wrapped {what}")).decrypt(_ONCE, wrapped, None)
        except InvalidTag:
            raise BrokenSeal(
                "a wrapped key does not open here: this machine's wrapping key is another than the server's; put the "
                "same file on every machine of the cluster"
            ) from None

    def seed(self, what: str) -> bytes:
        """A 32-byte seed that whoever has this key derives again."""
        return derive(self._key, f"seed {what}")

    def pad(self, what: str, elements: int) -> Ring:
        """Shapes: -> uint64[elements]"""
        return expand(self.seed(what), Usage.OUTPUT_MASK, elements)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a wrapping key never leaves its process")


def read_wrapping_key(path: Path) -> WrappingKey:
    """Read the key from a file that its owner alone may read. Raises: ConfigurationError"""
    text = read_secret(path).strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != SEED_BYTES:
        raise ConfigurationError(
            f"{path}: a wrapping key is {SEED_BYTES} random bytes in hexadecimal: openssl rand -hex 32 > {path}"
        )
    return WrappingKey(key)


CHUNK_ELEMENTS: Final = 2**16
"""Taken at once: small enough for the processor's cache."""


@dataclass(frozen=True)
class Bound:
    """The study, round, attempt and inputs of a pass: results of another are dropped. ``release`` is empty before a
    release set.
    """

    study: str
    round: int
    attempt: int
    challenge: str
    release: str

    @property
    def label(self) -> str:
        return "\n".join((self.study, str(self.round), str(self.attempt), self.challenge, self.release))

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.label.encode()).hexdigest()


@dataclass(frozen=True)
class StoredShare:
    """A share as it lies in the storage: the encrypted body of a contribution, its content key wrapped.

    ``chunk_tags`` are those of the encrypted chunks from ``first_chunk`` on: of a range alone in what workers are told.
    """

    name: str
    kind: ShareKind
    length: int
    wrapped_key: bytes = field(repr=False)
    chunk_tags: bytes | None = field(repr=False)
    first_chunk: int = 0

    @property
    def tags(self) -> ChunkTags:
        """Compared with every chunk that is read."""
        size = sealed_length(content_bytes(self.kind, self.length))
        return ChunkTags(self.name, size, ENCRYPTED, self.chunk_tags, self.first_chunk)

    def within(self, start: int, stop: int) -> StoredShare:
        """The same share, with what a pass over these elements needs."""
        if self.kind is ShareKind.SEED:
            return self
        size = element_bytes(self.kind.ring_bits)
        first, last = size * start // CHUNK_BYTES, -(-size * stop // CHUNK_BYTES)
        tags = self.tags.within(first * ENCRYPTED.step, last * ENCRYPTED.step)
        return replace(self, chunk_tags=tags.kept, first_chunk=tags.first)


@dataclass(frozen=True)
class SketchTask:
    """Parts of the sketches of ``shares``, of which the first has place ``first`` in the agreed set."""

    bound: Bound
    shares: tuple[StoredShare, ...]
    first: int
    start: int
    stop: int
    parameters: StudyParameters

    @property
    def pad(self) -> str:
        return f"sketch {self.first} {len(self.shares)} {self.start} {self.stop}\n{self.bound.label}"


@dataclass(frozen=True)
class SumTask:
    """Elements of the sum of ``shares`` minus PRG of a seed, which is wrapped under the name :attr:`mask`."""

    bound: Bound
    shares: tuple[StoredShare, ...]
    start: int
    stop: int
    wrapped_mask: bytes = field(repr=False)

    @property
    def mask(self) -> str:
        return mask_name(self.bound)

    @property
    def name(self) -> str:
        return f"sum-{self.bound.digest}-{self.start:012d}"


def mask_name(bound: Bound) -> str:
    """Under which the seed of a sum's mask is wrapped."""
    return f"mask\n{bound.label}"


@dataclass(frozen=True)
class Cost:
    """The cost of a range: seconds, CPU seconds, bytes read of shares, the worker's process and its largest memory."""

    seconds: float
    cpu_seconds: float
    bytes_read: int
    peak_rss_bytes: int
    process: int


@dataclass(frozen=True)
class SketchDone:
    """``padded``: the parts, one after the other, plus the pad of the task's name."""

    bound: Bound
    first: int
    start: int
    padded: bytes = field(repr=False)
    cost: Cost


@dataclass(frozen=True)
class SumDone:
    """A range of the masked sum in the storage, and the SHA-256 of its bytes."""

    bound: Bound
    start: int
    stop: int
    name: str
    digest: str
    cost: Cost


Task: TypeAlias = SketchTask | SumTask
Done: TypeAlias = SketchDone | SumDone


class _Counted:
    """A storage, and how many bytes were read of it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.ahead_bytes = storage.ahead_bytes
        self.bytes_read = 0

    def read(self, name: str, offset: int, size: int) -> bytes:
        found = self._storage.read(name, offset, size)
        self.bytes_read += len(found)
        return found


class _Ahead:
    """Reads one file from its beginning to its end, in pieces worth a request each."""

    def __init__(self, name: str, storage: _Counted | Storage) -> None:
        self._name = name
        self._storage = storage
        self._from = 0
        self._held = b""

    def read(self, offset: int, size: int) -> bytes | memoryview:
        if size >= self._storage.ahead_bytes:
            return self._storage.read(self._name, offset, size)
        if not self._from <= offset <= offset + size <= self._from + len(self._held):
            self._from, self._held = offset, self._storage.read(self._name, offset, self._storage.ahead_bytes)
        return memoryview(self._held)[offset - self._from :][:size]


def carry_out(task: Task, storage: Storage, wrapping: WrappingKey) -> Done:
    """Do one range. Raises: ShareAltered, BrokenSeal, Unavailable; none says a byte of a share or key"""
    began_s, cpu_s, counted = time.perf_counter(), time.thread_time(), _Counted(storage)
    sources = [source_of(share, counted, wrapping) for share in task.shares]

    def cost() -> Cost:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Cost(time.perf_counter() - began_s, time.thread_time() - cpu_s, counted.bytes_read, peak, os.getpid())

    if isinstance(task, SketchTask):
        challenge = bytes.fromhex(task.bound.challenge)
        parts = np.concatenate(sketch_range(challenge, sources, task.parameters, task.start, task.stop))
        padded = to_bytes(parts + wrapping.pad(task.pad, parts.size))
        return SketchDone(task.bound, task.first, task.start, padded, cost())
    seed = wrapping.unwrap(task.wrapped_mask, task.mask)
    data = to_bytes(masked_sum_of(sources, seed, task.start, task.stop, CHUNK_ELEMENTS))
    storage.write(task.name, data)
    return SumDone(task.bound, task.start, task.stop, task.name, hashlib.sha256(data).hexdigest(), cost())


def unpadded(task: SketchTask, done: SketchDone, wrapping: WrappingKey) -> Ring:
    """The parts of the sketches. Shapes: -> uint64[shares, min(D, k)]"""
    elements = len(task.shares) * task.parameters.sketched_length
    parts: Ring = from_bytes(done.padded, elements) - wrapping.pad(task.pad, elements)
    return parts.reshape(len(task.shares), task.parameters.sketched_length)


def source_of(share: StoredShare, storage: _Counted | Storage, wrapping: WrappingKey) -> ChunkSource:
    """Chunk access to a stored share, in clear in this process's memory alone.

    Raises: BrokenSeal, where the share's key is wrapped under another key; ShareAltered, and so does the source;
            ProtocolViolation
    """
    content_key = wrapping.unwrap(share.wrapped_key, share.name)
    body = BodyRange(
        content_key,
        content_bytes(share.kind, share.length),
        share.tags.reader(_Ahead(share.name, storage).read),
    )
    if share.kind is ShareKind.SEED:
        seed = bytes(body.bytes_at(0, content_bytes(share.kind, share.length)))
        return lambda start, stop: expand(seed, Usage.SHARE, stop - start, start=start)
    bits, size = share.kind.ring_bits, element_bytes(share.kind.ring_bits)
    return lambda start, stop: unpacked(body.bytes_at(size * start, size * stop), stop - start, bits)
