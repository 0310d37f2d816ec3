"""Protection of a site's table before it is shared, and its one answer to each question (docs/protocol.md 17).

A column with too few values is replaced by zeros, every count and every sum is rounded up or down to a multiple by a
keyed hash of its rows, and rare categories are counted together. This is not differential privacy: who knows all rows
but one learns something about it.

Source: rounding by a key of the cell's records, so that the same records are rounded the same however they are asked
        for: Fraser & Wooton 2005, the Australian Bureau of Statistics' cell keys. Cells that are each rounded by
        themselves average out over many tables of the same rows: Asghar & Kaafar 2020, PoPETs

The same question about the same values has the same answer, since what is rounded is rounded by a key. The difference
of two answers, to other ranges, bins, categories or rows, counts the patients between them exactly.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Signed
from protocol.errors import UnusableUpdate
from protocol.parameters import Record
from protocol.summary.layout import Categories, Layout, Numeric, largest_share
from protocol.text import comparable

Rows: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
MISSING_CODE = -1
METHOD: Final = "counts of a column add up, sums are rounded as counts"
"""Part of every question: an answer that an older release protected otherwise is another answer."""
_SAME_SUM: Final = 2**20
"""Two sums nearer than its inverse are one sum, in whatever order their values were added."""


@dataclass(frozen=True)
class Protection:
    """A site's protection of its table; ``key`` is its own secret, the same for ever.

    ``least_examples``: fewer values than that are shared of no column and no category.
    """

    key: bytes = field(repr=False)
    least_examples: int
    rounded_to: int

    def enough(self, rows: Rows) -> bool:
        return int(np.count_nonzero(rows)) >= self.least_examples

    def count(self, rows: Rows) -> int:
        """Round a count of rows to a multiple: up in as many cases as makes it right on average.

        The same rows give the same answer, whatever they are counted for.
        """
        count = int(np.count_nonzero(rows))
        drawn = int.from_bytes(hmac.digest(self.key, _name(rows), hashlib.sha256)) % self.rounded_to
        return (count // self.rounded_to + (drawn < count % self.rounded_to)) * self.rounded_to

    def parts(self, cells: Iterable[Rows], most: int) -> list[int]:
        """Count the rows in each of several disjoint cells; together as many as in all of them, at most ``most``.

        Counted are the first cell, the first two, and so on. Were each cell rounded by itself, every column's cells
        would add up to another rounding of the same number of rows, and the average of many is that number.
        """
        found: list[int] = []
        below, reached = np.zeros(1, dtype=np.bool_), 0
        for rows in cells:
            below = below | rows
            found.append(max(min(self.count(below), most) - reached, 0))
            reached += found[-1]
        return found

    def total(self, value: float, rows: Rows, grid: float) -> float:
        """A sum over these rows, rounded to a multiple of ``grid`` as a count is.

        The same rows with the same sum give the same answer. No count's name ends in a zero byte: its hash is another.
        """
        name = _name(rows) + b" %d\0" % round(value * _SAME_SUM)
        drawn = int.from_bytes(hmac.digest(self.key, name, hashlib.sha256)) / 2**256
        steps = value / grid
        return (math.floor(steps) + (drawn < steps % 1)) * grid


def _name(rows: Rows) -> bytes:
    return np.packbits(rows).tobytes().rstrip(b"\0")


def shared_vector(layout: Layout, columns: Sequence[Numbers | Codes], protection: Protection) -> Signed:
    """A site's table as it shares it, with every protection applied.

    Shapes:   for each column of the layout float64[n], NaN where missing, or int64[n], the category's place, -1 where
              missing -> int64[layout.length]
    Reveals:  nothing by itself; its sum over the sites is opened to all of them
    Raises:   UnusableUpdate, when the columns are not the layout's, or have too many rows
    """
    _require_table(layout, columns)
    parts: list[Sequence[int]] = []
    for column, values in zip(layout.columns, columns, strict=True):
        if isinstance(column, Numeric):
            parts.append(_numeric(column, values, layout, protection))
        else:
            parts.append(_categories(column, values.astype(np.int64), layout, protection))
    if layout.pairs:
        parts += _all_products(layout, columns, protection)
    shared = np.array([entry for part in parts for entry in part], dtype=np.int64)
    found, allowed = int(np.abs(shared).sum()), largest_share()
    if found > allowed:
        raise UnusableUpdate(f"this site's summary adds up to {found}, at most {allowed} fits: raise most_rows")
    return shared


def _require_table(layout: Layout, columns: Sequence[Numbers | Codes]) -> None:
    rows = {values.shape for values in columns}
    if len(columns) != len(layout.columns) or len(rows) > 1:
        raise UnusableUpdate(f"a summary of {len(layout.columns)} columns takes one value per row of each of them")
    if any(shape[0] > layout.most_rows for shape in rows):
        raise UnusableUpdate(
            f"this site has more than {layout.most_rows} rows, the study's most_rows: ask for a study with a larger one"
        )
    for column, values in zip(layout.columns, columns, strict=True):
        if isinstance(column, Numeric) and np.isinf(values).any():
            raise UnusableUpdate(f"column {column.name!r} holds an infinite value")
        if isinstance(column, Categories) and not _in_names(values, column):
            raise UnusableUpdate(f"column {column.name!r} holds a category that is not declared")


def _in_names(codes: Numbers | Codes, column: Categories) -> bool:
    return bool(np.all((codes >= MISSING_CODE) & (codes < len(column.names)) & (codes == np.rint(codes))))


def _units(column: Numeric, values: Numbers | Codes) -> Numbers:
    """u in -1..1, exactly that at and beyond the range's ends; NaN where missing."""
    units: Numbers = np.clip((values - column.middle) / column.half, -1.0, 1.0)
    units[values <= column.low], units[values >= column.high] = -1.0, 1.0
    return units


