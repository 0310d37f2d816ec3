"""Queries of the requester's choice: the 64 bits of an opened number hold three coordinates of an update."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import ValidationError

from client_agent.learning.ridge import ridge
from harness.adversaries.attack import Attempt, Found, passes
from harness.adversaries.opened_values import opened_values
from protocol.arithmetic.ring import MODULUS, Ring, from_signed
from protocol.errors import PolicyRefusal
from protocol.messages.control import RankingSpec
from protocol.parameters import Needs, StudyParameters
from protocol.policy import site_policy
from protocol.policy.site_policy import SitePolicy

_PARAMETERS: Final = StudyParameters(dimension=12, clip_norm=1.0, least_contributors=3)
_PLACES: Final = (4, 7, 9)
_DIGIT: Final = 21
_BASE: Final = 2**_DIGIT
_TINY, _HUGE = 1e-9, 1e6


def _update() -> np.ndarray:
    return np.random.default_rng(73).integers(-(2**19), 2**19, _PARAMETERS.dimension)


def _query(places: Sequence[int]) -> Ring:
    """1, 2^21 and 2^42 at three coordinates: their product with an update holds all three as digits."""
    vector = np.zeros(_PARAMETERS.dimension, dtype=np.int64)
    vector[list(places)] = 1, _BASE, _BASE**2
    return from_signed(vector)


def _read(opened: int, update: np.ndarray, places: Sequence[int]) -> int:
    """Count the coordinates that one number tells, as its signed digits of base 2^21, lowest first."""
    read = 0
    for place in places:
        digit = (opened + _BASE // 2) % _BASE - _BASE // 2
        read += digit == update[place]
        opened = (opened - digit) >> _DIGIT
    return read


def _inner_product(update: np.ndarray, places: Sequence[int]) -> int:
    (opened,) = opened_values(Needs.INNER_PRODUCTS, [from_signed(update)], [_query(places)], _PARAMETERS)
    return _read(opened.values[0], update, places)


def _three_digits(_: Path) -> Found:
    """A probe of the requester's choice under a rule that opens inner products; nothing checks a probe."""
    read = _inner_product(_update(), _PLACES)
    return Found(read == len(_PLACES), read)


def _pair_of_three_digits(_: Path) -> Found:
    """An accomplice's vector is the query; it fails the range check, and its pairs can be opened all the same."""
    update, accomplice = _update(), _query(_PLACES)
    own = np.zeros(_PARAMETERS.dimension, dtype=np.uint64)
    vectors = [own, accomplice, from_signed(update)]
    with_own, with_accomplice = opened_values(Needs.PAIRS, vectors, [None] * 3, _PARAMETERS)[2].values
    square = 1 + _BASE**2 + _BASE**4
    twice = (with_own + square - with_accomplice) % MODULUS
    read = _read((twice // 2 + 2**62) % 2**63 - 2**62, update, _PLACES)
    return Found(read == len(_PLACES), read)


def _several_rankings(_: Path) -> Found:
    """Each study over the same data ranks its sites once; its query is anything."""
    model = _update()
    read = sum(_inner_product(model, range(first, first + 3)) for first in (0, 3, 6, 9))
    return Found(read == model.size, read)


def _tiny_penalty(_: Path) -> Found:
    """A ridge regression without a penalty fits the one patient who has a feature, exactly."""
    asked = RankingSpec.model_construct(penalty=_TINY, clip_norm=16.0)
    try:
        site_policy.check_penalty_allowed(asked, SitePolicy(may_rank=True))
    except PolicyRefusal:
        return Found(False, 0.0)
    draw = np.random.default_rng(9)
    x, y = np.hstack([np.ones((100, 1)), draw.normal(size=(100, 3))]), np.eye(2)[draw.integers(0, 2, 100)]
    rare = np.zeros((100, 1))
    rare[0] = 1
    residual = float((y[0] - x[0] @ ridge(x[1:], y[1:], _TINY))[0])
    part = float(ridge(np.hstack([x, rare]), y, _TINY)[-1, 0]) / residual
    return Found(part > 0.95, part)


def _huge_penalty(_: Path) -> Found:
    """Divided by a huge penalty, a ridge regression is X'Y: for features of 0 and 1 the counts of feature by class."""
    try:
        penalty = RankingSpec(penalty=_HUGE).penalty
    except ValidationError:
        return Found(False, 0)
    draw, patients = np.random.default_rng(11), 40
    x = np.hstack((draw.integers(0, 2, (patients, 3)), np.ones((patients, 1)))).astype(float)
    y = np.eye(2)[draw.integers(0, 2, patients)]
    read = int(np.count_nonzero(np.rint(patients * penalty * ridge(x, y, penalty)) == x.T @ y))
    return Found(read == x.shape[1] * y.shape[1], read)


ATTEMPTS: Final = {
    "query-of-three-digits": Attempt(_three_digits),
    "pair-of-three-digits": Attempt(_pair_of_three_digits),
    "rankings-of-several-studies": Attempt(_several_rankings),
    "ranking-with-a-tiny-penalty": Attempt(
        _tiny_penalty, {"protocol.policy.site_policy.check_penalty_allowed": passes}
    ),
    "ranking-with-a-huge-penalty": Attempt(_huge_penalty, {f"{__name__}.RankingSpec": RankingSpec.model_construct}),
}
