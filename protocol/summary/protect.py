"""What a site shares of its table: protected before it is shared, since what is opened is opened (docs/protocol.md 17).

A column with too few values is replaced by zeros, every count is rounded up or down to a multiple by a keyed hash of
the rows that it counts, and rare categories are counted together. This is not differential privacy: who knows all
rows but one learns something about it.

Source: rounding by a key of the cell's records, so that the same records are rounded the same however they are asked
        for: Fraser & Wooton 2005, the Australian Bureau of Statistics' cell keys
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Signed
from protocol.errors import UnusableUpdate
from protocol.summary.layout import Categories, Layout, Numeric, largest_share

Rows: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
MISSING_CODE = -1


@dataclass(frozen=True)
class Protection:
    """How a site protects its table; ``key`` is its own secret, the same for ever.

    ``least_examples``: fewer values than that are shared of no column and no category.
    """

    key: bytes = field(repr=False)
    least_examples: int
    rounded_to: int

    def count(self, rows: Rows) -> int:
        """How many rows, rounded to a multiple: up in as many cases as makes it right on average.

        The same rows give the same answer, whatever they are counted for.
        """
        count = int(np.count_nonzero(rows))
        name = np.packbits(rows).tobytes().rstrip(b"\0")
        drawn = int.from_bytes(hmac.digest(self.key, name, hashlib.sha256)) % self.rounded_to
        return (count // self.rounded_to + (drawn < count % self.rounded_to)) * self.rounded_to

    def common(self, rows: Rows) -> int:
        """As ``count``, and 0 for too few rows."""
        return self.count(rows) if np.count_nonzero(rows) >= self.least_examples else 0


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
    if np.count_nonzero(present) < protection.least_examples:
        return [0] * (4 + layout.bins)
    places = _bins(units, layout.bins)
    if _spread(units[present], protection):
        count, kept = protection.count(present), units[present]
        sums = [count * float(np.mean(kept)), count * float(np.mean(np.square(kept)))]
        bins = [protection.count(places == place) for place in range(layout.bins)]
    else:
        count, sums, bins = _few_values(units, places, layout, protection)
    counts = _in_units([count, protection.count(~present)], layout)
    return [*counts, *(round(layout.resolution * value) for value in sums), *_in_units(bins, layout)]


def _few_values(
    units: Numbers, places: Codes, layout: Layout, protection: Protection
) -> tuple[int, list[float], list[int]]:
    """Count, sums and bins of a column of few values: each value's count is protected as a category's is."""
    bins, sums = [0] * layout.bins, [0.0, 0.0]
    for value in np.unique(units[~np.isnan(units)]):
        rows = units == value
        count = protection.common(rows)
        bins[int(places[rows][0])] += count
        sums = [sums[0] + count * float(value), sums[1] + count * float(value) ** 2]
    return sum(bins), sums, bins


def _spread(units: Numbers, protection: Protection) -> bool:
    """Whether enough different values lie strictly inside the range.

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
    if np.count_nonzero(codes >= 0) < protection.least_examples:
        return [0] * (2 + len(column.names))
    of_each = [codes == place for place in range(len(column.names))]
    rest = np.zeros(len(codes), dtype=np.bool_)
    counts = []
    for name, rows in zip(column.names, of_each, strict=True):
        rare = name == column.other or np.count_nonzero(rows) < protection.least_examples
        rest |= rows & rare
        counts.append(0 if rare else protection.count(rows))
    return _in_units([protection.count(codes < 0), *counts, protection.common(rest)], layout)


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
        _products(units[one][complete], units[other][complete], protection.count(complete), layout, protection)
        if {one, other} <= shared
        else [0] * 4
        for (one, _), (other, _) in layout.pairs
    ]


def _products(one: Numbers, other: Numbers, count: int, layout: Layout, protection: Protection) -> list[int]:
    """A pair's entries over its rows; zeros where either column says little more than a category does."""
    if not (_spread(one, protection) and _spread(other, protection)):
        return [0] * 4
    means = (float(np.mean(values)) for values in (one, other, one * other))
    return [*_in_units([count], layout), *(round(layout.resolution * count * mean) for mean in means)]


def _in_units(counts: Sequence[int], layout: Layout) -> list[int]:
    return [count // layout.rounded_to for count in counts]
