"""A column's texts as numbers, by its type in the schema; what cannot be read is a finding.

number, integer     float64, NaN where missing
boolean, category   int64, the place of its class, -1 where missing
time                float64, seconds since 1970 (UTC where the text names no zone), NaN where missing
text                str, "" where missing
"""

from __future__ import annotations

import math
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
from client_agent.data.site_table import (
    DECIMAL_COMMA,
    ENDLESS,
    GROUPED,
    POINTED,
    THREE_AFTER_COMMA,
    NumberText,
    PointUse,
    SiteColumn,
    SiteTable,
    is_typed,
    limits,
    matches,
    notation,
)
from protocol.messages.control import ColumnRole, ColumnSpec, ColumnType, LimitRule
from protocol.text import comparable, lookalike

Values = NDArray[Any]
NO_CLASS: Final = -1
_TWO_WORDS: Final = {"0": "false", "1": "true", "False": "false", "True": "true", "FALSE": "false", "TRUE": "true"}
AMBIGUOUS_COMMA: Final = (
    "a comma before three digits may part thousands: say thousands = ',' (and decimal = '.') in the site's file "
    "(--site), or thousands = '' where the comma is the decimal sign"
)
_POINTS: Final = (
    "all points stand before three digits and larger numbers have none, so that they seem to part thousands: say "
    "thousands = '.' and decimal = ',' in the site's file (--site), or decimal = '.' where they are decimal"
)
_SIGN: Final = (
    "say in the site's file (--site) what parts them, thousands = ',', '.', ' ' or \"'\", and which sign is decimal"
)
_POINT: Final = "they hold a point: where it parts thousands, say thousands = '.' in the site's file (--site)"
_LIMIT: Final = "detection_limit in the schema says what it counts as: 'limit', 'half' or 'missing'"
_NEGATIVE: Final = "half of a negative limit lies above it: the schema's detection_limit cannot be 'half'"
_ALONE: Final = "a number stands alone, with - as its minus: take units, ranges and notes out of the column"
_BEGINS_AS_NUMBER: Final = "^[-+\u2013\u2014~]? *[0-9]"
_OTHER_MARK: Final = "if it stands for a missing value, say missing_marks in the site's file (--site) or the schema"


@dataclass(frozen=True)
class Place:
    """The place of a schema's column in the file, and its conversion into the schema's unit."""

    column: ColumnSpec
    index: int
    site: SiteColumn