def _numeric(column: Numeric, values: Numbers | Codes, layout: Layout, protection: Protection) -> list[int]:
    units = _units(column, values)
    present = ~np.isnan(units)
    if not protection.enough(present):
        return [0] * (4 + layout.bins)
    places = _bins(units, layout.bins)
    if not _spread(units[present], protection):
        return _few_values(units, places, layout, protection)
    count, missing = protection.parts([present, ~present], _all_rows(units, protection))
    mean, square = float(np.mean(units[present])), float(np.mean(np.square(units[present])))
    sums = [
        protection.total(count * mean, present, layout.sums_grid),
        protection.total(count * square, present, layout.squares_grid),
    ]
    bins = protection.parts((places == place for place in range(layout.bins)), count)
    return _entries(count, missing, sums, bins, layout)


def _few_values(units: Numbers, places: Codes, layout: Layout, protection: Protection) -> list[int]:
    """Each value's count is protected as a category's is; count, sums and bins are made of these counts alone."""
    common = [value for value in np.unique(units[~np.isnan(units)]) if protection.enough(units == value)]
    cells = [*(units == value for value in common), np.isnan(units)]
    *counts, missing = protection.parts(cells, _all_rows(units, protection))
    bins, sums = [0] * layout.bins, [0.0, 0.0]
    for value, count in zip(common, counts, strict=True):
        bins[int(places[units == value][0])] += count
        sums = [sums[0] + count * float(value), sums[1] + count * float(value) ** 2]
    return _entries(sum(counts), missing, sums, bins, layout)


def _entries(count: int, missing: int, sums: Sequence[float], bins: Sequence[int], layout: Layout) -> list[int]:
    rounded = (round(layout.resolution * value) for value in sums)
    return [*_in_units([count, missing], layout), *rounded, *_in_units(bins, layout)]


def _all_rows(column: Rows | Numbers | Codes, protection: Protection) -> int:
    """The rounded number of rows, the same for all columns: the most that a column's parts add up to."""
    return protection.count(np.ones(len(column), dtype=np.bool_))


