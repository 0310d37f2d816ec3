"""Attacks by a requester that chooses what it asks for: queries, and exact counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from client_agent.learning.ridge import ridge
from harness.attack.attack import Attempt, Found, passes
from harness.engine.protected_sum import correlations_from
from protocol.arithmetic.ring import MODULUS, Ring, Signed, derive, from_signed
from protocol.errors import PolicyRefusal
from protocol.messages.control import RankingSpec
from protocol.mpc import measurement, sketch
from protocol.mpc.measurement import SiteSketch
from protocol.parameters import Needs, StudyParameters
from protocol.policy import site_policy
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from protocol.summary.layout import Layout, Numeric
from protocol.summary.protection import Numbers, Protection, shared_vector

_LABEL: Final = "opened values"


@dataclass(frozen=True)
class Opened:
    """The numbers about one site, mod 2^64, and whether it is in range."""

    values: tuple[int, ...]
    in_range: bool


def opened_values(
    opens: Needs,
    vectors: Sequence[Ring],
    queries: Sequence[Ring | None],
    parameters: StudyParameters,
    challenge: bytes = bytes(range(32)),
) -> list[Opened]:
    """Return what both servers send the requester about each vector, with a query for it where the round takes queries.

    Shapes: uint64[dimension] each; models no longer than the sketch, so that nothing is estimated
    """
    draw = np.random.default_rng(73)

    def halved(x: Ring) -> dict[Side, Ring]:
        at_b = draw.integers(0, MODULUS, x.size, dtype=np.uint64)
        return {Side.A: x - at_b, Side.B: at_b}

    shares = [halved(x) for x in vectors]
    asked = [None if query is None else halved(query) for query in queries]
    operands = {
        side: measurement.prepare_all(
            side,
            challenge,
            [
                SiteSketch(f"site-{i}", share[side], None if query is None else query[side])
                for i, (share, query) in enumerate(zip(shares, asked, strict=True))
            ],
            parameters,
            opens=opens,
        )
        for side in Side
    }
    halves = correlations_from("dealer", bytes(32))([one.lengths for one in operands[Side.A]], _LABEL)
    found = []
    for a, b, (half_a, half_b) in zip(operands[Side.A], operands[Side.B], zip(*halves, strict=True), strict=True):
        masked_a, masked_b = measurement.masked(a, half_a), measurement.masked(b, half_b)
        of_a = measurement.opening_share(Side.A, a, masked_b, half_a, bytes(32), _LABEL, parameters)
        of_b = measurement.opening_share(Side.B, b, masked_a, half_b, bytes(32), _LABEL, parameters)
        passed = sketch.passed_range_check(of_a.range_shares + of_b.range_shares, parameters)
        found.append(Opened(tuple(int(one) for one in of_a.values + of_b.values), passed))
    return found


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


_QUERIES: Final = {
    "query-of-three-digits": Attempt(_three_digits),
    "pair-of-three-digits": Attempt(_pair_of_three_digits),
    "rankings-of-several-studies": Attempt(_several_rankings),
    "ranking-with-a-tiny-penalty": Attempt(
        _tiny_penalty, {"protocol.policy.site_policy.check_penalty_allowed": passes}
    ),
    "ranking-with-a-huge-penalty": Attempt(_huge_penalty, {f"{__name__}.RankingSpec": RankingSpec.model_construct}),
}


# --- exact numbers of patients behind rounded ones --------------------------------------------------------------------
#
# Every opened figure of one site is used together: all other sites of a summary subtract their parts, so what is left
# is one site's vector. They know the layout, that values are whole numbers, the number of rows and the protection.

Vector = NDArray[np.float64]
_TABLES: Final = 100
_MOST_GUESSED: Final = 35
"""A bound for chance: of 100 counts one in five is the rounded one, plus four standard errors."""
_ROUNDED_TO: Final = 5


def panel(layout: Layout, rng: np.random.Generator) -> tuple[Numbers, ...]:
    """Values that a laboratory measured together: whole numbers, missing for the same patients in every column."""
    rows = int(rng.integers(90, 140))
    unmeasured = rng.random(rows) < rng.uniform(0.1, 0.4)
    columns = []
    for _, column in layout.numeric:
        values = np.rint(np.clip(rng.normal(column.middle, column.half / 3, rows), column.low, column.high))
        columns.append(np.where(unmeasured, np.nan, values))
    return tuple(columns)


def likeliest(vector: Signed, layout: Layout, rows: int) -> int:
    """The number of patients with a value that the site's opened vector fits best."""
    # Every column is numeric here, so the vector begins with one line per column.
    heads = vector[: len(layout.columns) * (4 + layout.bins)].reshape(len(layout.columns), 4 + layout.bins)
    count = int(heads[0, 0]) * layout.rounded_to
    candidates = np.arange(max(1, count - layout.rounded_to + 1), min(rows, count + layout.rounded_to - 1) + 1)
    seen = np.log(1 - np.abs(candidates - count) / layout.rounded_to)
    seen += _by_cells(heads, candidates, layout, rows)
    sums = [
        _by_sums(head, column, candidates, count, layout)
        for head, (_, column) in zip(heads, layout.numeric, strict=True)
    ]
    seen += np.sum([seen_here for seen_here, _ in sums], axis=0)
    pairs = vector[heads.size :].reshape(-1, 4)
    for ((first, one), (second, other)), pair in zip(layout.pairs, pairs, strict=True):
        seen += _by_products(pair, (one, other), (sums[first][1], sums[second][1]), candidates, count, layout)
    return int(candidates[np.argmax(seen)])


