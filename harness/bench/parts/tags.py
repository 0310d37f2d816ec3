"""What tags add, by themselves: passes over a vector in memory, on one core (docs/protocol.md 15)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protocol.arithmetic.prg import Usage, expand, expand_into
from protocol.arithmetic.ring import Ring
from protocol.parameters import TAG_COORDINATES
from protocol.tags.halves import VectorDigest
from protocol.tags.sums import TagErrors, TagSums

_PIECE = 2**15
_KEY, _MASK = bytes(range(32)), bytes(range(32, 64))


@dataclass(frozen=True)
class TagCosts:
    """CPU nanoseconds per parameter, the least of ``repeats`` passes.

    An agent computes its tags, checks both halves and hashes the vector; a server hashes the vector that it makes, or
    expands the mask, and checks its half.
    """

    parameters: int
    repeats: int
    own_tags: float
    both_halves: float
    digest: float
    mask_half: float
    vector_half: float

    @property
    def agent(self) -> float:
        return self.own_tags + self.both_halves + self.digest


def tag_costs(parameters: int, repeats: int = 25) -> TagCosts:
    """Measure every pass, over vectors of so many parameters and their two tags."""
    length = parameters + TAG_COORDINATES
    x = expand(_MASK, Usage.SEEDED, length)
    pad = np.empty(_PIECE, dtype=np.uint64)

    def pieces(take: Callable[[int, Ring], None]) -> Callable[[], None]:
        def one_pass() -> None:
            for start in range(0, length, _PIECE):
                take(start, x[start : start + _PIECE])

        return one_pass

    def least(begin: Callable[[], Callable[[int, Ring], None]]) -> float:
        found = []
        for _ in range(repeats):
            one_pass = pieces(begin())
            begun = time.thread_time()
            one_pass()
            found.append(time.thread_time() - begun)
        return min(found) / parameters * 1e9

    def own() -> Callable[[int, Ring], None]:
        sums = TagSums(_KEY)
        return lambda start, piece: sums.add(piece)

    def halves(vectors: int) -> Callable[[int, Ring], None]:
        errors = TagErrors(_KEY, length, vectors)
        return lambda start, piece: errors.add(*[piece] * vectors)

    def mask() -> Callable[[int, Ring], None]:
        errors = TagErrors(_KEY, length)

        def take(start: int, piece: Ring) -> None:
            expand_into(_MASK, Usage.OUTPUT_MASK, pad[: piece.size], start=start)
            errors.add(pad[: piece.size])

        return take

    def digest() -> Callable[[int, Ring], None]:
        hashed = VectorDigest()
        return lambda start, piece: hashed.update(piece.data)

    return TagCosts(
        parameters=parameters,
        repeats=repeats,
        own_tags=least(own),
        both_halves=least(lambda: halves(2)),
        digest=least(digest),
        mask_half=least(mask),
        vector_half=least(lambda: halves(1)),
    )
