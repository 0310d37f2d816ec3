"""The peculiarities of one site's table: how its file is written, its own names of columns, their units.

A TOML file of the site's own, which stays there; everything has a default, so most sites need none. Its keys are in
docs/preparing_data.md, "What differs at a site". A column's key is the schema's name.

A number's text has a decimal sign, and a sign that parts its thousands. A comma before exactly three digits can be
either. Where a site says ``decimal = ","`` and nothing of thousands, "1,200" is no number: 1.2 and 1200 would both be
guesses.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from host.frozen import Frozen
from host.settings import read_text
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnSpec, ColumnType, TableSchema
from protocol.text import comparable

Mask = NDArray[np.bool_]
Numbers = NDArray[np.float64]
SPACES: Final = " \u00a0\u2009\u202f"
APOSTROPHES: Final = "'\u2019"
_SIGNS: Final = {",": ",", ".": r"\.", " ": f"[{SPACES}]", "'": f"[{APOSTROPHES}]"}
"""The values of ``thousands`` in a site's file, and the expression of all characters that it stands for."""
_ANY_SIGN: Final = f"[,.{SPACES}{APOSTROPHES}]"
_MINUS: Final = "\u2212"
_EXPONENT: Final = r"([eE][+-]?\d+)?"
ENDLESS: Final = r"^(?i)[+-]?(nan|inf|infinity)$"
DECIMAL_COMMA: Final = rf"^[+-]?\d*,\d+{_EXPONENT}$"
"""Numbers, if a comma were the decimal sign."""
THREE_AFTER_COMMA: Final = r"^[+-]?[1-9]\d{0,2},\d{3}$"
"""A comma that parts a thousand or is the decimal sign."""
_THREE_AFTER_POINT: Final = r"^[+-]?[1-9]\d{0,2}\.\d{3}$"
_UNDER_THOUSAND: Final = r"^[+-]?\d{1,3}$"
GROUPED: Final = rf"^[+-]?\d{{1,3}}({_ANY_SIGN}\d{{2,3}})*{_ANY_SIGN}\d{{3}}([.,]\d*)?$"
"""Texts that look like numbers whose thousands are parted, by whatever sign."""
_LIMIT: Final = f"^(<=?|>=?|≤|≥|&lt;=?|&gt;=?|&le;|&ge;)[{SPACES}]*"
_BELOW: Final = "^(<|≤|&l)"


@dataclass(frozen=True)
class NumberText:
    """``thousands`` None: nobody says; "": nothing parts them."""

    decimal: str = "."
    thousands: str | None = None

    def pointed(self, texts: pa.Array) -> tuple[pa.Array, Mask]:
        """The texts, numbers as Python writes them, and bool[n], which are numbers."""
        plain, numbers = _with_minus(texts), matches(texts, self.pattern)
        if self.decimal == "," and self.thousands is None:
            numbers &= ~matches(texts, THREE_AFTER_COMMA)
        if self.thousands:
            plain = pc.replace_substring_regex(plain, _SIGNS[self.thousands], "")
        if self.decimal == ",":
            plain = pc.replace_substring(plain, ",", ".")
        return pc.if_else(pa.array(numbers), plain, texts), numbers

    def read(self, texts: pa.Array) -> Numbers:
        """float64, NaN where a text is no number, infinite where it is too large a one."""
        plain, numbers = self.pointed(texts)
        found = pc.cast(pc.if_else(pa.array(numbers), plain, None), pa.float64())
        return np.array(found.to_numpy(zero_copy_only=False), dtype=np.float64)

    @cached_property
    def pattern(self) -> str:
        """Regular expression of a whole text that is a number, or an ambiguous one."""
        point, whole = re.escape(self.decimal), r"\d+"
        if self.thousands:
            sign = _SIGNS[self.thousands]
            whole = rf"(\d+|[1-9]\d{{0,2}}({sign}\d{{2,3}})*{sign}\d{{3}})"
        return rf"^[+-]?({whole}({point}\d*)?|{point}\d+){_EXPONENT}$"


POINTED: Final = NumberText()


def is_typed(kind: pa.DataType) -> bool:
    """Tell whether a column's values are numbers already, which no site's notation concerns."""
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def notation(kind: pa.DataType, written: NumberText) -> NumberText:
    """The form in which a column's values are read as text: a site's own, unless they are numbers already."""
    return POINTED if is_typed(kind) else written


@dataclass
class PointUse:
    """Tells a point that parts thousands, over a column's batches: 3.131 beside 562.

    Every number has a point before exactly three digits, at least two of them, or is whole and below 1000, and a whole
    one is larger than all others are as decimals. A measurement of three decimals has no such numbers beside it.
    """

    parted: int = 0
    largest_parted: float = 0.0
    largest_whole: float = 0.0
    ruled_out: bool = False

    def add(self, texts: pa.Array, numbers: Numbers, thousandfold: Mask) -> None:
        """Texts and what they are as decimals, NaN where nothing counts; ``thousandfold``: it may be 1000 times that.

        A decimal of an impossible thousandfold rules the column out.
        """
        if self.ruled_out:
            return
        given = ~np.isnan(numbers)
        pointed = given & matches(texts, _THREE_AFTER_POINT)
        whole = given & matches(texts, _UNDER_THOUSAND)
        self.ruled_out = bool((given & ~pointed & ~whole).any() or (pointed & ~thousandfold).any())
        self.parted += int(np.count_nonzero(pointed))
        self.largest_parted = np.abs(numbers[pointed]).max(initial=self.largest_parted)
        self.largest_whole = np.abs(numbers[whole]).max(initial=self.largest_whole)

    @property
    def parts_thousands(self) -> bool:
        return not self.ruled_out and self.parted > 1 and self.largest_whole > self.largest_parted


def thousands_sign(written: str) -> str:
    """The sign that a site's file names, by any of its characters. Raises: ValueError"""
    for sign, meant in (("", ""), (",", ","), (".", "."), (" ", SPACES), ("'", APOSTROPHES)):
        if written == sign or (written and written in meant):
            return sign
    raise ValueError("thousands are parted by ',', '.', ' ', \"'\" or, with '', by nothing")


def limits(texts: pa.Array) -> tuple[pa.Array, Mask, Mask]:
    """Texts such as "<5" without their sign; bool[n], which had one; bool[n], which are below it."""
    limited = matches(texts, _LIMIT)
    if not limited.any():
        return texts, limited, limited
    return pc.replace_substring_regex(texts, _LIMIT, ""), limited, matches(texts, _BELOW)


def _with_minus(texts: pa.Array) -> pa.Array:
    return pc.replace_substring(texts, _MINUS, "-")


def matches(texts: pa.Array, pattern: str) -> Mask:
    """bool[n], false for a null; a minus sign may be Unicode's own."""
    found = pc.fill_null(pc.match_substring_regex(_with_minus(texts), pattern), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)


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


class SiteColumn(Frozen):
    """One column as this site has it. ``unit`` None: the schema's, unless the file's first line says another.

    ``decimal`` and ``thousands`` None: the table's. ``format`` None: the schema's, "": ISO 8601. ``missing_marks`` hold
    beside all others.
    """

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


class SiteTable(Frozen):
    """The whole file; ``columns`` by the schema's names. ``thousands`` None: it does not say."""

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
