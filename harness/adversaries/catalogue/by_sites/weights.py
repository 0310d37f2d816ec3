"""Weights and class counts that a site says of itself and that are not so, under rules by which sites weigh themselves.

Vectors are encoded and added as sites and servers do it, and opened with every check that a site makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from protocol import release
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import Ring, from_signed, to_signed
from protocol.errors import AggregateOutOfBounds
from protocol.mpc import range_check
from protocol.parameters import StudyParameters
from protocol.rules.self_weights import class_weight, counts_vector
from protocol.sharing import Side

_PARAMETERS: Final = StudyParameters(dimension=65, clip_norm=1.0, least_contributors=3)
_E: Final = _PARAMETERS.encoded_norm
_HONEST: Final = (0.75, 0.5, 0.5, 1.0)
_CHALLENGES: Final = 20
_RANGE: Final = "the range check, and what every site asks of an opened sum of self-weighted updates"


def _passes_range_check(vector: Ring, draw: np.random.Generator) -> bool:
    """All 40 projections, for 20 challenges and sharings."""
    modulus_bits = 64 - _PARAMETERS.range_bits
    for _ in range(_CHALLENGES):
        rows = range_check.projections(draw.bytes(32), _PARAMETERS)
        share_b = draw.integers(0, 2**64, vector.size, dtype=np.uint64)
        u = range_check.operand(Side.A, vector - share_b, rows, _PARAMETERS)
        v = range_check.operand(Side.B, share_b, rows, _PARAMETERS)
        if np.any((u - v) & np.uint64((1 << modulus_bits) - 1) > 1):
            return False
    return True


class OwnWeight(Attack):
    """One site's last coordinate, its weight times E, is a number of its choice; the others' are honest.

    The figure is how long the average is that everybody applies, in clip norms; honest ones are at most 1 long.
    """

    party = Party.SITE
    defence = _RANGE
    figure = "clip norms, the length of the average that all sites apply"
    without: Mapping[str, object] = {
        "protocol.release.require_clipped_sum": passes,
        "harness.adversaries.catalogue.by_sites.weights._passes_range_check": lambda *_: True,
    }

    def __init__(self, name: str, tries: str, weight: float) -> None:
        self.name, self.tries, self._weight = name, tries, weight

    def attempt(self, folder: Path) -> Found:
        draw = np.random.default_rng(41)
        direction = clip(np.ones(64), 1.0)[0]
        honest = [encode(w * np.append(direction, 1.0), _PARAMETERS, draw.bytes(32)) for w in _HONEST]
        vector = np.zeros(65, dtype=np.int64)
        vector[-1] = int(self._weight * _E)
        hostile = from_signed(vector)
        if not _passes_range_check(hostile, draw):
            return Found(False, 0.0, "the site fails the range check and is left out")
        total = to_signed(np.asarray(np.sum([*honest, hostile], axis=0, dtype=np.uint64)))
        try:
            release.require_clipped_sum(total[:-1], int(total[-1]), len(_HONEST) + 1)
        except AggregateOutOfBounds as refused:
            return Found(False, 0.0, refused.detail)
        average = release.average_chunk(total[:-1], abs(int(total[-1])) / _E, _PARAMETERS)
        length = float(np.linalg.norm(average))
        return Found(length > 1.01 or length < 0.1, length)


class CountsAsSeveral(Attack):
    """Twice the largest weight with twice the update, which no check sees while others leave room."""

    name = "weight-of-several"
    party = Party.SITE
    tries = "says that it weighs as much as several of the largest sites there may be"
    defence = "none up to about five sites of weight 1: the range check and the sum's length bound it"
    figure = "of the average is that site's, among eight light sites; an honest one of weight 1 has 1/3"
    promised = False
    without: Mapping[str, object] = {}
    _times = 2

    def attempt(self, folder: Path) -> Found:
        draw = np.random.default_rng(42)
        light = [encode(np.append(np.zeros(64), 0.25), _PARAMETERS, draw.bytes(32)) for _ in range(8)]
        vector = np.full(65, self._times * _E // 8, dtype=np.int64)
        vector[-1] = self._times * _E
        hostile = from_signed(vector)
        if not _passes_range_check(hostile, draw):
            return Found(False, 0.0)
        total = to_signed(np.asarray(np.sum([*light, hostile], axis=0, dtype=np.uint64)))
        release.require_clipped_sum(total[:-1], int(total[-1]), 9)
        weights = release.own_weights_sum(int(total[-1]), _PARAMETERS, 9)
        share = float(np.linalg.norm(release.average_chunk(total[:-1], weights, _PARAMETERS)))
        return Found(share > 1 / 3 + 0.05, share)


_TRUE_COUNTS: Final = ((40, 10), (30, 20), (25, 25), (10, 40))


def _totals(last: Ring) -> tuple[int, ...]:
    honest = [counts_vector(counts, _PARAMETERS) for counts in _TRUE_COUNTS[:-1]]
    total = to_signed(np.asarray(np.sum([*honest, last], axis=0, dtype=np.uint64)))
    return release.class_totals(total, 2, len(_TRUE_COUNTS))


class ImpossibleCounts(Attack):
    """Class counts that no site can have: negative ones, numbers behind the classes."""

    name = "class-counts-that-cannot-be"
    party = Party.SITE
    tries = "counts fewer than no samples of a class, or samples of classes that are not there"
    defence = "totals that are negative, go on behind the classes or are fewer than the sites are discarded"
    figure = "impossible counts that sites took into their totals"
    without: Mapping[str, object] = {
        "protocol.release.class_totals": lambda signed, classes, n: tuple(signed[:classes])
    }

    def attempt(self, folder: Path) -> Found:
        taken = 0
        for places in ({0: -500}, {1: -(10**6)}, {0: 10, 5: 1}, {0: -104, 1: -52}):
            vector = np.zeros(65, dtype=np.int64)
            for place, count in places.items():
                vector[place] = count
            try:
                _totals(from_signed(vector))
            except AggregateOutOfBounds:
                continue
            taken += 1
        return Found(taken > 0, taken)


class CountsOfItsChoice(Attack):
    """Possible counts that are not so: all other sites weigh themselves by the totals that follow."""

    name = "class-counts-of-its-choice"
    party = Party.SITE
    tries = "says class counts under which the site that it likes least weighs little"
    defence = "none: with any possible counts of its own a site chooses the totals"
    figure = "times as heavy as by the true counts, the site that weighs least against the others by the false ones"
    promised = False
    without: Mapping[str, object] = {}

    def attempt(self, folder: Path) -> Found:
        true = _share(_totals(counts_vector(_TRUE_COUNTS[-1], _PARAMETERS)))
        false = _share(_totals(counts_vector((5_000, 1), _PARAMETERS)))
        left = false / true
        return Found(left < 0.9, left)


def _share(totals: Sequence[int]) -> float:
    """The first site's part of the weights of the honest ones."""
    weights = [class_weight(counts, totals, 1024) for counts in _TRUE_COUNTS[:-1]]
    return weights[0] / sum(weights)


def own_weights() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (
        OwnWeight("weight-negative", "says a negative weight: everybody's step becomes ten times as long", -2.5),
        OwnWeight(
            "weight-of-sixty-four", "says that it weighs as much as 64 of the largest sites, and sends nothing", 64.0
        ),
        OwnWeight("weight-of-two-to-the-41", "says a weight of 2^41", 2.0**41),
        CountsAsSeveral(),
        ImpossibleCounts(),
        CountsOfItsChoice(),
    )
