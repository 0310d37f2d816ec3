"""Transform a table's rows into a model's features, the same in preparing a site's data and for a new patient.

What is fitted, medians and scales, is fitted on the training part alone and kept as JSON beside the data.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from client_agent.data.findings import Findings, Problem
from client_agent.data.rows import Rows, read_rows
from client_agent.data.site_table import PLAIN, SiteTable
from client_agent.data.source import Table, open_table
from client_agent.data.values import NO_CLASS, Values
from client_agent.learning.data import TRANSFORMATION_FILE
from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnRole, ColumnSpec, ColumnType, MissingRule, Scaling, TableSchema
from protocol.summary.table_one import CommonScaling, is_constant, safe_spread

Features = NDArray[np.float32]
_OTHER_SITE: Final = (
    "; read as the exporting site's table was: --site FILE says how this one is written (an empty file: as the schema)"
)
_OF_NAMES: Final = frozenset({Problem.NO_COLUMN, Problem.ALMOST_COLUMN, Problem.COLUMN_COUNT})
_LEAST_SPREAD: Final = 1e-150
"""Squares of deviations below it are no longer exact."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


class ColumnFit(Frozen):
    """x becomes (x - centre) / spread; ``fill`` stands in for a missing x."""

    name: str
    centre: Finite = 0.0
    spread: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    fill: Finite | None = None


class Transformation(Frozen):
    """The making of a site's examples: the study's table, what was fitted, and where a common scale came from.

    ``site``: how the site's table was written, so that new rows are read alike; None for a plain one.
    """

    table: TableSchema
    fitted: tuple[ColumnFit, ...]
    scaling_digest: str | None = None
    site: SiteTable | None = Field(default=None, exclude_if=lambda site: site is None)

    @property
    def reading(self) -> SiteTable:
        """The site's file that was given when the data were prepared, or what holds without one."""
        return self.site or PLAIN

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal, over its JSON."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def fit(
    schema: TableSchema, training: Rows, common: CommonScaling | None = None, site: SiteTable = PLAIN
) -> Transformation:
    """Medians and scales of the training part. Raises: ConfigurationError where a scale or a median cannot be had"""
    if common is not None and schema.scaling is not Scaling.COMMON:
        raise ConfigurationError(f"the schema's scaling is {schema.scaling.value!r}: a common scale goes with 'common'")
    scales = {} if common is None else {one.name: one for one in common.columns}
    fitted = []
    for column, values in _features(schema, training):
        if column.type is ColumnType.CATEGORY:
            continue
        fill = _fill(column, values)
        centre, spread = 0.0, 1.0
        if column.type.numeric and column.name in scales:
            centre, spread = scales[column.name].mean, scales[column.name].sd
            spread = safe_spread(centre, spread)
        elif column.type.numeric:
            centre, spread = _scale(schema, column, values, given=common is not None)
        if not (math.isfinite(centre) and _LEAST_SPREAD < spread < math.inf and math.isfinite(fill or 0)):
            raise ConfigurationError(
                f"column {column.name!r}: its numbers are too large, or too close to 0, for a mean and a standard "
                "deviation: bring it to another unit"
            )
        fitted.append(ColumnFit(name=column.name, centre=centre, spread=spread, fill=fill))
    return Transformation(
        table=schema,
        fitted=tuple(fitted),
        scaling_digest=None if common is None else common.digest,
        site=None if site == PLAIN else site,
    )


def features(transformation: Transformation, rows: Rows) -> Features:
    """float32[n, d], the columns that the schema's ``feature_names`` name. Raises: ConfigurationError beyond float32"""
    fits = {one.name: one for one in transformation.fitted}
    made: list[NDArray[np.float64]] = []
    with np.errstate(over="ignore"):
        for column, values in _features(transformation.table, rows):
            made += _one_hot(column, values) if column.type is ColumnType.CATEGORY else _number(column, values, fits)
        X: Features = np.column_stack(made).astype(np.float32)
    wrong = ~np.isfinite(X).all(axis=0)
    if wrong.any():
        name = transformation.table.feature_names[int(np.flatnonzero(wrong)[0])]
        raise ConfigurationError(f"feature {name!r} holds numbers beyond float32: bring it to another unit")
    return X


def transform_file(path: Path, transformation: Transformation, site: SiteTable | None = None) -> Features:
    """The rows of a CSV or Parquet file, new patients' for example, as float32[n, d]; targets need not be there.

    A file without a first line of names has the features' columns, in the schema's order, and no others. Without
    ``site`` it is read as the table that the transformation was fitted on. Raises: ConfigurationError
    """
    findings, hint = Findings(), "" if site is not None else _OTHER_SITE
    site = site or transformation.reading
    table = open_table(path, site, findings, header=transformation.table.header)
    return transform_table(table, transformation, site, findings, hint)


