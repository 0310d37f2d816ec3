"""Faults that only the whole table shows: columns without a value, one class only, no events, nobody left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from client_agent.data.findings import Findings, Problem
from client_agent.data.rows import Rows
from client_agent.data.values import NO_CLASS
from protocol.messages.control import ColumnRole, ColumnType, TableSchema


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