class ColumnReader:
    """Reads one column batch by batch."""

    def __init__(self, place: Place, marks: tuple[str, ...], site: SiteTable, findings: Findings) -> None:
        self.column: ColumnSpec = place.column
        self._place = place
        self._marks = pa.array([*marks, *site.marks_of(place.column.name)], pa.string())
        self._form = site.numbers_of(place.column.name)
        self._numeric_marks = _numeric(marks, POINTED) | _numeric(site.marks_of(place.column.name), self._form)
        self._codes = _codes(place.column, place.site.values)
        self._numeric_codes = _numeric_codes(place.column, place.site.values, self._form)
        said = "decimal" in site.model_fields_set or place.site.decimal is not None
        self._points = None if said or self._form != POINTED else PointUse()
        self._format = place.column.format if place.site.format is None else place.site.format
        self.index = place.index
        self._findings = findings

    def read(self, array: pa.Array, before: int) -> tuple[Values, Mask]:
        """The values of a batch that follows ``before`` rows, and bool[n], where the table has none.

        What is wrong is a finding, and has no value either; it is not missing.
        """
        texts = pc.utf8_trim_whitespace(pc.cast(array, pa.string()))
        form = notation(array.type, self._form)
        self._points = None if is_typed(array.type) else self._points
        missing = _bools(pc.fill_null(pc.is_in(texts, value_set=self._marks), True)) | _bools(pc.is_null(texts))
        if self._numeric_marks and not self.column.type.listed:
            missing |= np.isin(form.read(texts), list(self._numeric_marks))
        match self.column.type:
            case ColumnType.NUMBER | ColumnType.INTEGER:
                values = self._numbers(texts, form, missing, before)
            case ColumnType.BOOLEAN | ColumnType.CATEGORY:
                values = self._classes(texts, form, missing, before)
            case ColumnType.TIME:
                values = self._times(texts, missing, before, typed=pa.types.is_temporal(array.type))
            case ColumnType.TEXT:
                texts, _ = form.pointed(texts)  # an id 1.010,0 is the one that a file with points calls 1010.0
                values = np.where(missing, "", texts.to_numpy(zero_copy_only=False).astype(str))
        return values, missing

    def close(self) -> None:
        """Say what only all batches of a text file show."""
        if self._points is not None and self._points.parts_thousands:
            self._findings.add(Problem.THOUSANDS, self.column.name, _POINTS, self._points.parted)

    def _numbers(self, texts: pa.Array, form: NumberText, missing: Mask, before: int) -> Values:
        """``missing`` is filled in, also with what is beyond a limit where that is missing."""
        texts, limited, below = limits(texts)
        numbers = form.read(texts)
        too_large = (matches(texts, ENDLESS) | np.isinf(numbers)) & ~missing
        self._wrong(Problem.NOT_FINITE, too_large, before)
        self._explain(texts, form, np.isnan(numbers) & ~missing & ~too_large, before)
        numbers[too_large | missing] = np.nan
        if self._points is not None:
            with np.errstate(over="ignore"):
                self._points.add(texts, numbers, self._in_range(numbers * 1000))
        if self._place.site.converts:
            numbers = self._converted(numbers, before)
        self._limit(numbers, limited, below ^ (self._place.site.factor < 0), missing, before)
        return self._checked_numbers(numbers, before)

    def _explain(self, texts: pa.Array, form: NumberText, unread: Mask, before: int) -> None:
        """Findings about texts that are no numbers: each has one, the likeliest."""
        if not unread.any():
            return
        comma = unread & (form.thousands is None) & matches(texts, THREE_AFTER_COMMA)
        pointed = unread & (form.decimal == "," and form.thousands != ".") & matches(texts, r"^[+-]?\d[\d.]*$")
        decimal = unread & ~comma & (form.decimal == "." and form.thousands != ",") & matches(texts, DECIMAL_COMMA)
        parted = unread & ~(comma | pointed | decimal) & matches(texts, GROUPED)
        self._wrong(Problem.THOUSANDS, comma, before, AMBIGUOUS_COMMA)
        self._wrong(Problem.NOT_A_NUMBER, pointed, before, _POINT)
        self._wrong(Problem.DECIMAL_COMMA, decimal, before, "say decimal = ',' in the site's file (--site)")
        self._wrong(Problem.THOUSANDS, parted, before, _SIGN)
        rest = unread & ~(comma | pointed | decimal | parted)
        more = rest & matches(texts, _BEGINS_AS_NUMBER)
        self._wrong(Problem.NOT_A_NUMBER, more, before, _ALONE)
        self._wrong(Problem.NOT_A_NUMBER, rest & ~more, before, _OTHER_MARK)

    def _in_range(self, numbers: NDArray[np.float64]) -> Mask:
        """Mark the numbers that the schema allows, as the file has them."""
        least, most = self.column.range or (-math.inf, math.inf)
        with np.errstate(over="ignore"):
            converted = numbers * self._place.site.factor + self._place.site.offset
        return (converted >= least) & (converted <= most)

    def _converted(self, numbers: NDArray[np.float64], before: int) -> NDArray[np.float64]:
        with np.errstate(over="ignore"):
            converted: NDArray[np.float64] = numbers * self._place.site.factor + self._place.site.offset
        too_large = np.isinf(converted)
        self._wrong(Problem.NOT_FINITE, too_large, before, "in the schema's unit")
        converted[too_large] = np.nan
        return converted

    def _limit(self, numbers: NDArray[np.float64], limited: Mask, below: Mask, missing: Mask, before: int) -> None:
        """Change numbers in place by the rule for detection limits; ``below`` only counts where ``limited``."""
        given = limited & ~np.isnan(numbers)
        match self.column.detection_limit:
            case None:
                self._wrong(Problem.BEYOND_LIMIT, given, before, _LIMIT)
                numbers[given] = np.nan
            case LimitRule.MISSING:
                missing |= given
                numbers[given] = np.nan
            case LimitRule.HALF:
                negative = given & below & (numbers < 0)
                self._wrong(Problem.BEYOND_LIMIT, negative, before, _NEGATIVE)
                numbers[given & below] /= 2
                numbers[negative] = np.nan

    def _checked_numbers(self, numbers: NDArray[np.float64], before: int) -> Values:
        checks: list[tuple[Problem, Mask, str]] = []
        if self.column.type is ColumnType.INTEGER:
            checks.append((Problem.NOT_WHOLE, numbers != np.floor(numbers), ""))
        if self.column.range is not None:
            least, most = self.column.range
            unit = f" {self.column.unit}" if self.column.unit else ""
            allowed = f"the schema allows {least:g} to {most:g}{unit}"
            checks.append((Problem.OUT_OF_RANGE, (numbers < least) | (numbers > most), allowed))
        if self.column.role is ColumnRole.SURVIVAL_TIME:
            checks.append((Problem.OUT_OF_RANGE, numbers <= 0, "a time counts from the start and is above 0"))
        given = ~np.isnan(numbers)
        for problem, wrong, detail in checks:
            self._wrong(problem, given & wrong, before, detail)
            numbers[wrong] = np.nan
        return numbers

    def _classes(self, texts: pa.Array, form: NumberText, missing: Mask, before: int) -> Values:
        encoded = pc.dictionary_encode(pc.fill_null(texts, ""))
        written = encoded.dictionary.to_pylist()
        numbers = form.read(encoded.dictionary).tolist()
        known = [
            self._codes.get(text, self._numeric_codes.get(number, NO_CLASS))
            for text, number in zip(written, numbers, strict=True)
        ]
        places = encoded.indices.to_numpy(zero_copy_only=False)
        codes: NDArray[np.int64] = np.array(known, dtype=np.int64)[places]
        missing |= (codes == NO_CLASS) & np.isin(numbers, list(self._numeric_marks))[places]
        undeclared = (codes == NO_CLASS) & ~missing
        if self.column.other is not None:
            self._wrong(Problem.COUNTED_AS_OTHER, undeclared, before)
            codes[undeclared] = self._codes[comparable(self.column.other)]
        else:
            values = self.column.values
            shown = ", ".join(values[:10]) + (", ..." if len(values) > 10 else "")
            shown += self._other_sign(encoded.dictionary.filter(pa.array(np.array(known) == NO_CLASS)), form)
            alike = {lookalike(text) for text in written if text not in self._codes} & set(map(lookalike, values))
            self._wrong(Problem.UNDECLARED, undeclared, before, f"the schema has {shown}{self._alike if alike else ''}")
        codes[missing] = NO_CLASS
        return codes

    def _times(self, texts: pa.Array, missing: Mask, before: int, *, typed: bool) -> Values:
        given = "" if typed else self._format
        times = np.array([seconds(text, given) for text in texts.to_pylist()], dtype=np.float64)
        times[missing] = np.nan
        said = f"say format under [columns.{self.column.name}] in the site's file (--site)"
        how = f"written as {given}" if given else f"ISO 8601, such as 2026-03-31, or {said}"
        self._wrong(Problem.NOT_A_TIME, np.isnan(times) & ~missing, before, how)
        return times

    def _wrong(self, problem: Problem, wrong: Mask, before: int, detail: str = "") -> None:
        self._findings.add_rows(problem, self.column.name, wrong, before, detail)

    def _other_sign(self, texts: pa.Array, form: NumberText) -> str:
        """A hint where texts that are no category would be with the other decimal sign."""
        sign = "." if form.decimal == "," else ","
        if sign == form.thousands or not np.isin(NumberText(sign).read(texts), list(self._numeric_codes)).any():
            return ""
        return f"; for numbers such as 1{sign}0 say decimal = {sign!r} in the site's file (--site)"

    @property
    def _alike(self) -> str:
        return (
            "; some differ from these in capitals, spaces or characters that look alike: say which they are under "
            f"[columns.{self.column.name}.values] in the site's file (--site)"
        )


