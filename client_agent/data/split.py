"""Split rows into training, test and validation: by patient, at random from the study's seed or by time.

A patient is on one side with all rows, by construction: sides are drawn for patients. At random, the order of patients
is that of SHA-256 over seed and id, so it depends neither on the order of rows nor on who else is in the table.

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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.data.rows import Rows
from client_agent.data.values import Values
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnRole, ColumnSpec, SplitOrder, SplitSpec, TableSchema
from protocol.text import INVISIBLE

Order = NDArray[np.int64]
_MOST_DIGITS: Final = 40
_WHOLE: Final = r"\+?\d+(\.0*)?"
_POWER: Final = r"\+?\d+(\.\d*)?e\+?\d{1,2}"
_LEADING_ZEROS: Final = re.compile(r"(?<![\d.])0+(?=\d)")


class Side(IntEnum):
    TRAIN = 0
    TEST = 1
    VALIDATION = 2


@dataclass(frozen=True)
class _Patients:
    """``of_row`` int64[n] is each row's patient; ``ids`` one text a patient, the shortest where it has several."""

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
    """Each row's patient as text, the same however the id is written; None where no column says."""
    column = schema.only(ColumnRole.PATIENT)
    if column is None:
        return None
    written, of_row = np.unique(_values(schema, rows, column).astype(str), return_inverse=True)
    return np.array([_one_form(text) for text in written.tolist()], dtype=str)[of_row]


def _patients(schema: TableSchema, rows: Rows) -> _Patients:
    ids, column = patient_ids(schema, rows), schema.only(ColumnRole.PATIENT)
    if ids is None or column is None:
        return _Patients(np.arange(len(rows)), tuple(map(str, range(len(rows)))))
    unique, of_row = np.unique(ids, return_inverse=True)
    shortest: dict[int, str] = {}
    for patient, text in set(zip(of_row.tolist(), _values(schema, rows, column).astype(str).tolist(), strict=True)):
        shortest[patient] = min(shortest.get(patient, text), text, key=lambda one: (len(one), one))
    return _Patients(of_row.astype(np.int64), tuple(shortest[patient] for patient in range(len(unique))))


def _one_form(text: str) -> str:
    """An id without capitals, zeros in front of a number, invisible characters, and what programs add: 1010.0, 1E+3."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    folded = "".join(one for one in " ".join(words) if one == " " or one not in INVISIBLE)
    if len(folded) <= _MOST_DIGITS and re.fullmatch(_WHOLE, folded):
        return str(int(folded.partition(".")[0]))
    if len(folded) <= _MOST_DIGITS and re.fullmatch(_POWER, folded):
        number = Decimal(folded)
        if number == number.to_integral_value():
            return format(number.to_integral_value(), "f")
    return _LEADING_ZEROS.sub("", folded)


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
    """Return the numbers of test and validation rows, at least one where the share is above 0."""
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
