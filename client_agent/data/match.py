"""Match the columns of a file to those of the schema, and their units."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from client_agent.data.findings import Findings, Problem
from client_agent.data.site_table import SiteColumn, SiteTable
from client_agent.data.source import Table
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnSpec, TableSchema
from protocol.summary.protection import FIRST_LINE, PLACES, OwnColumn
from protocol.text import comparable, counted, lookalike

_NAME_AND_UNIT: Final = re.compile(r"^(?P<name>.*?)\s*[\[(](?P<unit>[^\[\]()]*)[\])]$")


@dataclass(frozen=True)
class Place:
    """The place of a schema's column in the file, and its conversion into the schema's unit."""

    column: ColumnSpec
    index: int
    site: SiteColumn


def places(schema: TableSchema, table: Table, site: SiteTable, findings: Findings) -> tuple[Place, ...]:
    """The columns that were found, in the schema's order; what is missing or means something else is a finding."""
    if table.names is None:
        return _by_order(schema, table, site, findings)
    names = table.names
    found = []
    for column in schema.columns:
        of_site = site.of(column.name)
        own = comparable(of_site.name or column.name)
        index = _index(names, own, column, findings)
        if index is None:
            continue
        written = _NAME_AND_UNIT.match(names[index])
        in_header = written["unit"].strip() if written is not None and names[index] != own else None
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


def _by_order(schema: TableSchema, table: Table, site: SiteTable, findings: Findings) -> tuple[Place, ...]:
    if table.width != len(schema.columns):
        findings.add(
            Problem.COLUMN_COUNT,
            "",
            f"the schema says header = false, so a row has its {len(schema.columns)} columns in its order; found "
            f"{table.width}",
        )
        return ()
    found = []
    for index, column in enumerate(schema.columns):
        of_site = site.of(column.name)
        _check_unit(column, of_site, None, findings)
        found.append(Place(column, index, of_site))
    return tuple(found)


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