def _codes(column: ColumnSpec, own: Mapping[str, str]) -> dict[str, int]:
    """Text in a file -> place of its class: as the site's file says, then as it is declared."""
    if not column.type.listed:
        return {}
    declared = dict(zip(map(comparable, column.values), column.class_of, strict=True))
    words = {} if column.categories else {word: declared[meant] for word, meant in _TWO_WORDS.items()}
    return (
        declared | words | {comparable(text): declared.get(comparable(meant), NO_CLASS) for text, meant in own.items()}
    )


def _numeric_codes(column: ColumnSpec, own: Mapping[str, str], form: NumberText) -> dict[float, int]:
    """Number in a file -> place of its class, for "1.0", "1,0" and "01" where 1 is declared.

    A number that is declared in two ways, "1" and "01", is none of the two.
    """
    codes, mapped = _codes(column, own), [comparable(text) for text in own]
    found = dict[float, int]()
    for texts, form_of in ([text for text in codes if text not in mapped], POINTED), (mapped, form):
        ways: dict[float, set[int]] = {}
        for text, number in zip(texts, form_of.read(pa.array(texts, pa.string())).tolist(), strict=True):
            ways.setdefault(number, set()).add(codes[text])
        found |= {number: min(places) if len(places) == 1 else NO_CLASS for number, places in ways.items()}
    return {number: place for number, place in found.items() if math.isfinite(number)}


def _numeric(marks: tuple[str, ...], form: NumberText) -> frozenset[float]:
    return frozenset(number for number in form.read(pa.array(marks, pa.string())).tolist() if math.isfinite(number))


def seconds(text: str | None, given: str) -> float:
    """Since 1970, of a time as ``given`` writes it, "" for ISO 8601; NaN where it is none."""
    try:
        time = datetime.strptime(text or "", given) if given else datetime.fromisoformat(text or "")
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, re.error):  # re.error: a format that names one part twice
        return float("nan")


def _bools(array: pa.Array) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)
