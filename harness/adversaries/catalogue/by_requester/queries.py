"""What opened numbers can tell a requester that chooses its query: 64 bits hold three coordinates of an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import ValidationError

from client_agent.learning.ridge import ridge
from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.opened_values import opened_values
from harness.adversaries.scripted_rounds import REQUESTER, SITES, Pair, Phase
from harness.federation.memory.servers import ServersInMemory
from protocol.arithmetic.ring import MODULUS, Ring, from_signed
from protocol.errors import PolicyRefusal
from protocol.parameters import Needs, StudyParameters
from protocol.policy import study_clauses
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import RankingSpec

_PARAMETERS: Final = StudyParameters(dimension=12, clip_norm=1.0, least_contributors=3)
_PLACES: Final = (4, 7, 9)
_DIGIT: Final = 21
_BASE: Final = 2**_DIGIT


def _update() -> np.ndarray:
    return np.random.default_rng(73).integers(-(2**19), 2**19, _PARAMETERS.dimension)


def _query(places: Sequence[int]) -> Ring:
    """1, 2^21 and 2^42 at three coordinates: their product with an update holds all three as digits."""
    vector = np.zeros(_PARAMETERS.dimension, dtype=np.int64)
    vector[list(places)] = 1, _BASE, _BASE**2
    return from_signed(vector)


def _digits(opened: int) -> list[int]:
    """The signed digits of base 2^21, lowest first."""
    found = []
    for _ in _PLACES:
        digit = (opened + _BASE // 2) % _BASE - _BASE // 2
        found.append(digit)
        opened = (opened - digit) >> _DIGIT
    return found


def _read(opened: int, update: np.ndarray, places: Sequence[int]) -> int:
    """How many of these coordinates one number tells."""
    return sum(digit == update[place] for digit, place in zip(_digits(opened), places, strict=True))


class ThreeDigits(Attack):
    """A probe of the requester's choice under a rule that opens inner products; nothing checks a probe."""

    name = "query-of-three-digits"
    party = Party.REQUESTER
    tries = "asks for an inner product whose 64 bits hold three coordinates of a small model's update"
    defence = "inner_products left out of a site's may_open; at most two such numbers per model"
    figure = "of 3 coordinates read exactly from one opened number"
    promised = False
    without: Mapping[str, object] = {}

    def attempt(self, folder: Path) -> Found:
        update = _update()
        (opened,) = opened_values(Needs.INNER_PRODUCTS, [from_signed(update)], [_query(_PLACES)], _PARAMETERS)
        read = _read(opened.values[0], update, _PLACES)
        return Found(read == len(_PLACES), read)


class PairOfThreeDigits(Attack):
    """An accomplice's vector is the query; it fails the range check, and its pairs can be opened all the same."""

    name = "pair-of-three-digits"
    party = Party.SITES
    tries = "has an accomplice send three powers of two, whose distance to an update holds three of its coordinates"
    defence = "pairs left out of a site's may_open; one measurement per model"
    figure = "of 3 coordinates read exactly from one opened pair"
    promised = False
    without: Mapping[str, object] = {}

    def attempt(self, folder: Path) -> Found:
        update, accomplice = _update(), _query(_PLACES)
        own = np.zeros(_PARAMETERS.dimension, dtype=np.uint64)
        vectors = [own, accomplice, from_signed(update)]
        with_own, with_accomplice = opened_values(Needs.PAIRS, vectors, [None] * 3, _PARAMETERS)[2].values
        square = 1 + _BASE**2 + _BASE**4
        twice = (with_own + square - with_accomplice) % MODULUS
        read = _read((twice // 2 + 2**62) % 2**63 - 2**62, update, _PLACES)
        return Found(read == len(_PLACES), read)


class SeveralRankings(Attack):
    """Each study over the same data ranks its sites once; its query is anything."""

    name = "rankings-of-several-studies"
    party = Party.REQUESTER
    tries = "ranks the same sites in four studies, each time with another query, and has a site's own model"
    defence = "may_rank is not the default; a site that sets it names the studies that it joins"
    figure = "of 12 coordinates of a site's own model read exactly"
    promised = False
    without: Mapping[str, object] = {}

    def attempt(self, folder: Path) -> Found:
        model, read = _update(), 0
        for places in ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)):
            (opened,) = opened_values(Needs.INNER_PRODUCTS, [from_signed(model)], [_query(places)], _PARAMETERS)
            read += _read(opened.values[0], model, places)
        return Found(read == model.size, read)