def _spread(units: Numbers, protection: Protection) -> bool:
    """Return whether enough different values lie strictly inside the range.

    Else a sum is nearly a count: of ones, or of those beyond a range that somebody chose to single one patient out.
    """
    inside = units[(units > -1) & (units < 1)]
    return len(np.unique(inside)) >= protection.least_examples


def _bins(units: Numbers, bins: int) -> Codes:
    """The bin of every value, -1 where it is missing."""
    filled = np.where(np.isnan(units), -1.0, units)
    places = np.minimum(np.floor((filled + 1) / 2 * bins), bins - 1).astype(np.int64)
    return np.where(np.isnan(units), -1, places)


def _categories(column: Categories, codes: Codes, layout: Layout, protection: Protection) -> list[int]:
    if not protection.enough(codes >= 0):
        return [0] * (2 + len(column.names))
    nobody = np.zeros(len(codes), dtype=np.bool_)
    rest, cells = nobody.copy(), []
    for place, name in enumerate(column.names):
        rows = codes == place
        rare = name == column.other or not protection.enough(rows)
        rest |= rows & rare
        cells.append(nobody if rare else rows)
    cells += [rest if protection.enough(rest) else nobody, codes < 0]
    *counts, missing = protection.parts(cells, _all_rows(codes, protection))
    return _in_units([missing, *counts], layout)


def _all_products(layout: Layout, columns: Sequence[Numbers | Codes], protection: Protection) -> list[list[int]]:
    """Every pair's entries, all over the same rows: those that have all the numbers whose products are summed.

    A column that is summed over a few rows more than its products are would give those rows' values by difference; so
    would two pairs with a common column. Pairs with such a column are zeros.
    """
    units = {at: _units(column, columns[at]) for at, column in layout.numeric}
    summed = [at for at, values in units.items() if _spread(values, protection)]
    complete = np.all([~np.isnan(units[at]) for at in summed], axis=0)
    lost = {at: np.count_nonzero(~np.isnan(units[at]) & ~complete) for at in summed}
    shared = {at for at in summed if lost[at] == 0 or lost[at] >= protection.least_examples}
    return [
        _products(units[one], units[other], complete, layout, protection) if {one, other} <= shared else [0] * 4
        for (one, _), (other, _) in layout.pairs
    ]


def _products(one: Numbers, other: Numbers, complete: Rows, layout: Layout, protection: Protection) -> list[int]:
    """A pair's entries over its rows; zeros where either column says little more than a category does."""
    first, second = one[complete], other[complete]
    if not (_spread(first, protection) and _spread(second, protection)):
        return [0] * 4
    count = min(protection.count(complete), _all_rows(complete, protection))
    means = (float(np.mean(values)) for values in (first, second, first * second))
    sums = (protection.total(count * mean, complete, layout.sums_grid) for mean in means)
    return [*_in_units([count], layout), *(round(layout.resolution * value) for value in sums)]


