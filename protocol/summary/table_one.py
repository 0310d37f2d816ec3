"""Table one and a common scaling, read from the sum of all sites' summaries (docs/protocol.md 17).

Everything here follows from the opened sum, which all sites of the round have. Counts are right to a few multiples of
the study's ``rounded_to`` a site; quantiles lie within one bin of the histogram. Sites round their sums too: a figure's
``within`` says by how much that moves it at most. Sites weigh in it by their rounded counts.

A common scaling is a file that data are prepared with, one mean and SD per column for all sites:

    {"scaling": {"study": "...", "round": 1, "columns": [{"name": "age", "mean": 61.2, "sd": 11.4}]}, "digest": "..."}

The digest is the SHA-256 of the canonical content, so that two sites can tell that they scaled alike.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.arithmetic.ring import Signed
from protocol.errors import AggregateOutOfBounds, ConfigurationError, ProtocolViolation
from protocol.summary.layout import Categories, Layout, Numeric

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quantile(_Frozen):
    """Approximate: straight lines through the histogram."""

    at: float
    value: float


class NumericSummary(_Frozen):
    """One numeric column over all sites; figures are None where no site had values enough.

    ``low`` and ``high`` are the declared range that values are clipped to; ``histogram`` counts equal parts of it.
    ``mean_within`` and ``sd_within`` are None in tables of an older release, whose sums were exact.
    """

    name: str
    low: float
    high: float
    values: Annotated[int, Field(ge=0)]
    missing: Annotated[int, Field(ge=0)]
    mean: float | None
    sd: float | None
    mean_within: float | None = None
    sd_within: float | None = None
    quantiles: tuple[Quantile, ...]
    histogram: tuple[int, ...]


class CategoryCount(_Frozen):
    """``name`` is None for all rare categories together."""

    name: str | None
    count: Annotated[int, Field(ge=0)]


class CategorySummary(_Frozen):
    """One column of categories over all sites; rare ones are counted as others, site by site."""

    name: str
    values: Annotated[int, Field(ge=0)]
    missing: Annotated[int, Field(ge=0)]
    counts: tuple[CategoryCount, ...]


class Covariance(_Frozen):
    """The covariance of two numeric columns, over the rows that have both at sites where both take many values."""

    first: str
    second: str
    values: int
    covariance: float
    within: float | None = None


class TableOne(_Frozen):
    """All that a summary opens, in the schema's order."""

    numeric: tuple[NumericSummary, ...]
    categories: tuple[CategorySummary, ...]
    covariances: tuple[Covariance, ...] = ()


