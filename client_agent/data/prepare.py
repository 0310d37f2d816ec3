"""A site's table becomes the folder that its agent reads: examples, the transformation, and the rows as they were read.

train.npz, test.npz, validation.npz     examples (client_agent.learning.data)
transformation.json                     schema and what was fitted, for new patients and for the agent to compare
rows.npz                                the training part's columns, for the study's summary; no patient's id
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_agent.data.check import check_sides, report_of, require_fit
from client_agent.data.findings import Finding, Findings
from client_agent.data.kept import TRANSFORMATION_FILE
from client_agent.data.match import own_columns, require_named
from client_agent.data.rows import ROWS_FILE, Rows, joined, read_rows, save_rows
from client_agent.data.site_table import SiteTable
from client_agent.data.source import Table
from client_agent.data.split import Side, patient_ids, sides
from client_agent.data.tally import Tally
from client_agent.data.targets import targets
from client_agent.data.transformation import Transformation, features, fit, save_transformation
from client_agent.learning.data import DATA_FILES, TRAIN_FILE, Examples, LocalData, save_folder
from client_agent.learning.names import DataNames
from host.output_files import filling
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema
from protocol.summary.protection import OwnColumn
from protocol.summary.table_one import CommonScaling


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
