"""The peculiarities of one site's table: how its file is written, its own names of columns, their units.

A TOML file of the site's own, which stays there; everything has a default, so most sites need none.

    separator = ";"
    decimal = ","
    thousands = "."            # 1.200 is 1200; "" says that nothing parts thousands
    missing_marks = ["k.A."]   # beside the schema's
    encoding = "latin-1"
    skip_lines = 2             # lines above the names
    [columns.chol]             # the schema's name; a column can have its own decimal, thousands and missing_marks
    name = "Cholesterin"       # what this file calls it
    unit = "mmol/l"            # value * factor + offset is in the schema's unit
    factor = 38.67
    [columns.sex.values]       # what this file writes: the schema's category
    w = "0"
    m = "1"
    [columns.seen]
    format = "%d.%m.%Y"        # how this file writes dates, as strptime has it
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from client_agent.data.number_text import NumberText, thousands_sign
from host.settings import read_text
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnSpec, ColumnType, TableSchema
from protocol.text import comparable

Thousands = Annotated[str, AfterValidator(thousands_sign)]
_NUMERIC: Final = frozenset({ColumnType.NUMBER, ColumnType.INTEGER})
_LISTED: Final = frozenset({ColumnType.BOOLEAN, ColumnType.CATEGORY})
_KEYS_OF: Final = {
    "factor": _NUMERIC,
    "offset": _NUMERIC,
    "thousands": _NUMERIC,
    "values": _LISTED,
    "format": frozenset({ColumnType.TIME}),
}
"""Keys that say nothing of a column of another type."""

SEPARATOR: Final = r"[^\w\"\r\n\0.+-]"
"""A character that stands in no number and no word."""


_OF_PYTHON: Final = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined"})
"""Encodings of names and of programs' text, which no table is written in."""


def _known(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise ValueError("Python knows no such encoding; take utf-8, latin-1, cp1252 or utf-16") from None
    try:
        "".encode(encoding)
    except (LookupError, UnicodeError):
        name = "undefined"
    if name in _OF_PYTHON:
        raise ValueError("it is no encoding of text in tables; take utf-8, latin-1, cp1252 or utf-16")
    return encoding


def _parts(separator: str) -> str:
    if not re.fullmatch(SEPARATOR, separator):
        raise ValueError("a separator is one character that stands in no number and no word, such as ';' or '\\t'")
    return separator


def _compared(columns: Mapping[str, SiteColumn]) -> Mapping[str, SiteColumn]:
    found = {comparable(name): column for name, column in columns.items()}
    if len(found) < len(columns):
        raise ValueError("two columns have one name, written with other characters that look the same")
    return found


class SiteColumn(BaseModel):
    """One column as this site has it. ``unit`` None: the schema's, unless the file's first line says another.

    ``decimal`` and ``thousands`` None: the table's. ``format`` None: the schema's, "": ISO 8601. ``missing_marks`` hold
    beside all others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str | None = None
    unit: str | None = None
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    offset: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    values: Mapping[str, str] = {}
    decimal: Literal[".", ","] | None = None
    thousands: Thousands | None = None
    missing_marks: tuple[str, ...] = ()
    format: str | None = None

    @property
    def converts(self) -> bool:
        return (self.factor, self.offset) != (1.0, 0.0)

    @model_validator(mode="after")
    def _consistent(self) -> SiteColumn:
        if self.converts and self.unit is None:
            raise ValueError("factor and offset convert from another unit: say which, with unit")
        if self.factor == 0:
            raise ValueError("factor 0 makes every value the same")
        return self


class SiteTable(BaseModel):
    """The whole file; ``columns`` by the schema's names. ``thousands`` None: it does not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    encoding: Annotated[str, AfterValidator(_known)] = "utf-8"
    separator: Annotated[str, AfterValidator(_parts)] = ","
    decimal: Literal[".", ","] = "."
    thousands: Thousands | None = None
    missing_marks: tuple[str, ...] = ()
    skip_lines: Annotated[int, Field(ge=0, strict=True)] = 0
    columns: Annotated[Mapping[str, SiteColumn], AfterValidator(_compared)] = {}

    def of(self, name: str) -> SiteColumn:
        return self.columns.get(comparable(name), _AS_IT_IS)

    def numbers_of(self, name: str) -> NumberText:
        """Notation of the numbers in a column."""
        own = self.of(name)
        return NumberText(own.decimal or self.decimal, self.thousands if own.thousands is None else own.thousands)

    def marks_of(self, name: str) -> tuple[str, ...]:
        """This site's own marks of a missing value in a column."""
        return tuple(map(comparable, (*self.missing_marks, *self.of(name).missing_marks)))

    @model_validator(mode="after")
    def _consistent(self) -> SiteTable:
        for name in ("", *self.columns):
            numbers = self.numbers_of(name)
            if numbers.decimal == numbers.thousands:
                where = f"column {name!r}: " if name else ""
                raise ValueError(
                    f"{where}decimal and thousands are both {numbers.decimal!r}: name the sign that stands before a "
                    "fraction, and the one that parts thousands ('' for none)"
                )
        return self


_AS_IT_IS: Final = SiteColumn()
PLAIN: Final = SiteTable()
"""A comma-separated file in UTF-8 whose columns are called as in the schema."""


def read_site_table(path: Path | None, schema: TableSchema | None) -> SiteTable:
    """The site's file, or what holds without one. Raises: ConfigurationError, also for columns of no schema"""
    if path is None:
        return PLAIN
    table = validated(SiteTable, parse_toml(read_text(path), str(path)), str(path))
    if schema is None:
        return table
    known = [comparable(column.name) for column in schema.columns]
    unknown = next((name for name in table.columns if name not in known), None)
    if unknown is not None:
        raise ConfigurationError(f"{path}: the schema has no column {unknown!r}; its columns are {', '.join(known)}")
    for column in schema.columns:
        _require_meaning(column, table.of(column.name), path)
    return table


def _require_meaning(column: ColumnSpec, own: SiteColumn, path: Path) -> None:
    """Raises: ConfigurationError for a key that a column of this type cannot have, or a category that is none"""
    where = f"{path}: columns.{column.name}"
    vain = next(
        (key for key, types in _KEYS_OF.items() if key in own.model_fields_set and column.type not in types), ""
    )
    if vain:
        types = " or ".join(sorted(_KEYS_OF[vain]))
        raise ConfigurationError(f"{where}.{vain}: the schema's column has type {column.type.value}, not {types}")
    known = set(map(comparable, column.values))
    unknown = next((meant for meant in own.values.values() if comparable(meant) not in known), None)
    if unknown is not None:
        raise ConfigurationError(
            f"{where}.values: the schema has no category {unknown!r}; it has {', '.join(column.values)}"
        )
