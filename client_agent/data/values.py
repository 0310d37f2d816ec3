"""A column's texts as numbers, by its type in the schema; what cannot be read is a finding.

number, integer     float64, NaN where missing
boolean, category   int64, the place of its class, -1 where missing
time                float64, seconds since 1970 (UTC where the text names no zone), NaN where missing
text                str, "" where missing
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from client_agent.data.findings import Findings, Mask, Problem
from client_agent.data.match import Place
from client_agent.data.site_table import SiteTable
from protocol.text_forms import comparable, lookalike
from protocol.wire.messages import ColumnRole, ColumnSpec, ColumnType

Values = NDArray[Any]
NO_CLASS: Final = -1
NUMBER: Final = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_WITH_COMMA: Final = r"^[+-]?\d*,\d+([eE][+-]?\d+)?$"
_ENDLESS: Final = r"^(?i)[+-]?(nan|inf|infinity)$"
_TWO_WORDS: Final = {"0": "false", "1": "true", "False": "false", "True": "true", "FALSE": "false", "TRUE": "true"}


@dataclass(frozen=True)
class Read:
    """``missing`` bool[n]: where the table has no value; of a value that cannot be read it has one."""

    values: Values
    missing: Mask


class ColumnReader:
    """Reads one column batch by batch."""

    def __init__(self, place: Place, marks: tuple[str, ...], site: SiteTable, findings: Findings) -> None:
        self.column: ColumnSpec = place.column
        self._place = place
        self._marks = pa.array(marks, pa.string())
        self._numeric_marks = _numeric(marks)
        self.index = place.index
        self._site = site
        self._findings = findings
        self._codes = _codes(place.column, place.site.values)

    def read(self, array: pa.Array, before: int) -> Read:
        """The values of a batch that follows ``before`` rows; what is wrong is a finding, and has no value either."""
        texts = pc.utf8_trim_whitespace(pc.cast(array, pa.string()))
        missing = _bools(pc.fill_null(pc.is_in(texts, value_set=self._marks), True)) | _bools(pc.is_null(texts))
        match self.column.type:
            case ColumnType.NUMBER | ColumnType.INTEGER:
                values = self._numbers(texts, missing, before, array.type)
            case ColumnType.BOOLEAN | ColumnType.CATEGORY:
                values = self._classes(texts, missing, before)
            case ColumnType.TIME:
                values = self._times(texts, missing, before, typed=pa.types.is_temporal(array.type))
            case ColumnType.TEXT:
                values = np.where(missing, "", texts.to_numpy(zero_copy_only=False).astype(str))
        return Read(values, missing)

    def _numbers(self, texts: pa.Array, missing: Mask, before: int, kind: pa.DataType) -> Values:
        readable = _matches(texts, NUMBER) & ~missing
        if self._site.decimal == "," and not pa.types.is_floating(kind):
            pointed = readable & _matches(texts, r"\.")  # 1.234 may be a thousand
            texts = pc.replace_substring(texts, ",", ".")
            readable = _matches(texts, NUMBER) & ~missing & ~pointed
        values = pc.cast(pc.if_else(pa.array(readable), texts, None), pa.float64()).to_numpy(zero_copy_only=False)
        numbers: NDArray[np.float64] = np.array(values, dtype=np.float64)
        missing |= np.isin(numbers, self._numeric_marks)
        numbers[missing] = np.nan
        endless = (_matches(texts, _ENDLESS) | np.isinf(numbers)) & ~missing
        comma = _matches(texts, _WITH_COMMA) & ~missing & ~readable
        self._wrong(Problem.NOT_FINITE, endless, before)
        self._wrong(Problem.DECIMAL_COMMA, comma, before, "say decimal = ',' in the site's file (--site)")
        self._wrong(Problem.NOT_A_NUMBER, ~(readable | missing | endless | comma), before, self._other_mark)
        numbers[endless] = np.nan
        if self._place.site.converts:
            numbers = numbers * self._place.site.factor + self._place.site.offset
        return self._checked_numbers(numbers, before)

    def _checked_numbers(self, numbers: NDArray[np.float64], before: int) -> Values:
        given = ~np.isnan(numbers)
        wrong = np.zeros(len(numbers), dtype=bool)
        if self.column.type is ColumnType.INTEGER:
            broken = given & (numbers != np.floor(numbers))
            self._wrong(Problem.NOT_WHOLE, broken, before)
            wrong |= broken
        if self.column.range is not None:
            least, most = self.column.range
            outside = given & ((numbers < least) | (numbers > most))
            unit = f" {self.column.unit}" if self.column.unit else ""
            self._wrong(Problem.OUT_OF_RANGE, outside, before, f"the schema allows {least:g} to {most:g}{unit}")
            wrong |= outside
        if self.column.role is ColumnRole.SURVIVAL_TIME:
            early = given & (numbers <= 0)
            self._wrong(Problem.OUT_OF_RANGE, early, before, "a time counts from the start and is above 0")
            wrong |= early
        numbers[wrong] = np.nan
        return numbers

    def _classes(self, texts: pa.Array, missing: Mask, before: int) -> Values:
        encoded = pc.dictionary_encode(pc.fill_null(texts, ""))
        written = encoded.dictionary.to_pylist()
        known = np.array([self._codes.get(text, NO_CLASS) for text in written], dtype=np.int64)
        codes: NDArray[np.int64] = known[encoded.indices.to_numpy(zero_copy_only=False)]
        undeclared = (codes == NO_CLASS) & ~missing
        if self.column.other is not None:
            self._wrong(Problem.COUNTED_AS_OTHER, undeclared, before)
            codes[undeclared] = self._codes[comparable(self.column.other)]
        else:
            values = self.column.values
            shown = ", ".join(values[:10]) + (", ..." if len(values) > 10 else "")
            alike = {lookalike(text) for text in written if text not in self._codes} & set(map(lookalike, values))
            self._wrong(Problem.UNDECLARED, undeclared, before, f"the schema has {shown}{self._alike if alike else ''}")
        codes[missing] = NO_CLASS
        return codes

    def _times(self, texts: pa.Array, missing: Mask, before: int, *, typed: bool) -> Values:
        given = "" if typed else self.column.format
        seconds = np.array([_seconds(text, given) for text in texts.to_pylist()], dtype=np.float64)
        seconds[missing] = np.nan
        how = f"written as {given}" if given else "ISO 8601, such as 2026-03-31, or say format in the schema"
        self._wrong(Problem.NOT_A_TIME, np.isnan(seconds) & ~missing, before, how)
        return seconds

    def _wrong(self, problem: Problem, wrong: Mask, before: int, detail: str = "") -> None:
        self._findings.add_rows(problem, self.column.name, wrong, before, detail)

    @property
    def _alike(self) -> str:
        return (
            "; some differ from these in capitals, spaces or characters that look alike: say which they are under "
            f"[columns.{self.column.name}.values] in the site's file (--site)"
        )

    @property
    def _other_mark(self) -> str:
        return "if it stands for a missing value, missing_marks in the schema names it"


def _codes(column: ColumnSpec, own: Mapping[str, str]) -> dict[str, int]:
    """Text in a file -> place of its class: declared texts first, then the same whole number written otherwise."""
    if not column.type.listed:
        return {}
    declared = dict(zip(map(comparable, column.values), column.class_of, strict=True))
    codes = dict(declared)
    for text, code in declared.items():
        for form in (f"{text}.0", text.removesuffix(".0")):
            codes.setdefault(form, code)
    if not column.categories:
        codes |= {word: declared[meant] for word, meant in _TWO_WORDS.items()}
    return codes | {comparable(text): declared.get(comparable(meant), NO_CLASS) for text, meant in own.items()}


def _seconds(text: str | None, given: str) -> float:
    try:
        time = datetime.strptime(text or "", given) if given else datetime.fromisoformat(text or "")
    except ValueError:
        return float("nan")
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _numeric(marks: tuple[str, ...]) -> NDArray[np.float64]:
    return np.array([float(mark) for mark in marks if re.match(NUMBER, mark)], dtype=np.float64)


def _matches(texts: pa.Array, pattern: str) -> Mask:
    return _bools(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


def _bools(array: pa.Array) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)