class TinyPenalty(Attack):
    """A ridge regression without a penalty fits the one patient who has a feature, exactly."""

    name = "ranking-with-a-tiny-penalty"
    party = Party.REQUESTER
    tries = "ranks with a penalty of a billionth, so that a rare feature's coefficient is its one patient's residual"
    defence = "the least penalty that any study and every site's policy takes, 0.01"
    figure = "of that patient's residual is in the coefficient"
    without: Mapping[str, object] = {"protocol.policy.study_clauses.check_penalty_allowed": passes}
    _tiny = 1e-9

    def attempt(self, folder: Path) -> Found:
        asked = RankingSpec.model_construct(penalty=self._tiny, clip_norm=16.0)
        try:
            study_clauses.check_penalty_allowed(asked, SitePolicy(may_rank=True))
        except PolicyRefusal:
            return Found(False, 0.0)
        draw = np.random.default_rng(9)
        x, y = np.hstack([np.ones((100, 1)), draw.normal(size=(100, 3))]), np.eye(2)[draw.integers(0, 2, 100)]
        rare = np.zeros((100, 1))
        rare[0] = 1
        residual = float((y[0] - x[0] @ ridge(x[1:], y[1:], self._tiny))[0])
        part = float(ridge(np.hstack([x, rare]), y, self._tiny)[-1, 0]) / residual
        return Found(part > 0.95, part)


class HugePenalty(Attack):
    """Divided by a huge penalty, a ridge regression is X'Y: for features of 0 and 1 the counts of feature by class."""

    name = "ranking-with-a-huge-penalty"
    party = Party.REQUESTER
    tries = "ranks with a penalty of a million, so that a site's own model is its table of counts, divided by it"
    defence = "the largest penalty that a study can have, 1"
    figure = "of 8 counts of a feature by a class read exactly"
    without: Mapping[str, object] = {f"{__name__}.RankingSpec": RankingSpec.model_construct}
    _huge = 1e6

    def attempt(self, folder: Path) -> Found:
        try:
            penalty = RankingSpec(penalty=self._huge).penalty
        except ValidationError:
            return Found(False, 0)
        draw, patients = np.random.default_rng(11), 40
        x = np.hstack((draw.integers(0, 2, (patients, 3)), np.ones((patients, 1)))).astype(float)
        y = np.eye(2)[draw.integers(0, 2, patients)]
        read = int(np.count_nonzero(np.rint(patients * penalty * ridge(x, y, penalty)) == x.T @ y))
        return Found(read == x.shape[1] * y.shape[1], read)


class PickedRelease(Attack):
    """The release set follows the distances: that is the rule's work, and nobody checks which rule it was."""

    name = "release-picked-by-distances"
    party = Party.REQUESTER
    tries = "looks at all distances and then has only those sites summed that it likes"
    defence = "the study's least number, and the memory of sums: every subset of that size counts as summed"
    figure = "sites left out of a sum for their distance alone"
    promised = False
    without: Mapping[str, object] = {}

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, SITES) as servers:
            pair = Pair(servers)
            try:
                opened = pair.round(opens=Needs.DISTANCES)
                opened.advance(Phase.MEASURED)
                seen = opened.sites.openings(opened.current, {})
                near = sorted(SITES[1:], key=lambda site: seen[site].distance or 0.0)[:3]
                chosen = tuple(site for site in SITES if site in (REQUESTER, *near))
                opened.release(chosen)
                opened.require_sum(chosen)
            finally:
                pair.close()
        return Found(True, len(SITES) - len(chosen))


def chosen_queries() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return ThreeDigits(), PairOfThreeDigits(), SeveralRankings(), TinyPenalty(), HugePenalty(), PickedRelease()
