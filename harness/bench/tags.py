"""``moiety lab bench variant tags``: cost of tags where a site splits its vector and opens a sum (protocol.md 15).

Each is timed with tags and without, one right after the other on the same bytes, in the product's own generators; the
cost is the difference, repeat by repeat. Sealing, hashing of bodies and files are in neither: tags add nothing there
but four elements.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from harness.attack.scripted_agents import ROSTER
from harness.attack.tagged_round import CONTRIBUTORS, TaggedRound
from harness.bench.meter import Benchmark, Spread, cpu_ns_each, facts
from harness.warm import warm
from protocol.arithmetic.ring import Ring, octets
from protocol.channel.sealing import CHUNK_BYTES, Octets
from protocol.messages.control import ShareKind
from protocol.parameters import TAG_COORDINATES
from protocol.protection.registry import protection_of
from protocol.protection.shares import CheckedHalves, with_tags
from protocol.release import AverageOpener, masking_side

_PIECE_BYTES: Final = 2**18
TARGET_NS: Final = 5.0


class TagsBenchmark(Benchmark):
    """CPU nanoseconds per parameter: with tags, without, and the difference; ``added`` is both together."""

    TITLE: ClassVar[str] = "What tags add at a site, CPU ns per parameter"
    parameters: int
    repeats: int
    load: float
    split_with: Spread
    split_without: Spread
    split_added: Spread
    open_with: Spread
    open_without: Spread
    open_added: Spread
    added: Spread
    target: float = TARGET_NS


def benchmark_tags(parameters: int, repeats: int) -> TagsBenchmark:
    """One synthetic round of five sites; one site's work in it is timed."""
    warm()
    load, _, _ = os.getloadavg()
    turn = TaggedRound(dimension=parameters)
    site = _Site(turn)
    site.check()
    timed: dict[str, list[float]] = {name: [] for name in ("split_with", "split_without", "open_with", "open_without")}
    for _ in range(repeats):
        for name, found in timed.items():
            found.append(cpu_ns_each(getattr(site, name), parameters))
    split = np.subtract(timed["split_with"], timed["split_without"])
    opened = np.subtract(timed["open_with"], timed["open_without"])
    return TagsBenchmark(
        parameters=parameters,
        repeats=repeats,
        **facts(f"variant tags --parameters {parameters} --repeats {repeats}"),
        load=load,
        **{name: Spread.of(values) for name, values in timed.items()},
        split_added=Spread.of(list(split)),
        open_added=Spread.of(list(opened)),
        added=Spread.of(list(split + opened)),
    )


class _Site:
    """One site's two passes, each with tags and without."""

    def __init__(self, turn: TaggedRound) -> None:
        name, number = CONTRIBUTORS[0], turn.number
        self._turn, self._past = turn, turn.past()
        parts = protection_of(turn.announcement).parts(turn.study, turn.announcement, 1, name, ROSTER)
        self._part = next(part for part in parts.values() if part.kind is ShareKind.VECTOR)
        self._dimension = turn.length - TAG_COORDINATES
        own = turn.shares[name]
        self._encoded: Ring = np.add(*own.values())[: self._dimension]
        self._tags: Ring = np.add(*own.values())[self._dimension :]
        masks = masking_side(number)
        self._mask_seed = turn.halves[masks].content
        self._vector = turn.halves[masks.other].vector(turn.length)

    def check(self) -> None:
        """Both ways open the same average."""
        if not np.array_equal(self.open_with(), self.open_without()):
            raise AssertionError("the sum with tags opens to another average")

    def split_with(self) -> None:
        turn = self._turn
        self._split(with_tags(self._pieces(), turn.announcement, 1, turn.tag_seed.hex()))

    def split_without(self) -> None:
        self._split([*self._pieces(), octets(self._tags)])

    def open_with(self) -> NDArray[np.float32]:
        halves = CheckedHalves(self._past, ROSTER, self._mask_seed, self._turn.length)
        opened = halves.opened(self._masked(self._turn.length), lambda pieces: self._averaged(pieces, None))
        if opened is None:
            raise AssertionError("the kept tags of an honest sum are wrong")
        return opened

    def open_without(self) -> NDArray[np.float32]:
        return self._averaged(self._masked(self._dimension), self._mask_seed)

    def _split(self, pieces: Iterable[Octets]) -> None:
        split = protection_of(self._turn.announcement).content(self._part, pieces, bytes(32))
        deque(split, maxlen=0)

    def _pieces(self) -> Iterator[memoryview]:
        whole = octets(self._encoded)
        return (whole[at : at + _PIECE_BYTES] for at in range(0, len(whole), _PIECE_BYTES))

    def _masked(self, length: int) -> Iterator[tuple[int, Ring]]:
        step = CHUNK_BYTES // 8
        return ((at, self._vector[at : min(at + step, length)]) for at in range(0, length, step))

    def _averaged(self, pieces: Iterable[tuple[int, Ring]], mask_seed: bytes | None) -> NDArray[np.float32]:
        parameters = self._turn.study.parameters
        opener = AverageOpener(mask_seed, 2.0**31, 5.0, parameters)
        out = np.empty(self._dimension, dtype=np.float32)
        for start, masked in pieces:
            opener.open_into(out[start : start + masked.size], masked, start)
        opener.finish()
        return out