def _in_units(counts: Sequence[int], layout: Layout) -> list[int]:
    return [count // layout.rounded_to for count in counts]


FIRST_LINE: Final = "first line"
PLACES: Final = "places"
_TELLING: Final = 10
"""Columns of fewer different values are often the same by chance; no sum of theirs is more than protected counts."""


_UNIT: Final = re.compile(r"\s*[\[(][^\[\]()]*[\])]$")
_PLACE: Final = re.compile(r"column \d+")
_CLASSES_OF: Final = "classes of "
_COUNTED: Final = ("class counts",)


@dataclass(frozen=True)
class OwnColumn:
    """A column as the site's own table has it. ``named_in``: what gave the name, so that names can be compared.

    ``first line`` (of a CSV file, or a Parquet file's columns), ``places`` of a file without one, ``query DIGEST``,
    whose names are the requester's; empty where only the study's name is known.
    """

    name: str
    named_in: str


class Question(Record):
    """One column: as the site's own file calls it, and as the study does; stays at the site.

    ``named_in`` as of an :class:`OwnColumn`; empty also in what an older release wrote down, and without a schema.

    ``asked`` is all that the answer depends on beside the values, a line each. ``values`` is a keyed digest of the
    values, row by row; ``order`` one of their order, the same for a copy in another unit, empty where it tells little.
    """

    column: str
    named: str
    asked: tuple[str, ...]
    values: str
    order: str = ""
    named_in: str = ""

    @property
    def answer(self) -> tuple[tuple[str, ...], str]:
        """The arguments that the answer is a function of."""
        return self.asked, self.values

    def about_the_same(self, other: Question) -> bool:
        """One column, or a copy of it under another name, or one that may be it for all that is known."""
        if self.order != "" and self.order == other.order:
            return True
        if (self.asked == _COUNTED) is not (other.asked == _COUNTED):
            return False
        if self.named_in == other.named_in != "":
            return comparable(self.column) == comparable(other.column)
        return self._may_be(other)

    def _may_be(self, other: Question) -> bool:
        """Compare names that different releases gave: an older one wrote down the study's name or place, with and
        without the unit of the first line.
        """
        if not {self.named_in, other.named_in} <= {"", FIRST_LINE}:
            return True
        names = [_UNIT.sub("", comparable(one.column.removeprefix(_CLASSES_OF))) for one in (self, other)]
        return names[0] == names[1] or any(
            one.named_in == "" and (not name or _PLACE.fullmatch(name) is not None)
            for one, name in zip((self, other), names, strict=True)
        )


def summary_questions(
    layout: Layout, own: Sequence[OwnColumn], columns: Sequence[Numbers | Codes], protection: Protection
) -> tuple[Question, ...]:
    """A question per column; ``own`` are the columns in the site's file, in the layout's order."""
    common = (f"rounded_to = {protection.rounded_to}", f"least_examples = {protection.least_examples}", METHOD)
    found = []
    for column, of_site, values in zip(layout.columns, own, columns, strict=True):
        order = ""
        asked: tuple[str, ...]
        if isinstance(column, Numeric):
            others = sorted(own[at].name for at, other in layout.numeric if other is not column)
            asked = (
                f"range = [{column.low!r}, {column.high!r}]",
                f"bins = {layout.bins}",
                f"sums in units of 1/{layout.resolution:g}",
                f"second moments with {others if layout.second_moments else []}",
                *common,
            )
            order = _order(values, protection.key)
        else:
            asked = (f"categories = {list(column.names)}", f"other = {column.other!r}", *common)
        digest = _keyed(protection.key, np.asarray(values, dtype="<f8"))
        found.append(
            Question(
                column=of_site.name,
                named=column.name,
                asked=asked,
                values=digest,
                order=order,
                named_in=of_site.named_in,
            )
        )
    return tuple(found)


def counts_question(column: OwnColumn, named: str, counts: Sequence[int], key: bytes) -> Question:
    """Class counts are their own answer: other numbers answer another question, but for empty classes at the end."""
    digest = _keyed(key, np.trim_zeros(np.asarray(counts, dtype="<i8"), "b"))
    called = f"{_CLASSES_OF}{column.name}"
    return Question(column=called, named=named, asked=_COUNTED, values=digest, named_in=column.named_in)


def _order(values: Numbers | Codes, key: bytes) -> str:
    """The values' ranks, or from the other end where that sorts first: no unit changes them."""
    missing = np.isnan(values)
    different, ranks = np.unique(values[~missing], return_inverse=True)
    if len(different) < _TELLING:
        return ""
    placed = np.full(len(values), -1, dtype="<i8")
    placed[~missing] = ranks
    turned = np.where(missing, -1, len(different) - 1 - placed).astype("<i8")
    return _keyed(key, min(placed, turned, key=lambda one: one.tobytes()))


def _keyed(key: bytes, numbers: np.ndarray) -> str:
    return hmac.digest(key, b"question" + numbers.tobytes(), hashlib.sha256).hex()
