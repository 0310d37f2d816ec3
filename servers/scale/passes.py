"""Sketches and masked sums cut into ranges, done by workers, put together, and kept on disk (docs/protocol.md 18).

Workers are any :class:`Workers`: tasks of a Ray cluster (``ray.py``), or this process (:class:`Here`). Whoever does
a range, the result has the same bits.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from host.files import append_durably, new_folder, write_durably
from protocol.arithmetic.ring import ELEMENT_BYTES, Ring, Usage, expand, from_bytes, lifted
from protocol.errors import ProtocolViolation, Unavailable
from protocol.parameters import StudyParameters
from protocol.sharing import ChunkSource
from servers.scale.ranges import (
    Bound,
    Done,
    SketchDone,
    SketchTask,
    StoredShare,
    SumDone,
    SumTask,
    Task,
    WrappingKey,
    carry_out,
    mask_name,
    source_of,
    unpadded,
)
from servers.store.object_storage import Storage


@dataclass(frozen=True)
class Written:
    """A range of a masked sum that lies in the storage, and the SHA-256 that its bytes must have."""

    start: int
    stop: int
    name: str
    digest: str


class WrittenRanges:
    """One file a pass, STUDY-DIGEST.jsonl, a line a range; what a crash left of a line counts for nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = new_folder(folder)

    def of(self, bound: Bound) -> dict[int, Written]:
        """The ranges, ordered by where they start."""
        return {one.start: one for one in self._read(self._path(bound))}

    def add(self, bound: Bound, written: Written) -> None:
        """Durable when it returns. Raises: StorageFull"""
        append_durably(self._path(bound), json.dumps(asdict(written)).encode() + b"\n")

    def drop(self, bound: Bound, start: int) -> None:
        """A range that is to be done again."""
        found = self.of(bound)
        if found.pop(start, None) is not None:
            lines = (json.dumps(asdict(one)).encode() + b"\n" for one in found.values())
            write_durably(self._path(bound), b"".join(lines))

    def forget(self, study: str, kept: Bound | None = None) -> list[str]:
        """All of a study's passes but ``kept``. -> the names in the storage that go with them"""
        over = set(self._folder.glob(f"{study}-*.jsonl")) - ({self._path(kept)} if kept else set())
        names = [one.name for path in over for one in self._read(path)]
        for path in over:
            path.unlink(missing_ok=True)
        return names

    def named(self) -> Collection[str]:
        """Every name that a pass counts on."""
        return {one.name for path in self._folder.glob("*.jsonl") for one in self._read(path)}

    def _path(self, bound: Bound) -> Path:
        return self._folder / f"{bound.study}-{bound.digest}.jsonl"

    def _read(self, path: Path) -> list[Written]:
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [one for one in map(_written, lines[:-1]) if one is not None]


def _written(line: bytes) -> Written | None:
    """Its range is done again where the line is no whole one."""
    try:
        return Written(**json.loads(line))
    except (ValueError, TypeError):
        return None


OWNER: Final = "owner"
"""The file in a storage that says whose it is."""


class Workers(Protocol):
    """Whoever does ranges."""

    def do(self, tasks: Sequence[Task], over: threading.Event) -> Iterator[Done]:
        """The results as they come, in any order; fewer once ``over`` is set. Raises: Unavailable, MoietyError"""
        ...

    def close(self) -> None: ...


class Here:
    """This process does them, one after the other."""

    def __init__(self, storage: Storage, wrapping: WrappingKey) -> None:
        self._storage = storage
        self._wrapping = wrapping

    def do(self, tasks: Sequence[Task], over: threading.Event) -> Iterator[Done]:
        for task in tasks:
            if over.is_set():
                return
            yield carry_out(task, self._storage, self._wrapping)

    def close(self) -> None:
        """Nothing is open."""


