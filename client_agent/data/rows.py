"""A site's table as it was read: one array per column of the schema, before anything is filled in, scaled or split.

The columns of a file are matched to those of the schema, with their units.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.lib.npyio import NpzFile

from client_agent.data.findings import Findings, Mask, Problem
from client_agent.data.site_table import SiteColumn, SiteTable
from client_agent.data.source import Table, texts_of
from client_agent.data.values import ColumnReader, Place, Values
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnRole, ColumnSpec, ColumnType, MissingRule, TableSchema
from protocol.summary.protection import FIRST_LINE, PLACES, OwnColumn
from protocol.text import comparable, counted, lookalike

_NAME_AND_UNIT: Final = re.compile(r"^(?P<name>.*?)\s*[\[(](?P<unit>[^\[\]()]*)[\])]$")
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


def read_rows(schema: TableSchema, table: Table, site: SiteTable, findings: Findings) -> Rows:
    """The rows of a table; none after a finding about the whole table, such as a missing column.

    Rows that lack a value whose rule is ``drop_row`` are left out and counted.
    """
    found = places(schema, table, site, findings)
    if len(found) < len(schema.columns):
        return joined(schema, ())
    readers = [ColumnReader(place, _marks(schema, place.column), site, findings) for place in found]
    before, parts = 0, list[Rows]()
    for batch in table.batches:
        read = [reader.read(texts_of(batch.column(reader.index), reader.column.name), before) for reader in readers]
        kept = _kept(schema, [missing for _, missing in read], before, findings)
        parts.append(Rows(tuple(values for values, _ in read)).where(kept))
        before += batch.num_rows
    if not table.query:  # a database's numbers have no notation of their own
        for reader in readers:
            reader.close()
    return joined(schema, parts)


def joined(schema: TableSchema, parts: Sequence[Rows]) -> Rows:
    """Batches one after the other."""
    if parts:
        return Rows(tuple(np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True)))
    forms = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0, dtype=str))
    return Rows(
        tuple(forms[0 if one.type.listed else 2 if one.type is ColumnType.TEXT else 1] for one in schema.columns)
    )


def places(schema: TableSchema, table: Table, site: SiteTable, findings: Findings) -> tuple[Place, ...]:
    """The columns that were found, in the schema's order; what is missing or means something else is a finding."""
    names = table.names
    if names is None and table.width != len(schema.columns):
        findings.add(
            Problem.COLUMN_COUNT,
            "",
            f"the schema says header = false, so a row has its {len(schema.columns)} columns in its order; found "
            f"{table.width}",
        )
        return ()
    found = []
    for place, column in enumerate(schema.columns):
        of_site, index, in_header = site.of(column.name), place, None
        if names is not None:
            own = comparable(of_site.name or column.name)
            named = _index(names, own, column, findings)
            if named is None:
                continue
            index, written = named, _NAME_AND_UNIT.match(names[named])
            in_header = written["unit"].strip() if written is not None and names[named] != own else None
        _check_unit(column, of_site, in_header, findings)
        found.append(Place(column, index, of_site))
    if not found and table.line:
        findings.add(
            Problem.NO_COLUMN,
            "",
            f"the file has none of the schema's. Line {table.line} was taken for their names and has "
            f"{counted(table.width, 'field')}: the separator or skip_lines is wrong in the site's file (--site)",
        )
    return tuple(found)


def require_named(schema: TableSchema, *tables: Table | None) -> None:
    """Tables that have names are read by them, so the schema must not say that there are none.

    Raises: ConfigurationError that says what to do
    """
    table = next((one for one in tables if one is not None and one.names is not None), None)
    if table is not None and not schema.header:
        raise ConfigurationError(
            f"{table.where}: the schema says header = false, which is of text files without a line of names; the "
            "columns of Parquet files and of queries have names: the study's file must leave header out, and call the "
            "columns as they are (or name = '...' in the site's file, --site)"
        )


def own_columns(schema: TableSchema, table: Table, site: SiteTable) -> tuple[OwnColumn, ...]:
    """Return the site's own names of the schema's columns, in the schema's order, whatever the schema calls them.

    A query's names are the study's: they are told apart from those of every other query.

    Requires: a table that fits the schema
    """
    found = [place.index for place in places(schema, table, site, Findings())]
    if table.names is None:
        return tuple(OwnColumn(f"column {index + 1}", PLACES) for index in found)
    named_in = FIRST_LINE
    if table.query:
        named_in = f"query {hashlib.sha256(table.query.encode()).hexdigest()}"
    return tuple(OwnColumn(table.names[index], named_in) for index in found)


def _index(names: Sequence[str], wanted: str, column: ColumnSpec, findings: Findings) -> int | None:
    counts = Counter(names)
    if counts[wanted] > 1:
        findings.add(Problem.NAMED_TWICE, column.name, f"the file has {counts[wanted]} columns called {wanted!r}")
        return None
    if wanted in counts:
        return names.index(wanted)
    bare = [index for index, name in enumerate(names) if (m := _NAME_AND_UNIT.match(name)) and m["name"] == wanted]
    if len(bare) > 1:
        several = ", ".join(repr(names[index]) for index in bare)
        findings.add(
            Problem.NAMED_TWICE,
            column.name,
            f"the file has {several}: say which with name = '...' under [columns.{column.name}] in the site's file "
            "(--site)",
        )
        return None
    if bare:
        return bare[0]
    alike = [name for name in names if lookalike(name) == lookalike(wanted)]
    if alike:
        shown = _shown(alike[0], wanted)
        findings.add(
            Problem.ALMOST_COLUMN,
            column.name,
            f"the file has {shown}; if it is the same, say name = {shown} under [columns.{column.name}] in "
            "the site's file (--site)",
        )
    else:
        findings.add(Problem.NO_COLUMN, column.name, f"the file has no column {wanted!r} (nor '{wanted} [unit]')")
    return None


def _shown(name: str, wanted: str) -> str:
    """A name for the site's TOML file, its characters by number where it looks like ``wanted`` and has others."""
    plain = (unicodedata.is_normalized("NFKC", one) and one.isprintable() for one in (name, wanted))
    return repr(name) if all(plain) else json.dumps(name)


def _check_unit(column: ColumnSpec, of_site: SiteColumn, in_header: str | None, findings: Findings) -> None:
    unit = of_site.unit if of_site.unit is not None else in_header
    if unit is not None and _unit(unit) != _unit(column.unit) and not of_site.converts:
        meant = f"the schema's is {column.unit!r}" if column.unit else "the schema's column has none"
        findings.add(
            Problem.OTHER_UNIT,
            column.name,
            f"here it is in {unit!r}, {meant}: convert it, or say unit and factor under [columns.{column.name}] in the "
            "site's file (--site)",
        )
    if of_site.unit is not None and in_header is not None and _unit(in_header) != _unit(of_site.unit):
        findings.add(
            Problem.OTHER_UNIT,
            column.name,
            f"the file's first line says {in_header!r} and the site's file {of_site.unit!r}: one of them is wrong",
        )


def _unit(text: str) -> str:
    """A unit as it is compared: its micro sign may be a Greek letter, its square a superscript."""
    return unicodedata.normalize("NFKC", comparable(text))


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
