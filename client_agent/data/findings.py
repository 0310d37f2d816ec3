"""Faults of a table, by column and row number, without any value of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
_MOST_ROWS_NAMED: Final = 5


class Problem(StrEnum):
    """The value is what people and programs read. Those of ``_REMARKS`` stop nothing."""

    NO_COLUMN = "missing column"
    ALMOST_COLUMN = "column under another name"
    OTHER_UNIT = "another unit"
    NAMED_TWICE = "two columns of one name"
    COLUMN_COUNT = "another number of columns"
    FIELD_COUNT = "rows with another number of fields"
    NOT_A_NUMBER = "no number"
    DECIMAL_COMMA = "decimal comma"
    THOUSANDS = "parted thousands"
    BEYOND_LIMIT = "beyond a detection limit"
    NOT_FINITE = "NaN or infinity"
    NOT_WHOLE = "no whole number"
    OUT_OF_RANGE = "out of range"
    UNDECLARED = "undeclared category"
    NOT_A_TIME = "no date or time"
    MISSING = "missing value"
    ALL_MISSING = "nothing but missing values"
    NO_ROWS = "no rows"
    ONE_CLASS = "one class only"
    NO_EVENTS = "no events"
    BOTH_SIDES = "patients in training and test"
    ROWS_DROPPED = "rows left out"
    COUNTED_AS_OTHER = "counted as other"

    @property
    def stops(self) -> bool:
        return self not in _REMARKS


_REMARKS: Final = frozenset({Problem.ROWS_DROPPED, Problem.COUNTED_AS_OTHER})


@dataclass
class Finding:
    """``rows`` is how many rows have the problem, ``first`` the numbers of the first ones; the first data row is 1.

    ``table`` is empty for the only table, or the training one.
    """

    problem: Problem
    column: str
    detail: str
    rows: int = 0
    first: list[int] = field(default_factory=list)
    table: str = ""

    @property
    def text(self) -> str:
        where = f"column {self.column!r}: " if self.column else ""
        numbers = ", ".join(map(str, self.first))
        more = ", ..." if self.rows > len(self.first) else ""
        rows = f" in {self.rows} rows ({numbers}{more})" if self.first else f" in {self.rows} rows" if self.rows else ""
        detail = f": {self.detail}" if self.detail else ""
        table = f"{self.table}: " if self.table else ""
        return f"{table}{where}{self.problem.value}{rows}{detail}"


class Findings:
    """All of a table, added up over its batches; ``table`` names the one that is being read, where there are two."""

    def __init__(self) -> None:
        self._found: dict[tuple[Problem, str, str], Finding] = {}
        self._skipped: dict[str, list[int]] = {}
        self.table = ""

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def add(self, problem: Problem, column: str = "", detail: str = "", rows: int = 0) -> None:
        """Something about a column or the whole table."""
        self._at(problem, column, detail).rows += rows

    def skip_row(self, number: int, detail: str) -> None:
        """Row ``number`` has another number of fields and is in no batch: rows after it count it."""
        found = self._at(Problem.FIELD_COUNT, "", detail)
        found.rows += 1
        found.first += [number] if len(found.first) < _MOST_ROWS_NAMED else []
        skipped = self._skipped.setdefault(self.table, [])
        skipped.append(number - 1 - len(skipped))

    def add_rows(self, problem: Problem, column: str, wrong: Mask, before: int, detail: str = "") -> None:
        """Add the rows where ``wrong`` bool[n] holds, in a batch that follows ``before`` rows of batches."""
        places = np.flatnonzero(wrong)
        if len(places) == 0:
            return
        found = self._at(problem, column, detail)
        found.rows += len(places)
        room = _MOST_ROWS_NAMED - len(found.first)
        found.first += [self._number(int(place) + before) for place in places[:room]]

    def _number(self, read: int) -> int:
        return read + 1 + bisect_right(self._skipped.get(self.table, []), read)

    def _at(self, problem: Problem, column: str, detail: str) -> Finding:
        finding = Finding(problem, column, detail, table=self.table)
        return self._found.setdefault((problem, column, self.table), finding)

    @property
    def stop(self) -> bool:
        """True if anything was found that no examples can be made of."""
        return any(finding.problem.stops for finding in self)