def table_one(total: Signed, layout: Layout, sites: int) -> TableOne:
    """The sum of ``sites`` vectors as a table.

    Shapes:   int64[layout.length], plain integers
    Raises:   AggregateOutOfBounds, when no tables of at most ``most_rows`` rows add up to this; ProtocolViolation for
              another length
    """
    if total.shape != (layout.length,):
        raise ProtocolViolation(f"a summary of this study has {layout.length} entries, found shape {total.shape}")
    ends = list(accumulate(layout.sizes()))
    parts = [total[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    numeric: list[NumericSummary] = []
    categories: list[CategorySummary] = []
    for column, part in zip(layout.columns, parts, strict=False):
        if isinstance(column, Numeric):
            numeric.append(_numeric(column, part, layout, sites))
        else:
            categories.append(_categories(column, part, layout, sites))
    pairs = zip(layout.pairs, parts[len(layout.columns) :], strict=True)
    found = (_covariance(one, other, part, layout, sites) for ((_, one), (_, other)), part in pairs)
    return TableOne(
        numeric=tuple(numeric),
        categories=tuple(categories),
        covariances=tuple(one for one in found if one is not None),
    )


def _numeric(column: Numeric, part: Signed, layout: Layout, sites: int) -> NumericSummary:
    counts = _counts([*part[:2], *part[4:]], column.name, layout, sites)
    values, missing, histogram = counts[0], counts[1], counts[2:]
    first, second = _means(column.name, part[2:4], values, layout, sites)
    if second < 0:
        raise _beyond(column.name, "a negative sum of squares")
    mean = sd = mean_within = sd_within = None
    if values:
        mean = column.middle + column.half * first
        unbiased = values / (values - 1) if values > 1 else 1.0
        spread = max(0.0, second - first * first)
        off, of_squares = (_off(grid, values, layout, sites) for grid in (layout.sums_grid, layout.squares_grid))
        more = of_squares + 2 * abs(first) * off + off * off
        sd, least, most = (
            column.half * math.sqrt(max(0.0, one) * unbiased) for one in (spread, spread - more, spread + more)
        )
        mean_within, sd_within = column.half * off, max(sd - least, most - sd)
    return NumericSummary(
        name=column.name,
        low=column.low,
        high=column.high,
        values=values,
        missing=missing,
        mean=mean,
        sd=sd,
        mean_within=mean_within,
        sd_within=sd_within,
        quantiles=_quantiles(column, histogram),
        histogram=tuple(histogram),
    )


def _categories(column: Categories, part: Signed, layout: Layout, sites: int) -> CategorySummary:
    missing, *counts = _counts(part, column.name, layout, sites)
    others = counts.pop()
    found = [
        CategoryCount(name=name, count=count + (others if name == column.other else 0))
        for name, count in zip(column.names, counts, strict=True)
    ]
    if column.other is None:
        found.append(CategoryCount(name=None, count=others))
    return CategorySummary(name=column.name, values=sum(counts) + others, missing=missing, counts=tuple(found))


def _covariance(one: Numeric, other: Numeric, part: Signed, layout: Layout, sites: int) -> Covariance | None:
    """None where no site shared the pair."""
    name = f"{one.name} x {other.name}"
    (values,) = _counts(part[:1], name, layout, sites)
    first, second, product = _means(name, part[1:], values, layout, sites)
    if values < 2:
        return None
    off = _off(layout.sums_grid, values, layout, sites)
    scale = one.half * other.half * values / (values - 1)
    return Covariance(
        first=one.name,
        second=other.name,
        values=values,
        covariance=scale * (product - first * second),
        within=scale * off * (1 + abs(first) + abs(second) + off),
    )


def _off(grid: float, values: int, layout: Layout, sites: int) -> float:
    """The most that a mean is off: each site's sum by a step of the grid, and a half from becoming an integer."""
    return sites * (grid + 0.5 / layout.resolution) / values


def _counts(entries: Sequence[np.int64] | Signed, name: str, layout: Layout, sites: int) -> list[int]:
    most = sites * (layout.most_rows // layout.rounded_to + 1)
    found = [int(entry) for entry in entries]
    if not all(0 <= count <= most for count in found):
        raise _beyond(name, f"counts from {min(found)} to {max(found)} in units of {layout.rounded_to}")
    return [count * layout.rounded_to for count in found]


def _means(name: str, sums: Signed, values: int, layout: Layout, sites: int) -> list[float]:
    """Means of numbers within -1..1, from their sums, each rounded by at most a half per site."""
    most = values * layout.resolution + (sites + 1) / 2
    if any(abs(int(one)) > most for one in sums):
        raise _beyond(name, f"sums {[int(one) for one in sums]} of {values} values")
    return [int(one) / (layout.resolution * values) if values else 0.0 for one in sums]


def _beyond(name: str, found: str) -> AggregateOutOfBounds:
    return AggregateOutOfBounds(
        f"the summary of column {name!r} holds {found}, which no sites' tables add up to: a site or a server broke the "
        "protocol; the summary is discarded"
    )


def _quantiles(column: Numeric, histogram: Sequence[int]) -> tuple[Quantile, ...]:
    """Values below which these parts lie, on straight lines through the cumulated histogram."""
    total = sum(histogram)
    if not total:
        return ()
    edges = np.linspace(column.low, column.high, len(histogram) + 1)
    cumulated = np.array([0, *accumulate(histogram)], dtype=np.float64)
    return tuple(Quantile(at=at, value=float(np.interp(at * total, cumulated, edges))) for at in QUANTILES)


_UNITS: Final = 16
"""A mean that numpy takes of equal numbers is off by up to so many units in the last place."""
Numbers = float | NDArray[np.floating[Any]]


def is_constant(low: Numbers, high: Numbers) -> NDArray[np.bool_]:
    """Tell whether numbers from ``low`` to ``high`` are one but for rounding. Shapes: [...], [...] -> bool[...]"""
    eps = np.finfo(np.result_type(np.asarray(low), np.float32)).eps
    with np.errstate(over="ignore"):
        return np.asarray(np.subtract(high, low) <= _UNITS * eps * np.maximum(np.abs(low), np.abs(high)))


def safe_spread(centre: float, spread: float) -> float:
    """A spread that was computed elsewhere, and 1 where rounding of ``centre`` could have made it."""
    return 1.0 if is_constant(centre - spread, centre + spread) else spread


class ColumnScaling(_Frozen):
    """A value x becomes (x - mean) / sd."""

    name: str
    mean: Annotated[float, Field(allow_inf_nan=False)]
    sd: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CommonScaling(_Frozen):
    """Every numeric column of which the mean is known, in the schema's order; the others stay as they are."""

    study: str
    round: int
    columns: tuple[ColumnScaling, ...]

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of keys in order and numbers in their shortest form."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


class ScalingFile(_Frozen):
    """The contents of the file."""

    scaling: CommonScaling
    digest: str


def scaling_of(table: TableOne, study: str, round_number: int) -> CommonScaling:
    """The pooled mean and SD of every numeric column.

    An SD that the sites' rounding hides is replaced by its upper bound; a column without any spread has SD 1.
    """
    columns = tuple(
        ColumnScaling(name=one.name, mean=one.mean, sd=safe_spread(one.mean, _spread(one) or 1.0))
        for one in table.numeric
        if one.mean is not None
    )
    return CommonScaling(study=study, round=round_number, columns=columns)


def _spread(column: NumericSummary) -> float | None:
    if column.sd is None or column.sd_within is None or not spread_unknown(column):
        return column.sd
    return column.sd + column.sd_within


def spread_unknown(column: NumericSummary) -> bool:
    """Tell whether the sites' rounding may have made half of the SD, or all of it: few values, or too wide a range."""
    return column.sd is not None and column.sd_within is not None and column.sd_within > column.sd


def scaling_text(scaling: CommonScaling) -> str:
    return ScalingFile(scaling=scaling, digest=scaling.digest).model_dump_json(indent=2) + "\n"


def parse_scaling(content: bytes, source: str) -> CommonScaling:
    """A scaling file's content, checked against its digest; ``source`` begins every error.

    Raises: ConfigurationError
    """
    try:
        found = ScalingFile.model_validate_json(content.removeprefix(codecs.BOM_UTF8))
    except ValidationError as error:
        raise ConfigurationError(
            f"{source} is no scaling file ({error.error_count()} fields are wrong): take the one that "
            "'moiety study summary --scaling' writes"
        ) from None
    if found.scaling.digest != found.digest:
        raise ConfigurationError(f"{source}: its content does not have the digest that it names; fetch it again")
    return found.scaling