def transform_table(
    table: Table, transformation: Transformation, site: SiteTable, findings: Findings, hint: str = ""
) -> Features:
    """Raises: ConfigurationError that says what is wrong in which columns and rows, without values"""
    given = transformation.table
    _require_spreads(transformation)
    of_features = TableSchema.model_construct(**{**dict(given), "columns": given.having(ColumnRole.FEATURE)})
    rows = read_rows(of_features, table, site, findings)
    found = [finding.text for finding in findings if finding.problem is not Problem.COUNTED_AS_OTHER]
    if found:
        hint = hint if any(finding.problem in _OF_NAMES for finding in findings) else ""
        raise ConfigurationError(f"{table.where}: no prediction for these rows: {'; '.join(found)}{hint}")
    return features(transformation.model_copy(update={"table": of_features}), rows)


def _require_spreads(transformation: Transformation) -> None:
    """Raises: ConfigurationError for a spread that is rounding, as older releases fitted it"""
    if transformation.table.scaling in (Scaling.RANGE, Scaling.NONE):
        return
    for one in transformation.fitted:
        if safe_spread(one.centre, one.spread) != one.spread:
            raise ConfigurationError(
                f"column {one.name!r} has one value in the data that this transformation was fitted on, and an older "
                "release divided by its rounding: prepare the data again, train and export again"
            )


def save_transformation(folder: Path, transformation: Transformation) -> None:
    """Beside the data."""
    (folder / TRANSFORMATION_FILE).write_text(transformation.model_dump_json(indent=1) + "\n", encoding="utf-8")


def load_transformation(path: Path) -> Transformation:
    """Load the transformation that ``moiety data prepare`` kept. Raises: ConfigurationError"""
    try:
        return Transformation.model_validate_json(path.read_bytes())
    except OSError:
        raise ConfigurationError(f"{path} is missing: 'moiety data prepare' makes it beside the data") from None
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: no transformation of this version ({error.error_count()} fields are wrong): prepare again"
        ) from None


def _features(schema: TableSchema, rows: Rows) -> list[tuple[ColumnSpec, Values]]:
    pairs = zip(schema.columns, rows.columns, strict=True)
    return [(column, values) for column, values in pairs if column.role is ColumnRole.FEATURE]


def _as_numbers(column: ColumnSpec, values: Values) -> NDArray[np.float64]:
    return np.where(values == NO_CLASS, np.nan, values) if column.type.listed else values


def _fill(column: ColumnSpec, values: Values) -> float | None:
    if column.missing not in (MissingRule.MEDIAN, MissingRule.INDICATOR):
        return None
    numbers = _as_numbers(column, values)
    given = numbers[~np.isnan(numbers)]
    if len(given) == 0:
        raise ConfigurationError(f"column {column.name!r}: no value in the training part, so it has no median")
    with np.errstate(over="ignore"):
        return float(np.quantile(given, 0.5, method="lower") if column.type.listed else np.median(given))


def _scale(schema: TableSchema, column: ColumnSpec, values: Values, *, given: bool) -> tuple[float, float]:
    """Centre and spread; ``given``: a common scale that leaves this column as it is."""
    match schema.scaling:
        case Scaling.STANDARD:
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            if is_constant(low, high):
                return low, 1.0
            with np.errstate(over="ignore", invalid="ignore"):
                return float(np.nanmean(values)), float(np.nanstd(values))
        case Scaling.RANGE if column.range is not None:
            return column.range[0], column.range[1] - column.range[0]
        case Scaling.COMMON if column.centre is not None and column.spread is not None:
            return column.centre, safe_spread(column.centre, column.spread)
        case Scaling.COMMON if not given:
            raise ConfigurationError(
                f"column {column.name!r}: scaling = 'common' needs its centre and spread in the schema, or the file of "
                "a summary (--scaling)"
            )
        case _:
            return 0.0, 1.0


def _one_hot(column: ColumnSpec, values: Values) -> list[NDArray[np.float64]]:
    codes = [*range(len(column.classes)), *([NO_CLASS] if column.missing is MissingRule.CATEGORY else [])]
    return [(values == code).astype(np.float64) for code in codes]


def _number(column: ColumnSpec, values: Values, fits: dict[str, ColumnFit]) -> list[NDArray[np.float64]]:
    fitted = fits[column.name]
    numbers = _as_numbers(column, values)
    missing = np.isnan(numbers)
    if fitted.fill is not None:
        numbers = np.where(missing, fitted.fill, numbers)
    scaled = (numbers - fitted.centre) / fitted.spread
    return [scaled, missing.astype(np.float64)] if column.missing is MissingRule.INDICATOR else [scaled]
