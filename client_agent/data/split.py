"""Which rows train, test and validate: by patient, at random from the study's seed or by time.

A patient is on one side with all rows, by construction: sides are drawn for patients. At random, the order of patients
is that of SHA-256 over seed and id, so it depends neither on the order of rows nor on who else is in the table.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from client_agent.data.rows import Rows
from client_agent.data.values import Values
from protocol.errors import ConfigurationError
from protocol.wire.messages import ColumnRole, ColumnSpec, SplitOrder, SplitSpec, TableSchema

Order = NDArray[np.int64]


class Side(IntEnum):
    TRAIN = 0
    TEST = 1
    VALIDATION = 2


@dataclass(frozen=True)
class _Patients:
    """``of_row`` int64[n] is each row's patient; ``ids`` one text a patient."""

    of_row: Order
    ids: tuple[str, ...]


def sides(schema: TableSchema, rows: Rows) -> NDArray[np.int8]:
    """int8[n], a ``Side`` for each row. Raises: ConfigurationError for too few patients to part"""
    patients = _patients(schema, rows)
    order = _order(schema, rows, patients)
    test, validation = _sizes(len(order), schema.split)
    of_patient = np.full(len(order), Side.TRAIN, dtype=np.int8)
    of_patient[order[:test]] = Side.TEST
    of_patient[order[test : test + validation]] = Side.VALIDATION
    return of_patient[patients.of_row]


def patient_ids(schema: TableSchema, rows: Rows) -> Values | None:
    """Each row's patient as text; None where no column says."""
    column = schema.only(ColumnRole.PATIENT)
    return None if column is None else _values(schema, rows, column).astype(str)


def _patients(schema: TableSchema, rows: Rows) -> _Patients:
    ids = patient_ids(schema, rows)
    if ids is None:
        return _Patients(np.arange(len(rows)), tuple(map(str, range(len(rows)))))
    unique, of_row = np.unique(ids, return_inverse=True)
    return _Patients(of_row.astype(np.int64), tuple(unique.tolist()))


def _order(schema: TableSchema, rows: Rows, patients: _Patients) -> Order:
    """The patients, those that are tested on first."""
    drawn = sorted(range(len(patients.ids)), key=lambda one: _drawn(patients.ids[one], schema.split.seed))
    if schema.split.order is SplitOrder.RANDOM:
        return np.array(drawn, dtype=np.int64)
    column = schema.only(ColumnRole.OBSERVED_AT)
    if column is None:
        raise ConfigurationError("split.order = 'time' needs a column of role 'observed_at'")
    last = np.full(len(patients.ids), -np.inf)
    np.maximum.at(last, patients.of_row, _values(schema, rows, column))
    return np.array(sorted(drawn, key=lambda one: -last[one]), dtype=np.int64)


def _drawn(patient: str, seed: int) -> bytes:
    return hashlib.sha256(f"moiety split\0{seed}\0{patient}".encode()).digest()


def _sizes(patients: int, split: SplitSpec) -> tuple[int, int]:
    """How many test and validate, at least one where the share is above 0."""
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