class Shards:
    """Cuts passes, has their ranges done and puts them together; ``range_elements`` and ``shares_a_task`` a task."""

    def __init__(
        self,
        workers: Workers,
        storage: Storage,
        wrapping: WrappingKey,
        folder: Path,
        *,
        range_elements: int,
        shares_a_task: int,
    ) -> None:
        self.storage = storage
        self._workers = workers
        self._wrapping = wrapping
        self._written = WrittenRanges(folder)
        self._range_elements = range_elements
        self._shares_a_task = shares_a_task
        self._sums: dict[Bound, SumPass] = {}
        self._sketching: dict[Bound, threading.Event] = {}
        self._lock = threading.Lock()

    def sweep(self, named: Collection[str]) -> None:
        """At start: delete what a crash left behind, files that neither a row nor a sum under way names."""
        self.storage.delete(self.strays(named))

    def strays(self, named: Collection[str]) -> list[str]:
        """Files that neither a row nor a sum under way names."""
        kept = {*named, *self._written.named(), OWNER}
        return [name for name in self.storage.names() if name not in kept]

    def close(self) -> None:
        """Give up what is under way; what is written is taken up again."""
        with self._lock:
            for one in (*self._sketching.values(), *(sum_.over for sum_ in self._sums.values())):
                one.set()
        self._workers.close()

    def wrap(self, content_key: bytes, name: str) -> bytes:
        return self._wrapping.wrap(content_key, name)

    def source(self, share: StoredShare) -> ChunkSource:
        """Chunk access to a share, for a pass that is done here."""
        return source_of(share, self.storage, self._wrapping)

    def forget(self, study: str, kept: Bound | None = None) -> None:
        """Give up all passes of a study but ``kept``, and delete what they wrote."""
        with self._lock:
            for bound in [one for one in self._sums if one.study == study and one != kept]:
                self._sums.pop(bound).over.set()
            for bound in [one for one in self._sketching if one.study == study and one != kept]:
                self._sketching.pop(bound).set()
        self.storage.delete(self._written.forget(study, kept))

    def sketches(self, bound: Bound, shares: Sequence[StoredShare], parameters: StudyParameters) -> list[Ring]:
        """As ``protocol.mpc.sketch.sketch_shares``, bit for bit; waits for the workers.

        Raises: Unavailable, when the pass was given up or the workers are lost; BrokenSeal, ProtocolViolation
        """
        over = threading.Event()
        with self._lock:
            self._sketching[bound] = over
        step = self._shares_a_task
        tasks = {
            (first, start): SketchTask(
                bound, _within(shares[first : first + step], start, stop), first, start, stop, parameters
            )
            for start, stop in self._ranges(parameters.dimension)
            for first in range(0, len(shares), step)
        }
        totals = np.zeros((len(shares), parameters.sketched_length), dtype=np.uint64)
        for done in self._workers.do(list(tasks.values()), over):
            if not isinstance(done, SketchDone) or done.bound != bound:
                continue
            task = tasks.pop((done.first, done.start), None)
            if task is not None:
                totals[task.first : task.first + len(task.shares)] += unpadded(task, done, self._wrapping)
        with self._lock:
            self._sketching.pop(bound, None)
        if tasks:
            raise Unavailable(f"{len(tasks)} ranges of a round's sketches were given up; its round is over")
        return list(lifted(totals, parameters.ring_bits))

    def masked_sum(self, bound: Bound, shares: Sequence[StoredShare], mask: bytes, length: int) -> SumPass:
        """The sum of shares minus PRG(``mask``); begun once, whoever asks for it."""
        with self._lock:
            found = self._sums.get(bound)
            if found is None or found.failed:
                wrapped = self._wrapping.wrap(mask, mask_name(bound))
                tasks = [
                    SumTask(bound, _within(shares, start, stop), start, stop, wrapped)
                    for start, stop in self._ranges(length)
                ]
                found = self._sums[bound] = SumPass(tasks, self._workers, self.storage, self._written)
            return found

    def sum(self, bound: Bound, shares: Sequence[StoredShare], length: int) -> ChunkSource:
        """The sum itself, for the side that does not mask it: masked on its way with a seed that is derived."""
        seed = self._wrapping.seed(mask_name(bound))
        masked = self.masked_sum(bound, shares, seed, length)
        return lambda start, stop: (
            masked.elements(start, stop) + expand(seed, Usage.OUTPUT_MASK, stop - start, start=start)
        )

    def _ranges(self, length: int) -> list[tuple[int, int]]:
        step = self._range_elements
        return [(start, min(start + step, length)) for start in range(0, length, step)]