def _by_cells(heads: Signed, candidates: Signed, layout: Layout, rows: int) -> Vector:
    """Bins that were each rounded by themselves add up to one more rounding of the count; so do missing values."""
    added = heads[:, 4:].sum(axis=1)
    seen = np.zeros(len(candidates))
    if np.array_equal(added, heads[:, 0]):
        return seen
    for head, bins in zip(heads, added, strict=True):
        spread = 4 * np.count_nonzero(head[4:])
        seen -= (int(bins) * layout.rounded_to - candidates) ** 2 / (2 * spread)
    missing = np.abs(int(heads[0, 1]) * layout.rounded_to - (rows - candidates)) / layout.rounded_to
    return seen + np.log(np.maximum(1 - missing, 1e-9))


def _by_sums(head: Signed, column: Numeric, candidates: Signed, count: int, layout: Layout) -> tuple[Vector, Vector]:
    """Measure how well a whole sum, and one of squares of the same parity, fit each count; and that sum."""
    total, squares = float(head[2]) / layout.resolution, float(head[3]) / layout.resolution
    width, of_squares = _width(total, layout.sums_grid, layout), _width(squares, layout.squares_grid, layout)
    scale = count / candidates
    centre = total / scale * column.half + candidates * column.middle
    reach = width / scale * column.half
    wholes = np.ceil(centre - reach)[:, None] + np.arange(np.ceil(2 * reach.max()) + 1)
    fits = np.maximum(0, 1 - np.abs(wholes - centre[:, None]) / reach[:, None])
    moved = candidates[:, None] * column.middle**2 - 2 * column.middle * wholes
    unit = (scale / column.half**2)[:, None]
    fits = fits * _fit(squares, (wholes % 2 + moved) * unit, 2 * unit, of_squares)
    return np.log(fits.sum(axis=1) / reach + 1e-9), np.rint(centre)


def _by_products(
    pair: Signed,
    columns: tuple[Numeric, Numeric],
    sums: tuple[Vector, Vector],
    candidates: Signed,
    count: int,
    layout: Layout,
) -> Vector:
    """Measure how well a whole sum of products fits each count, beside the sums that fit it."""
    product, (one, other) = float(pair[3]) / layout.resolution, columns
    unit = count / candidates / (one.half * other.half)
    moved = candidates * one.middle * other.middle - one.middle * sums[1] - other.middle * sums[0]
    return np.log(_fit(product, moved * unit, unit, _width(product, layout.sums_grid, layout)) + 1e-9)


def _width(published: float, grid: float, layout: Layout) -> float:
    """The most that a figure was moved: a step of the grid where it lies on it, else the step of integers."""
    return grid if published % grid == 0 else 1 / layout.resolution


def _fit(published: float, first: Vector, spacing: Vector, width: float) -> Vector:
    """The fit of values at ``first`` and every ``spacing`` from there: how much of them is rounded to ``published``."""
    away = (published - first) % spacing
    most = math.ceil(width / float(spacing.min())) + 1
    steps = np.arange(-most, most + 1) * spacing[..., None]
    seen: Vector = np.maximum(0, 1 - np.abs(away[..., None] + steps) / width).sum(axis=-1) * spacing / width
    return seen


def _read_counts(layout: Layout, _: Path) -> Found:
    """A hundred tables, each protected under a key of its own; the figure is of how many the count is read."""
    rng, read, guessed = np.random.default_rng(11), 0, 0
    for number in range(_TABLES):
        columns = panel(layout, rng)
        protection = Protection(derive(bytes(32), f"table {number}"), 10, _ROUNDED_TO)
        shared = shared_vector(layout, columns, protection)
        exact = int(np.count_nonzero(~np.isnan(columns[0])))
        read += likeliest(shared, layout, len(columns[0])) == exact
        guessed += int(shared[0]) * _ROUNDED_TO == exact
    return Found(read > _MOST_GUESSED, read, f"the rounded count itself is right {guessed} times")


def _columns(number: int) -> tuple[Numeric, ...]:
    return tuple(Numeric(f"x{place}", 0.0, 20.0) for place in range(number))


_COUNTS: Final = {
    "summary-exact-count-from-means": Attempt(
        partial(_read_counts, Layout(_columns(3), most_rows=200, second_moments=True)),
        {"protocol.summary.protection.Protection.total": lambda protection, value, rows, grid: value},
    ),
    "summary-exact-count-from-cells": Attempt(
        partial(_read_counts, Layout(_columns(20), bins=2, most_rows=200)),
        {
            "protocol.summary.protection.Protection.parts": lambda protection, cells, most: [
                protection.count(one) for one in cells
            ]
        },
    ),
}
ATTEMPTS: Final = {**_QUERIES, **_COUNTS}
