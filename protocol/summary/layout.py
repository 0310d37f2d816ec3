"""Layout and units of a summary's vector (docs/protocol.md 17).

    numeric column    values, missing, sum, sum of squares, then a histogram's bins
    categories        missing, one count a category, then the count of all others
    pair of numbers   values, sum of the first, sum of the second, sum of products         (second moments only)

Counts are in units of ``rounded_to``. A value of a numeric column is u = (x - middle) / half the width of its range,
clipped to -1..1; sums are in units of 1 / ``resolution``, each of a site's a multiple of its grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Final, TypeAlias

from protocol.parameters import MAX_ENCODED_NORM_LOG2, StudyParameters

MOST_BINS: Final = 20
MOST_COLUMNS: Final = 500
MOST_ENTRIES: Final = 2**17
_LARGEST_SUM: Final = 4 * 2**MAX_ENCODED_NORM_LOG2 - 1
"""A site's absolute entries add up to less than 4 E: then no projection of the range check is out of range."""
_FINEST_LOG2: Final = 10
_COARSEST_LOG2: Final = -10
_NUMERIC_HEAD: Final = 4
_PAIR: Final = 4


@dataclass(frozen=True)
class Numeric:
    """A column of numbers with the range that values are clipped to. Raises: ValueError for no range"""

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ValueError(
                f"column {self.name!r}: a summary clips to a range of some width, found {self.low:g} to {self.high:g}; "
                "declare the smallest and the largest value that can be right"
            )

    @property
    def middle(self) -> float:
        return self.low + self.half

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Categories:
    """A column of names; ``other`` is the declared one that rare ones are counted with, None for one of their own."""

    name: str
    names: tuple[str, ...]
    other: str | None = None


Column: TypeAlias = Numeric | Categories


@dataclass(frozen=True)
class Layout:
    """The entries that all sites of a study share, in order.

    ``most_rows`` is the largest table that a site may have; the more rows and columns, the coarser the sums.
    Raises: ValueError where the entries of such a table could be too large, or there are too many of them
    """

    columns: tuple[Column, ...]
    bins: int = MOST_BINS
    rounded_to: int = 5
    most_rows: int = 10_000
    second_moments: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= MOST_COLUMNS:
            raise ValueError(f"a summary has 1 to {MOST_COLUMNS} columns, found {len(self.columns)}")
        if len({column.name for column in self.columns}) != len(self.columns):
            raise ValueError("a summary counts every column once; two have one name")
        if self.length > MOST_ENTRIES:
            raise ValueError(
                f"these columns take {self.length} numbers, a summary has at most {MOST_ENTRIES}: take fewer columns, "
                "categories or bins, or leave second_moments out"
            )
        if self._resolution_log2 < _COARSEST_LOG2:
            raise ValueError(
                f"{len(self.columns)} columns of {self.most_rows} rows add up to more than a summary holds: take a "
                "smaller most_rows, fewer columns, or a larger rounded_to"
            )

    @property
    def numeric(self) -> tuple[tuple[int, Numeric], ...]:
        """The numeric columns with their places."""
        return tuple((at, column) for at, column in enumerate(self.columns) if isinstance(column, Numeric))

    @property
    def pairs(self) -> tuple[tuple[tuple[int, Numeric], tuple[int, Numeric]], ...]:
        """Both columns, with their places, of every pair whose products are summed."""
        return tuple(combinations(self.numeric, 2)) if self.second_moments else ()

    def sizes(self) -> Iterator[int]:
        """The number of entries of each column, then of each pair."""
        for column in self.columns:
            yield _NUMERIC_HEAD + self.bins if isinstance(column, Numeric) else 2 + len(column.names)
        yield from (_PAIR for _ in self.pairs)

    @cached_property
    def length(self) -> int:
        return sum(self.sizes())

    @property
    def resolution(self) -> float:
        """A power of two: sums of u are rounded to multiples of 1 / resolution, once per site."""
        return math.ldexp(1.0, self._resolution_log2)

    @property
    def sums_grid(self) -> float:
        """The grid of a site's sum of numbers within -1..1: at least 2.5, above their distance of 2.

        So no patient's value moves a sum past a whole step, and what values a column can have (whole numbers, two
        clusters) leaves the same number of sums open for every count that is possible. ``rounded_to`` is a multiple
        of it: no sum is rounded beyond its number of values.
        """
        return self.rounded_to / 2

    @property
    def squares_grid(self) -> float:
        """The same for squares, which lie within 0..1."""
        return self.rounded_to / 4

    @cached_property
    def _resolution_log2(self) -> int:
        """The finest one at which nothing that ``most_rows`` rows can share is out of range."""
        rows = self.most_rows + self.rounded_to
        sums = 2 * len(self.numeric) + 3 * len(self.pairs)
        counted = (2 * len(self.columns) + len(self.pairs)) * rows / self.rounded_to + 2 * self.length
        left = _LARGEST_SUM - counted
        if sums == 0 and left >= 0:
            return 0
        return min(_FINEST_LOG2, math.floor(math.log2(left / (sums * rows)))) if left > 0 else _COARSEST_LOG2 - 1


def summary_parameters(length: int, *, least_contributors: int, assumed_colluders: int) -> StudyParameters:
    """The numbers of a summary's round: integers without fraction bits, as large as the range check lets them be."""
    return StudyParameters(
        dimension=length,
        clip_norm=1.0,
        weight_grid=1,
        least_contributors=least_contributors,
        assumed_colluders=assumed_colluders,
    )


def largest_share() -> int:
    return _LARGEST_SUM
