"""A site's table becomes the folder that its agent reads: examples, the transformation, and the rows as they were read.

train.npz, test.npz, validation.npz     examples (client_agent.learning.data)
transformation.json                     schema and what was fitted, for new patients and for the agent to compare
rows.npz                                the training part's columns, for the study's summary; no patient's id

Rows are split into training, test and validation by patient, at random from the study's seed or by time. A patient is
on one side with all rows, by construction: sides are drawn for patients. At random, the order of patients is that of
SHA-256 over seed and id, so it depends neither on the order of rows nor on who else is in the table.

Ids that may be one patient's written in several ways, such as 1010, 01010 and 1010.0, count as one: two patients who
are then on one side cost nothing, and one patient on both would flatter the model.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.data.findings import Finding, Findings, Problem
from client_agent.data.rows import ROWS_FILE, Rows, joined, own_columns, read_rows, require_named, save_rows
from client_agent.data.site_table import SiteTable
from client_agent.data.source import Table
from client_agent.data.transformation import Transformation, features, fit, save_transformation
from client_agent.data.values import NO_CLASS, Values
from client_agent.learning.data import (
    DATA_FILES,
    TRAIN_FILE,
    TRANSFORMATION_FILE,
    DataNames,
    Examples,
    LocalData,
    save_folder,
)
from host.output_files import filling
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnRole, ColumnSpec, ColumnType, SplitOrder, SplitSpec, TableSchema
from protocol.summary.protection import OwnColumn
from protocol.summary.table_one import CommonScaling
from protocol.text import INVISIBLE

Order = NDArray[np.int64]
_MOST_DIGITS: Final = 40
_WHOLE: Final = r"\+?\d+(\.0*)?"
_POWER: Final = r"\+?\d+(\.\d*)?e\+?\d{1,2}"
_TEXT_GUARD: Final = re.compile(r"""^(="|['"])|['"]$""")
_LEADING_ZEROS: Final = re.compile(r"(?<![\d.])0+(?=\d)")


class Side(IntEnum):
    TRAIN = 0
    TEST = 1
    VALIDATION = 2


@dataclass(frozen=True)
class Tables:
    """A site's tables: one, or two that it has split itself; both report to ``findings``.

    ``outcomes_differ`` False: one class, or no events, is no finding.
    """

    training: Table
    site: SiteTable
    findings: Findings
    test: Table | None = None
    outcomes_differ: bool = True


@dataclass(frozen=True)
class Report:
    """``rows`` that could be read and are not left out, and everything that was found, what stops first."""

    rows: int
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        return not any(finding.problem.stops for finding in self.findings)


@dataclass(frozen=True)
class Prepared:
    """A site's examples and how they were made; ``own`` are the table's columns, ``remarks`` stopped nothing."""

    data: LocalData
    training_rows: Rows
    transformation: Transformation
    remarks: tuple[Finding, ...]
    own: tuple[OwnColumn, ...]


def check(schema: TableSchema, tables: Tables) -> Report:
    """Find the faults of a table or, where the site has split it already, of its training and test tables."""
    rows, _ = _read(schema, tables)
    return Report(len(rows), tuple(sorted(tables.findings, key=lambda finding: not finding.problem.stops)))


def prepared(schema: TableSchema, tables: Tables, common: CommonScaling | None = None) -> Prepared:
    """The examples of a site's table; everything that is fitted is fitted on the training part.

    Raises: ConfigurationError with all that does not fit the schema, by column and row number
    """
    rows, side = _split(schema, tables)
    training = rows.where(side == Side.TRAIN)
    _check_columns(schema, training, tables)
    _require_fit(tables.findings, f"the training part of {tables.training.where}")
    transformation = fit(schema, training, common, tables.site)
    X, y = features(transformation, rows), targets(schema, rows)

    def part(of: Side) -> Examples:
        return Examples(X[side == of], y[side == of])

    data = LocalData(
        part(Side.TRAIN),
        part(Side.TEST),
        part(Side.VALIDATION) if schema.split.validation else None,
        DataNames(schema.feature_names, schema.class_names),
    )
    own = own_columns(schema, tables.training, tables.site)
    return Prepared(data, training, transformation, tuple(tables.findings), own)


def write(folder: Path, made: Prepared) -> None:
    """The site's folder, whole or not at all. Raises: ConfigurationError where something else is there, StorageFull"""
    with filling(folder, TRAIN_FILE, (*DATA_FILES, ROWS_FILE, TRANSFORMATION_FILE), TRANSFORMATION_FILE) as new:
        save_folder(new, made.data)
        save_rows(new / ROWS_FILE, made.transformation.table, made.training_rows, made.own)
        save_transformation(new, made.transformation)


def _read(schema: TableSchema, tables: Tables) -> tuple[Rows, int]:
    """All rows, and how many of them are the training table's; what is wrong with them is a finding."""
    findings = tables.findings
    require_named(schema, tables.training, tables.test)
    rows = read_rows(schema, tables.training, tables.site, findings)
    count, both = len(rows), 0
    if tables.test is not None:
        findings.table = tables.test.where
        apart = read_rows(schema, tables.test, tables.site, findings)
        findings.table = ""
        ours, theirs = patient_ids(schema, rows), patient_ids(schema, apart)
        both = 0 if ours is None or theirs is None else len(np.intersect1d(ours, theirs))
        rows = joined(schema, [rows, apart])
    _check_columns(schema, rows, tables)
    if both:
        findings.add(
            Problem.BOTH_SIDES,
            "",
            f"{both} patients have rows in both files, so the test would flatter the model: give one file and let "
            "'moiety data prepare' split it",
        )
    return rows, count


def _check_columns(schema: TableSchema, rows: Rows, tables: Tables) -> None:
    """Say which columns hold nothing to learn from; nothing where the table could not be read at all."""
    findings = tables.findings
    if len(rows) == 0:
        if not findings.stop:
            findings.add(Problem.NO_ROWS, "", "no row is left to learn from")
        return
    unread = {one.column for one in findings if one.problem.stops and one.problem is not Problem.MISSING}
    for column, values in zip(schema.columns, rows.columns, strict=True):
        if column.name in unread:
            continue  # nobody knows what the values are that were not read
        given = values[_given(column, values)]
        if len(given) == 0:
            findings.add(Problem.ALL_MISSING, column.name, "there is nothing to learn from, or a wrong mark")
        elif tables.outcomes_differ and column.type.listed and (given == given[0]).all():
            if column.role is ColumnRole.TARGET:
                same = "every row has the same; if that is right here, say --one-outcome"
                findings.add(Problem.ONE_CLASS, column.name, same)
            elif column.role is ColumnRole.EVENT and given[0] != 1:
                none = "it is true in no row, so nothing is learned here; if that is right, say --one-outcome"
                findings.add(Problem.NO_EVENTS, column.name, none)


def _given(column: ColumnSpec, values: Values) -> NDArray[np.bool_]:
    if column.type.listed:
        return np.asarray(values != NO_CLASS)
    return np.asarray(values != "") if column.type is ColumnType.TEXT else ~np.isnan(values)


def _require_fit(findings: Findings, where: str) -> None:
    lines = [finding.text for finding in findings if finding.problem.stops]
    if lines:
        raise ConfigurationError(f"{where} does not fit the study's schema:\n" + "\n".join(lines))


def _split(schema: TableSchema, tables: Tables) -> tuple[Rows, NDArray[np.int8]]:
    rows, training = _read(schema, tables)
    _require_fit(tables.findings, tables.training.where)
    if tables.test is None:
        return rows, sides(schema, rows)
    if schema.split.validation:
        raise ConfigurationError("the schema sets a validation part apart, so give one file and let it be split")
    return rows, np.repeat(np.array([Side.TRAIN, Side.TEST], dtype=np.int8), [training, len(rows) - training])


def targets(schema: TableSchema, rows: Rows) -> Values:
    """int64[n], classes; float32[n, k] of 0 and 1; float32[n] or [n, k]; of survival float32[n, 2], time and event.

    Raises: ConfigurationError beyond float32
    """
    by_column = dict(zip((column.name for column in schema.columns), rows.columns, strict=True))
    survival = [*schema.having(ColumnRole.SURVIVAL_TIME), *schema.having(ColumnRole.EVENT)]
    named = [column.name for column in survival or schema.having(ColumnRole.TARGET)]
    chosen = [by_column[name] for name in named]
    if schema.class_names:
        return chosen[0]
    with np.errstate(over="ignore"):
        y = np.column_stack(chosen).astype(np.float32)
    wrong = ~np.isfinite(y).all(axis=0)
    if wrong.any():
        name = named[int(np.flatnonzero(wrong)[0])]
        raise ConfigurationError(f"target {name!r} holds numbers beyond float32: bring it to another unit")
    return y[:, 0] if y.shape[1] == 1 else y


def sides(schema: TableSchema, rows: Rows) -> NDArray[np.int8]:
    """int8[n], a ``Side`` for each row. Raises: ConfigurationError for too few patients to part"""
    of_row, ids = _patients(schema, rows)
    order = _order(schema, rows, of_row, ids)
    test, validation = _sizes(len(order), schema.split)
    of_patient = np.full(len(order), Side.TRAIN, dtype=np.int8)
    of_patient[order[:test]] = Side.TEST
    of_patient[order[test : test + validation]] = Side.VALIDATION
    return of_patient[of_row]


def patient_ids(schema: TableSchema, rows: Rows) -> Values | None:
    """Each row's patient as text, the same however the id is written; None where no column says."""
    column = schema.only(ColumnRole.PATIENT)
    if column is None:
        return None
    written, of_row = np.unique(_values(schema, rows, column).astype(str), return_inverse=True)
    return np.array([_one_form(text) for text in written.tolist()], dtype=str)[of_row]


def _patients(schema: TableSchema, rows: Rows) -> tuple[Order, tuple[str, ...]]:
    """Each row's patient, int64[n], and one text a patient, the shortest where it has several."""
    ids, column = patient_ids(schema, rows), schema.only(ColumnRole.PATIENT)
    if ids is None or column is None:
        return np.arange(len(rows)), tuple(map(str, range(len(rows))))
    unique, of_row = np.unique(ids, return_inverse=True)
    shortest: dict[int, str] = {}
    for patient, text in set(zip(of_row.tolist(), _values(schema, rows, column).astype(str).tolist(), strict=True)):
        shortest[patient] = min(shortest.get(patient, text), text, key=lambda one: (len(one), one))
    return of_row.astype(np.int64), tuple(shortest[patient] for patient in range(len(unique)))


def _one_form(text: str) -> str:
    """An id without capitals, zeros in front of a number, invisible characters, and what programs add.

    1010.0, 1E+3, ="1010" and '1010: spreadsheets keep an id from being a number by the last two.
    """
    words = unicodedata.normalize("NFKC", text).casefold().split()
    folded = "".join(one for one in " ".join(words) if one == " " or one not in INVISIBLE)
    folded = _TEXT_GUARD.sub("", folded)
    if len(folded) <= _MOST_DIGITS and re.fullmatch(_WHOLE, folded):
        return str(int(folded.partition(".")[0]))
    if len(folded) <= _MOST_DIGITS and re.fullmatch(_POWER, folded):
        number = Decimal(folded)
        if number == number.to_integral_value():
            return format(number.to_integral_value(), "f")
    return _LEADING_ZEROS.sub("", folded)


def _order(schema: TableSchema, rows: Rows, of_row: Order, ids: tuple[str, ...]) -> Order:
    """The patients, those that are tested on first."""
    drawn = sorted(range(len(ids)), key=lambda one: _drawn(ids[one], schema.split.seed))
    if schema.split.order is SplitOrder.RANDOM:
        return np.array(drawn, dtype=np.int64)
    column = schema.only(ColumnRole.OBSERVED_AT)
    if column is None:
        raise ConfigurationError("split.order = 'time' needs a column of role 'observed_at'")
    last = np.full(len(ids), -np.inf)
    np.maximum.at(last, of_row, _values(schema, rows, column))
    return np.array(sorted(drawn, key=lambda one: -last[one]), dtype=np.int64)


def _drawn(patient: str, seed: int) -> bytes:
    return hashlib.sha256(f"moiety split\0{seed}\0{patient}".encode()).digest()


def _sizes(patients: int, split: SplitSpec) -> tuple[int, int]:
    test = max(1, round(patients * split.test))
    validation = max(1, round(patients * split.validation)) if split.validation else 0
    if patients - test - validation < 1:
        raise ConfigurationError(
            f"{patients} patients (or rows) are too few to set {split.test:g} for tests and {split.validation:g} for "
            "validation apart"
        )
    return test, validation


def _values(schema: TableSchema, rows: Rows, column: ColumnSpec) -> Values:
    return rows.columns[schema.columns.index(column)]
