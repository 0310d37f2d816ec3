"""A study's summary of the sites' tables before training: sums that make a table one (docs/protocol.md 17)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from protocol.summary.layout import MOST_BINS, Categories, Column, Layout, Numeric
from protocol.wire.message import Message
from protocol.wire.table.column import ColumnRole, ColumnSpec
from protocol.wire.table.schema import TableSchema

MOST_SUMMARY_ROUNDS: Final = 3
"""How often a study may try to sum its summary; those rounds do not count among its rounds."""
LEAST_EXAMPLES: Final = 10
"""Fewer values than that are shared of no column, whatever a study or a site says."""
LEAST_ROUNDED_TO: Final = 5


class SummarySpec(Message):
    """One summary, once per study, of all columns of its schema but ids and times.

    ``most_rows`` is the largest table that a site may have; the larger, the coarser what all sites share. What a site
    replaces by zeros and rounds, ``protocol/summary/protect.py`` says; ``least_examples`` and ``rounded_to`` can ask
    for more protection than usual, never for less. ``second_moments`` are of pairs of numeric columns.
    """

    KIND: ClassVar[str] = "summary"
    bins: Annotated[int, Field(ge=1, le=MOST_BINS)] = MOST_BINS
    most_rows: Annotated[int, Field(ge=LEAST_EXAMPLES, le=10**8)] = 10_000
    least_examples: Annotated[int, Field(ge=LEAST_EXAMPLES, le=10**6)] = LEAST_EXAMPLES
    rounded_to: Annotated[int, Field(ge=LEAST_ROUNDED_TO, le=1000)] = LEAST_ROUNDED_TO
    second_moments: bool = False

    def layout(self, schema: TableSchema) -> Layout:
        """Entry by entry. Raises: ValueError where the schema's columns cannot be summarised like this"""
        return Layout(
            columns=tuple(_column(column) for column in summarised(schema)),
            bins=self.bins,
            rounded_to=self.rounded_to,
            most_rows=self.most_rows,
            second_moments=self.second_moments,
        )


_IDS_AND_TIMES: Final = frozenset({ColumnRole.PATIENT, ColumnRole.OBSERVED_AT})


def summarised(schema: TableSchema) -> tuple[ColumnSpec, ...]:
    """The schema's columns that a summary has, in order; ids and times are none of them, whatever their type."""
    return tuple(column for column in schema.columns if column.role not in _IDS_AND_TIMES)


def _column(column: ColumnSpec) -> Column:
    if column.type.listed:
        places = dict(zip(column.values, column.class_of, strict=True))
        other = None if column.other is None else column.classes[places[column.other]]
        return Categories(column.name, column.classes, other)
    if column.range is None:
        raise ValueError(
            f"column {column.name!r}: a summary clips to the schema's range, and it has none: give the smallest and "
            "the largest value that can be right, as range = [0, 120]"
        )
    return Numeric(column.name, *column.range)