def _within(shares: Sequence[StoredShare], start: int, stop: int) -> tuple[StoredShare, ...]:
    return tuple(share.within(start, stop) for share in shares)


class SumPass:
    """A masked sum that is being written by ranges; read from its beginning while later ranges are under way."""

    def __init__(self, tasks: Sequence[SumTask], workers: Workers, storage: Storage, written: WrittenRanges) -> None:
        self.over = threading.Event()
        self._tasks = {task.start: task for task in tasks}
        self._bound = tasks[0].bound
        self._storage = storage
        self._ranges = written
        self._written = {start: one for start, one in written.of(self._bound).items() if start in self._tasks}
        self._news = threading.Condition()
        self._error: Exception | None = None
        self._held: tuple[Written, Ring] | None = None
        self._thread = threading.Thread(target=self._work, args=(workers,), name="masked sum", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Return whether a new pass has to take its place."""
        return self._error is not None or self.over.is_set()

    def elements(self, start: int, stop: int) -> Ring:
        """Elements of the masked sum; waits for the ranges that hold them.

        Raises: Unavailable, when the pass was given up, or a range is no longer what its worker wrote: ask again
        """
        parts = []
        while start < stop:
            one, values = self._range_with(start)
            end = min(stop, one.stop)
            parts.append(values[start - one.start : end - one.start])
            start = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _range_with(self, place: int) -> tuple[Written, Ring]:
        held = self._held
        if held is not None and held[0].start <= place < held[0].stop:
            return held
        start = max(one for one in self._tasks if one <= place)
        one = self._await(start)
        data = self._data(one)
        if hashlib.sha256(data).hexdigest() != one.digest or one.stop != self._tasks[start].stop:
            self._ranges.drop(self._bound, start)
            self._error = Unavailable("a range of the masked sum is not what its worker wrote; it is made again")
            raise self._error
        self._held = one, from_bytes(data, one.stop - one.start)
        return self._held

    def _data(self, one: Written) -> bytes:
        """Return what lies in the storage; nothing, where it is gone although the pass goes on."""
        try:
            return self._storage.read(one.name, 0, ELEMENT_BYTES * (one.stop - one.start))
        except ProtocolViolation:
            if self.over.is_set():
                raise
            return b""

    def _await(self, start: int) -> Written:
        with self._news:
            while start not in self._written:
                if self._error is not None:
                    raise self._error
                if self.over.is_set():
                    raise Unavailable("the masked sum was given up; its round is over")
                self._news.wait(1.0)
            return self._written[start]

    def _work(self, workers: Workers) -> None:
        """In a thread of its own: have done what is not written yet."""
        missing = [task for start, task in self._tasks.items() if start not in self._written]
        try:
            for done in workers.do(missing, self.over) if missing else ():
                self._take(done)
        except Exception as error:
            self._error = error
        lacking = len(self._tasks) - len(self._written)
        if lacking and self._error is None and not self.over.is_set():
            self._error = ProtocolViolation(f"the workers left out {lacking} ranges of a masked sum")
        with self._news:
            self._news.notify_all()

    def _take(self, done: Done) -> None:
        """Take a result; one of another pass, or one that came before, is dropped."""
        if not isinstance(done, SumDone) or done.bound != self._bound or self.over.is_set():
            return
        task = self._tasks.get(done.start)
        if task is None or (done.stop, done.name) != (task.stop, task.name) or done.start in self._written:
            return
        one = Written(done.start, done.stop, done.name, done.digest)
        self._ranges.add(self._bound, one)
        with self._news:
            self._written[done.start] = one
            self._news.notify_all()
