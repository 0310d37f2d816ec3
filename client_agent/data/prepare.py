"""A site's table becomes the folder that its agent reads: examples, the transformation, and the rows as they were read.

train.npz, test.npz, validation.npz     examples (client_agent.learning.data)
transformation.json                     schema and what was fitted, for new patients and for the agent to compare
rows.npz                                the training part's columns, for the study's summary; no patient's id
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_agent.data.column_match import own_columns, require_named
from client_agent.data.findings import Finding, Findings, Problem
from client_agent.data.rows import ROWS_FILE, Rows, joined, read_rows, save_rows
from client_agent.data.schema_check import TRANSFORMATION_FILE
from client_agent.data.site_table import SiteTable
from client_agent.data.source import Table
from client_agent.data.split import Side, patient_ids, sides
from client_agent.data.transformation import Transformation, features, fit, save_transformation
from client_agent.data.values import NO_CLASS, Values
from client_agent.learning.data import DATA_FILES, TRAIN_FILE, DataNames, Examples, LocalData, save_folder
from host.output_files import filling
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnRole, ColumnType, TableSchema
from protocol.summary.protection import OwnColumn
from protocol.summary.table_one import CommonScaling


class Tally:
    """Counts over a table's batches; ``outcomes_differ`` False: one class, or no events, is no finding."""

    def __init__(self, schema: TableSchema, findings: Findings, *, outcomes_differ: bool = True) -> None:
        self._schema = schema
        self._findings = findings
        self._outcomes_differ = outcomes_differ
        self._given = dict.fromkeys((column.name for column in schema.columns), 0)
        self._classes: dict[str, set[int]] = {column.name: set() for column in schema.columns if column.type.listed}
        self.rows = 0

    def through(self, batches: Iterable[Rows]) -> Iterator[Rows]:
        """The same batches, counted."""
        for rows in batches:
            self._add(rows)
            yield rows

    def _add(self, rows: Rows) -> None:
        self.rows += len(rows)
        for column, values in zip(self._schema.columns, rows.columns, strict=True):
            if column.type.listed:
                found = np.unique(values[values != NO_CLASS])
                self._classes[column.name] |= set(found.tolist())
                self._given[column.name] += int(np.count_nonzero(values != NO_CLASS))
            elif column.type is ColumnType.TEXT:
                self._given[column.name] += int(np.count_nonzero(values != ""))
            else:
                self._given[column.name] += int(np.count_nonzero(~np.isnan(values)))

    def close(self) -> None:
        """Say what the counts show; nothing where the table could not be read at all."""
        if self.rows == 0:
            if not self._findings.stop:
                self._findings.add(Problem.NO_ROWS, "", "no row is left to learn from")
            return
        unread = {one.column for one in self._findings if one.problem.stops and one.problem is not Problem.MISSING}
        for column in self._schema.columns:
            if column.name in unread:
                continue  # nobody knows what the values are that were not read
            if self._given[column.name] == 0:
                self._findings.add(Problem.ALL_MISSING, column.name, "there is nothing to learn from, or a wrong mark")
            elif self._outcomes_differ and column.role in (ColumnRole.TARGET, ColumnRole.EVENT):
                self._check_outcomes(column.name, column.role)

    def _check_outcomes(self, name: str, role: ColumnRole) -> None:
        found = self._classes.get(name)
        if found is None or len(found) > 1:
            return
        if role is ColumnRole.TARGET:
            self._findings.add(
                Problem.ONE_CLASS, name, "every row has the same; if that is right here, say --one-outcome"
            )
        elif 1 not in found:
            self._findings.add(
                Problem.NO_EVENTS,
                name,
                "it is true in no row, so nothing is learned here; if that is right, say --one-outcome",
            )


@dataclass(frozen=True)
class Report:
    """``rows`` that could be read and are not left out, and everything that was found."""

    rows: int
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        return not any(finding.problem.stops for finding in self.findings)


def report_of(rows: int, findings: Findings) -> Report:
    """Found up to now; what stops first."""
    return Report(rows, tuple(sorted(findings, key=lambda finding: not finding.problem.stops)))


def require_fit(report: Report, where: str) -> None:
    """Raises: ConfigurationError with everything that is wrong"""
    if not report.fits:
        lines = [finding.text for finding in report.findings if finding.problem.stops]
        raise ConfigurationError(f"{where} does not fit the study's schema:\n" + "\n".join(lines))


