"""Isolation: how well every update hides in the sums that were opened (docs/protocol.md 13).

A sum of updates is one linear equation: row r of the weights R says y_r = sum_s R_rs u_rs + noise. Who knows sums and
weights takes the best linear estimate of u_ts, site s's update in row t. Under the prior that every site's updates
move as this site's own do, G_rr' = <u_r, u_r'>, and point elsewhere, its squared relative error is

    isolation_ts^2 = 1 - b' M^-1 b / G_tt          M = (R R') o G + diag(noise),   b_r = R_rs G_rt

1 means that the sums say nothing about the update, 0 that they say all. Estimates of older updates sharpen with every
new sum, and so do those of sites that a new list leaves out: all are looked at, not only the newest of one site.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolViolation

Figures: TypeAlias = NDArray[np.float64]
_RIDGE: Final = 1e-12
"""Part of a sum's square added as noise to each: 1e-6 of its length, as accurate as sums in fixed point are."""
MOST_COALITIONS: Final = 1000
"""Sets of colluders that are tried; where there are more, nothing counts as isolated."""


@dataclass(frozen=True)
class Isolation:
    """Figures for several candidate lists: of the newest updates, and the least over those of all rows.

    Shapes:   both float64[lists, sites]; 1 where a site is in no sum
    """

    newest: Figures
    least: Figures


class SeenSums:
    """Sums that were opened, factored once; each further list then costs one row.

    Shapes:   weights float64[n, sites], gram float64[n, n], noise float64[n]: the squared length of each sum's noise
    Why:      ``colluders`` of the other sites tell their updates: for every site, the worst such set's columns go
    Raises:   ProtocolViolation when the shapes do not fit
    """

    def __init__(self, weights: Figures, gram: Figures, noise: Figures, *, colluders: int = 0) -> None:
        rows, sites = weights.shape
        if gram.shape != (rows, rows) or noise.shape != (rows,):
            raise ProtocolViolation(
                f"{rows} rows of weights need as many of the updates' products, found {gram.shape}, {noise.shape}"
            )
        told = max(0, min(colluders, sites - 1))
        self._shape = (rows, sites)
        self._seen: list[_WithoutColluders] = []
        if comb(sites, told) <= MOST_COALITIONS and _finite(weights, gram, noise):
            coalitions = combinations(range(sites), told)
            with suppress(np.linalg.LinAlgError):  # no covariance: nothing is known, so nothing is isolated
                self._seen = [_WithoutColluders(weights, gram, noise, coalition) for coalition in coalitions]

    def figures(self) -> Figures:
        """Each site's isolation in each row, with all rows seen.

        Shapes:   -> float64[n, sites]; 1 where a site is not in the row's sum
        """
        return _worst([seen.figures() for seen in self._seen], self._shape)

    def after(self, lists: Figures, products: Figures, square: float, noise: float) -> Isolation:
        """Every site's isolation once a sum with the weights of one of ``lists`` is opened too.

        Shapes:   lists float64[lists, sites]; products float64[n]: of the newest update with those before;
                  ``square`` of the newest update with itself
        """
        usable = square > 0 and _finite(lists, products, np.array([square, noise]))
        both = [seen.after(lists, products, square, noise) for seen in self._seen] if usable else []
        return Isolation(
            newest=_worst([newest for newest, _ in both], lists.shape),
            least=_worst([least for _, least in both], lists.shape),
        )


class _WithoutColluders:
    """The sums with the columns of one coalition taken out; its own updates are nobody's secret."""

    def __init__(self, weights: Figures, gram: Figures, noise: Figures, coalition: tuple[int, ...]) -> None:
        self._coalition = list(coalition)
        self._weights = self._cut(weights)
        self._gram = gram
        own = np.diag(gram)
        self._length = _lengths(np.sum(self._weights**2, axis=1) * own + noise)
        scaled = (self._weights @ self._weights.T) * gram / np.outer(self._length, self._length)
        np.fill_diagonal(scaled, 1 + _RIDGE)
        self._solve = _inverse_factor(scaled)
        self._rows, self._columns = np.nonzero((self._weights != 0) & (own > 0)[:, None])
        aims = self._weights[:, self._columns] * gram[:, self._rows] / self._length[:, None]
        self._aims = self._solve @ aims
        self._squares = own[self._rows]
        self._explained = np.sum(self._aims**2, axis=0)

    def figures(self) -> Figures:
        table = np.ones(self._weights.shape)
        table[self._rows, self._columns] = _isolation(self._explained / self._squares)
        return table

    def after(self, lists: Figures, products: Figures, square: float, noise: float) -> tuple[Figures, Figures]:
        lists = self._cut(lists)
        length = _lengths(np.sum(lists**2, axis=1) * square + noise)
        met = (self._weights @ lists.T) * products[:, None] / np.outer(self._length, length)
        seen = self._solve @ met
        rest = np.maximum(1 + _RIDGE - np.sum(seen**2, axis=0), _RIDGE)
        newest = self._newest(lists, products, square, length, seen, rest)
        fresh = lists[:, self._columns] * products[self._rows] / length[:, None]
        explained = self._explained + (fresh - seen.T @ self._aims) ** 2 / rest[:, None]
        older = _isolation(explained / self._squares)
        least = newest.copy()
        np.minimum.at(least.T, self._columns, older.T)
        return newest, least

    def _newest(
        self, lists: Figures, products: Figures, square: float, length: Figures, seen: Figures, rest: Figures
    ) -> Figures:
        aims = self._solve @ (self._weights * products[:, None] / self._length[:, None])
        fresh = lists * square / length[:, None]
        explained = np.sum(aims**2, axis=0) + (fresh - seen.T @ aims) ** 2 / rest[:, None]
        return np.where(lists != 0, _isolation(explained / square), 1.0)

    def _cut(self, weights: Figures) -> Figures:
        cut = np.array(weights, dtype=np.float64)
        cut[:, self._coalition] = 0
        return cut


def _inverse_factor(scaled: Figures) -> Figures:
    """L^-1 of M = L L', for a matrix with a diagonal of ones and a little more."""
    return np.linalg.inv(np.linalg.cholesky(scaled)) if len(scaled) else scaled


def _worst(figures: Sequence[Figures], shape: tuple[int, ...]) -> Figures:
    return np.minimum.reduce(figures) if figures else np.zeros(shape)


def _lengths(squares: Figures) -> Figures:
    """1 for a sum of nothing, which explains nothing."""
    return np.where(squares > 0, np.sqrt(np.maximum(squares, 0)), 1.0)


def _isolation(explained: Figures) -> Figures:
    """Turn the explained part of a square into the relative error. NaN counts as wholly explained."""
    return np.sqrt(np.minimum(np.fmax(1 - explained, 0.0), 1.0))


def _finite(*arrays: Figures) -> bool:
    return all(bool(np.all(np.isfinite(array))) for array in arrays)
