"""A server that changes what it adds up: against what every site checks of a sum before it uses it.

The sum is made of real updates, encoded, shared, added and masked as servers do it; server B then alters its half. No
tag covers a sum yet, so a change within the bounds goes through (docs/threat_model.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring
from protocol.errors import AggregateOutOfBounds
from protocol.parameters import StudyParameters
from protocol.release import AverageOpener, combine_chunk, coordinate_bound, longest_sum, masked_sum_chunk, sum_chunk
from protocol.sharing import ChunkSource, split

_PARAMETERS = StudyParameters(dimension=400, clip_norm=1.0, least_contributors=3)
_SITES = 5
_SEED = bytes(range(32))
_BOUNDS = "the bound on every coordinate of an opened sum, and on its length"
Alter = Callable[[Ring, "Halves"], Ring]


class Halves:
    """Every site's update and its two shares."""

    def __init__(self) -> None:
        draw = np.random.default_rng(11)
        self.updates = [clip(draw.normal(size=_PARAMETERS.dimension), 1.0)[0] for _ in range(_SITES)]
        encoded = [encode(u, _PARAMETERS, bytes([i]) * 32) for i, u in enumerate(self.updates)]
        parts = [split(x, derive(_SEED, f"share {i}")) for i, x in enumerate(encoded)]
        self.at_b = [vector.vector for _, vector in parts]
        self.at_a = [x - b for x, b in zip(encoded, self.at_b, strict=True)]


def _sum(shares: list[Ring]) -> Ring:
    return sum_chunk([_source(one) for one in shares], 0, _PARAMETERS.dimension)


def _source(share: Ring) -> ChunkSource:
    return lambda start, stop: share[start:stop]


class AlteredSum(Attack):
    """Server B alters the vector that it serves; a site opens it as ever.

    The figure is how far the average that the site would apply lies from the true one, in clip norms.
    """

    party = Party.SERVER
    defence = _BOUNDS
    figure = "clip norms between the average that sites apply and the true one"
    without: Mapping[str, object] = {
        "protocol.release._require_within": passes,
        "protocol.release.AverageOpener.finish": passes,
    }

    def __init__(self, name: str, tries: str, alter: Alter, *, promised: bool = True) -> None:
        self.name, self.tries, self._alter, self.promised = name, tries, alter, promised

    def attempt(self, folder: Path) -> Found:
        halves = Halves()
        served = self._alter(combine_chunk(masked_sum_chunk(_sum(halves.at_a), _SEED, 0), _sum(halves.at_b)), halves)
        grid = _PARAMETERS.weight_grid * _SITES
        opener = AverageOpener(
            _SEED,
            coordinate_bound(_PARAMETERS, grid, _SITES, measured=True),
            longest_sum(_PARAMETERS, grid, _SITES),
            float(_SITES),
            _PARAMETERS,
        )
        average = np.empty(_PARAMETERS.dimension, dtype=np.float32)
        try:
            opener.open_into(average, served, 0)
            opener.finish()
        except AggregateOutOfBounds:
            return Found(False, 0.0)
        moved = float(np.linalg.norm(average - np.mean(halves.updates, axis=0)))
        return Found(moved > _NOTICEABLE, moved)


_NOTICEABLE = 0.05
"""Rounding moves an average by less than a ten thousandth of a clip norm."""


def _plus(units: int, places: int | slice) -> Alter:
    def alter(served: Ring, halves: Halves) -> Ring:
        altered = served.copy()
        altered[places] += np.uint64(units % 2**64)
        return altered

    return alter


def _site_left_out(served: Ring, halves: Halves) -> Ring:
    """B leaves a site out that A adds: what is left is A's half of that site's vector, which is uniform."""
    return served - halves.at_b[0]


def _site_twice(served: Ring, halves: Halves) -> Ring:
    return served + halves.at_b[0]


def altered_sums() -> tuple[Attack, ...]:
    """Every attack of this family."""
    within = int(_PARAMETERS.encoded_norm * 0.5)
    every = slice(None)
    return (
        AlteredSum("sum-plus-two-to-the-63", "adds 2^63 to one coordinate of the sum", _plus(2**63, 7)),
        AlteredSum(
            "sum-plus-a-hundred-norms", "adds a hundred clip norms to one coordinate", _plus(100 * 2 * within, 3)
        ),
        AlteredSum("sum-plus-a-constant", "adds a clip norm to every coordinate", _plus(2 * within, every)),
        AlteredSum("sum-without-a-site", "leaves out of its half a site that the other server adds", _site_left_out),
        AlteredSum("sum-with-a-site-twice", "adds one site's share twice to its half", _site_twice),
        AlteredSum("sum-plus-half-a-norm", "adds half a clip norm to one coordinate", _plus(within, 3), promised=False),
    )