def check(
    schema: TableSchema,
    table: Table,
    site: SiteTable,
    findings: Findings,
    *,
    test: Table | None = None,
    outcomes_differ: bool = True,
) -> Report:
    """Find the faults of a table or, where the site has split it already, of its training and test tables."""
    require_named(schema, table, test)
    tally = Tally(schema, findings, outcomes_differ=outcomes_differ)
    seen: set[str] = set()
    for rows in tally.through(read_rows(schema, table, site, findings)):
        ids = patient_ids(schema, rows)
        if test is not None and ids is not None:
            seen |= set(ids.tolist())
    both: set[str] = set()
    if test is not None:
        findings.table = test.where
        for rows in tally.through(read_rows(schema, test, site, findings)):
            ids = patient_ids(schema, rows)
            both |= set() if ids is None else seen & set(ids.tolist())
    findings.table = ""
    tally.close()
    check_sides(len(both), findings)
    return report_of(tally.rows, findings)


def check_sides(patients: int, findings: Findings) -> None:
    """``patients`` have rows in the training table and in the test table."""
    if patients:
        findings.add(
            Problem.BOTH_SIDES,
            "",
            f"{patients} patients have rows in both files, so the test would flatter the model: give one file and let "
            "'moiety data prepare' split it",
        )


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


@dataclass(frozen=True)
class Tables:
    """A site's tables: one, or two that it has split itself; both report to ``findings``."""

    training: Table
    site: SiteTable
    findings: Findings
    test: Table | None = None


@dataclass(frozen=True)
class Prepared:
    """A site's examples and how they were made; ``own`` are the table's columns, ``remarks`` stopped nothing."""

    data: LocalData
    training_rows: Rows
    transformation: Transformation
    remarks: tuple[Finding, ...]
    own: tuple[OwnColumn, ...]


def prepared(
    schema: TableSchema, tables: Tables, common: CommonScaling | None = None, *, outcomes_differ: bool = True
) -> Prepared:
    """The examples of a site's table; everything that is fitted is fitted on the training part.

    Raises: ConfigurationError with all that does not fit the schema, by column and row number
    """
    rows, side = _split(schema, tables, outcomes_differ=outcomes_differ)
    training = rows.where(side == Side.TRAIN)
    _check_training(schema, training, tables, outcomes_differ=outcomes_differ)
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
    remarks = report_of(len(rows), tables.findings).findings
    return Prepared(data, training, transformation, remarks, own_columns(schema, tables.training, tables.site))


def write(folder: Path, made: Prepared) -> None:
    """The site's folder, whole or not at all. Raises: ConfigurationError where something else is there, StorageFull"""
    with filling(folder, TRAIN_FILE, (*DATA_FILES, ROWS_FILE, TRANSFORMATION_FILE), TRANSFORMATION_FILE) as new:
        save_folder(new, made.data)
        save_rows(new / ROWS_FILE, made.transformation.table, made.training_rows, made.own)
        save_transformation(new, made.transformation)


def _split(schema: TableSchema, tables: Tables, *, outcomes_differ: bool) -> tuple[Rows, NDArray[np.int8]]:
    """All rows, and the side of each. Raises: ConfigurationError"""
    findings = tables.findings
    require_named(schema, tables.training, tables.test)
    tally = Tally(schema, findings, outcomes_differ=outcomes_differ)
    rows = joined(schema, list(tally.through(read_rows(schema, tables.training, tables.site, findings))))
    apart = joined(schema, [])
    if tables.test is not None:
        findings.table = tables.test.where
        apart = joined(schema, list(tally.through(read_rows(schema, tables.test, tables.site, findings))))
        findings.table = ""
        ours, theirs = patient_ids(schema, rows), patient_ids(schema, apart)
        if ours is not None and theirs is not None:
            check_sides(len(np.intersect1d(ours, theirs)), findings)
    tally.close()
    require_fit(report_of(tally.rows, findings), tables.training.where)
    if tables.test is None:
        return rows, sides(schema, rows)
    if schema.split.validation:
        raise ConfigurationError("the schema sets a validation part apart, so give one file and let it be split")
    side = np.repeat(np.array([Side.TRAIN, Side.TEST], dtype=np.int8), [len(rows), len(apart)])
    return joined(schema, [rows, apart]), side


def _check_training(schema: TableSchema, training: Rows, tables: Tables, *, outcomes_differ: bool) -> None:
    """The training part alone has values in every column, and more than one outcome."""
    tally = Tally(schema, tables.findings, outcomes_differ=outcomes_differ)
    list(tally.through([training]))
    tally.close()
    require_fit(report_of(len(training), tables.findings), f"the training part of {tables.training.where}")
