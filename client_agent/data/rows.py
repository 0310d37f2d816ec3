"""A site's table as it was read: one array per column of the schema, before anything is filled in, scaled or split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.lib.npyio import NpzFile

from client_agent.data.findings import Findings, Mask, Problem
from client_agent.data.match import places
from client_agent.data.site_table import SiteTable
from client_agent.data.source import Table, texts_of
from client_agent.data.values import ColumnReader, Values
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnRole, ColumnSpec, ColumnType, MissingRule, TableSchema
from protocol.summary.protection import OwnColumn
from protocol.text import comparable

ROWS_FILE: Final = "rows.npz"
_COLUMN: Final = "column"
_OWN_NAMES: Final = "own_names"
_NAMED_IN: Final = "named_in"


@dataclass(frozen=True)
class Rows:
    """``columns`` in the schema's order, in the forms of ``client_agent.data.values``; all have the same length."""

    columns: tuple[Values, ...]

    def __len__(self) -> int:
        return len(self.columns[0])

    def where(self, chosen: Mask) -> Rows:
        """The rows for which bool[n] holds."""
        return Rows(tuple(values[chosen] for values in self.columns))


def read_rows(schema: TableSchema, table: Table, site: SiteTable, findings: Findings) -> Iterator[Rows]:
    """The rows of a table, batch by batch; nothing after a finding about the whole table, such as a missing column.

    Rows that lack a value whose rule is ``drop_row`` are left out and counted.
    """
    found = places(schema, table, site, findings)
    if len(found) < len(schema.columns):
        return
    readers = [ColumnReader(place, _marks(schema, place.column), site, findings) for place in found]
    before = 0
    for batch in table.batches:
        read = [reader.read(texts_of(batch.column(reader.index), reader.column.name), before) for reader in readers]
        kept = _kept(schema, [column.missing for column in read], before, findings)
        yield Rows(tuple(column.values for column in read)).where(kept)
        before += batch.num_rows
    if not table.query:  # a database's numbers have no notation of their own
        for reader in readers:
            reader.close()


def joined(schema: TableSchema, parts: Sequence[Rows]) -> Rows:
    """Batches one after the other."""
    if parts:
        return Rows(tuple(np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True)))
    forms = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0, dtype=str))
    return Rows(
        tuple(forms[0 if one.type.listed else 2 if one.type is ColumnType.TEXT else 1] for one in schema.columns)
    )


def save_rows(path: Path, schema: TableSchema, rows: Rows, own: Sequence[OwnColumn]) -> None:
    """All columns but patients' ids, as float64 and int64, and what the site's own file calls them all."""
    kept = {
        f"{_COLUMN}{place}": values
        for place, (column, values) in enumerate(zip(schema.columns, rows.columns, strict=True))
        if column.role is not ColumnRole.PATIENT
    }
    kept[_OWN_NAMES] = np.array([one.name for one in own])
    kept[_NAMED_IN] = np.array([one.named_in for one in own])
    np.savez(path, allow_pickle=False, **kept)


def load_rows(folder: Path, schema: TableSchema) -> dict[str, Values]:
    """The training part's columns by name, as ``moiety data prepare`` kept them: float64, NaN where missing, or the
    place of a class, int64, -1 where missing. Patients' ids are not among them. Raises: ConfigurationError
    """
    with _opened(folder) as archive:
        return {
            column.name: archive[f"{_COLUMN}{place}"]
            for place, column in enumerate(schema.columns)
            if column.role is not ColumnRole.PATIENT
        }


def kept_own_columns(folder: Path, schema: TableSchema) -> dict[str, OwnColumn]:
    """Return the site's own names of the schema's columns; a folder of an older release knows the study's name.

    Raises: ConfigurationError, also where an older release cannot have known which column was read
    """
    with _opened(folder) as archive:
        names = archive[_OWN_NAMES]
        if _NAMED_IN not in archive and (schema.query or not schema.header):
            raise KeyError(_NAMED_IN)
        named_in = archive[_NAMED_IN] if _NAMED_IN in archive else [""] * len(names)
        return {
            column.name: OwnColumn(str(name), str(by))
            for column, name, by in zip(schema.columns, names, named_in, strict=True)
        }


@contextmanager
def _opened(folder: Path) -> Iterator[NpzFile]:
    path = folder / ROWS_FILE
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except (OSError, KeyError, ValueError):
        raise ConfigurationError(
            f"{path} is missing, of another schema or of an older version: make the folder with 'moiety data prepare'"
        ) from None


def _marks(schema: TableSchema, column: ColumnSpec) -> tuple[str, ...]:
    return tuple(map(comparable, schema.marks_of(column)))


def _kept(schema: TableSchema, all_missing: Sequence[Mask], before: int, findings: Findings) -> Mask:
    kept = np.ones(len(all_missing[0]), dtype=bool)
    for column, missing in zip(schema.columns, all_missing, strict=True):
        if column.missing is MissingRule.REFUSE:
            findings.add_rows(Problem.MISSING, column.name, missing, before, "the schema refuses missing values here")
        elif column.missing is MissingRule.DROP_ROW:
            findings.add_rows(Problem.ROWS_DROPPED, column.name, missing, before, "the value is missing")
            kept &= ~missing
    return kept
