"""Exact numbers of patients behind rounded ones: every opened figure of one site is used together.

All other sites of a summary subtract their parts, so what is left is one site's vector. They know the table's layout,
that its values are whole numbers, the site's number of rows (its samples) and how it protects what it shares. Of the
counts that fit the rounded one they take the likeliest by all sums, squares, products, bins and missing values.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.adversaries.attack import Attempt, Found
from protocol.arithmetic.ring import Signed, derive
from protocol.summary.layout import Layout, Numeric
from protocol.summary.protection import Numbers, Protection, Rows, shared_vector

Vector = NDArray[np.float64]
_TABLES: Final = 100
_MOST_GUESSED: Final = 35
"""Of 100 counts one in five is the rounded one; four standard errors more are not chance."""
_ROUNDED_TO: Final = 5


def _exactly(protection: Protection, value: float, rows: Rows, grid: float) -> float:
    """Takes the place of ``Protection.total``."""
    return value


def _each_by_itself(protection: Protection, cells: object, most: int) -> list[int]:
    """Takes the place of ``Protection.parts``."""
    return [protection.count(rows) for rows in cells]  # type: ignore[attr-defined]


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


def _read(layout: Layout, _: Path) -> Found:
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


ATTEMPTS: Final = {
    "summary-exact-count-from-means": Attempt(
        partial(_read, Layout(_columns(3), most_rows=200, second_moments=True)),
        {"protocol.summary.protection.Protection.total": _exactly},
    ),
    "summary-exact-count-from-cells": Attempt(
        partial(_read, Layout(_columns(20), bins=2, most_rows=200)),
        {"protocol.summary.protection.Protection.parts": _each_by_itself},
    ),
}
