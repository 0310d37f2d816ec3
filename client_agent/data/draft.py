"""A first draft of a schema from a table, for a person to edit: types, ranges, categories, marks of missing values.

A range is widened to round numbers, since a study's schema is read by others, and the smallest value is somebody's.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from client_agent.data.findings import Findings
from client_agent.data.site_table import (
    DECIMAL_COMMA,
    GROUPED,
    PLAIN,
    POINTED,
    THREE_AFTER_COMMA,
    NumberText,
    SiteTable,
    limits,
    matches,
    notation,
)
from client_agent.data.source import open_table, texts_of
from client_agent.data.values import AMBIGUOUS_COMMA, seconds
from protocol.errors import ConfigurationError
from protocol.text import MAX_NAME_CHARACTERS, comparable

_MARKS: Final = ("?", "NA", "N/A", "na", "n/a", "NULL", "null", "None", "nan", "NaN", ".", "-")
_MINUS_NINES: Final = ("-9", "-99", "-999")
_MOST_CATEGORIES: Final = 12
_MOST_DISTINCT: Final = 10_000
_RARE: Final = 10
_WIDEST: Final = 1e308
_LARGEST: Final = sys.float_info.max
_INFINITE: Final = r"^(?i)[+-]?inf(inity)?$"
_DATE: Final = re.compile(r"^\d{4}-\d{2}-\d{2}([T ].*)?$")
_WHOLE: Final = r"^([+-]?\d+)(\.0*)?$"
_UNNAMED: Final = re.compile(r"Unnamed: \d+")
"""The name that pandas gives a column without one."""
_LEAST_SERIES: Final = 3
_YEARS: Final = (1900, 2100)


@dataclass
class _Seen:
    """A column's content: how often each text, as long as there are few, and the numbers' least and most.

    ``words`` are neither numbers nor usual marks of a missing value.
    """

    name: str
    place: int
    site: SiteTable
    texts: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    numbers: int = 0
    limits: int = 0
    foreign: int = 0
    words: int = 0
    whole: bool = True
    least: float = math.inf
    most: float = -math.inf
    many: bool = False

    def add(self, column: pa.Array) -> None:
        """Raises: ConfigurationError for a number that can be read in two ways"""
        texts = pc.fill_null(pc.utf8_trim_whitespace(pc.cast(column, pa.string())), "")
        texts = pc.if_else(pc.is_in(texts, pa.array(self.site.marks_of(self.name), pa.string())), "", texts)
        self.rows += len(texts)
        texts, numeric = self._pointed(texts, notation(column.type, self.site.numbers_of(self.name)))
        self.numbers += len(numeric)
        self.whole &= all(pc.match_substring_regex(numeric, _WHOLE).to_pylist())
        values = pc.cast(numeric, pa.float64()).filter(pc.invert(pc.is_in(numeric, pa.array(_MINUS_NINES))))
        values = values.filter(pc.is_finite(values))
        if len(values):
            low_high = pc.min_max(values)
            self.least = min(self.least, low_high["min"].as_py())
            self.most = max(self.most, low_high["max"].as_py())
        for one in pc.value_counts(texts).to_pylist():
            if one["values"] in self.texts or len(self.texts) < _MOST_DISTINCT:
                self.texts[one["values"]] += one["counts"]
            else:
                self.many = True

    def _pointed(self, texts: pa.Array, form: NumberText) -> tuple[pa.Array, pa.Array]:
        """The texts as a file with decimal points has them, and those that are numbers, limits without their sign."""
        if form.decimal == "," and form.thousands is None and matches(texts, THREE_AFTER_COMMA).any():
            raise ConfigurationError(f"column {self.place}: {AMBIGUOUS_COMMA}")
        bare, limited, _ = limits(texts)
        plain, numbers = form.pointed(bare)
        self.limits += int(np.count_nonzero(limited & numbers))
        self.foreign += int(np.count_nonzero(~numbers & (matches(texts, DECIMAL_COMMA) | matches(texts, GROUPED))))
        infinite = matches(bare, _INFINITE)
        self.whole &= not infinite.any()
        marks = pc.is_in(texts, pa.array(["", *_MARKS])).to_numpy(zero_copy_only=False)
        self.words += int(np.count_nonzero(~(numbers | infinite | marks)))
        plain = pc.replace_substring_regex(plain, _WHOLE, r"\1")
        return pc.if_else(pa.array(numbers & ~limited), plain, texts), plain.filter(pa.array(numbers))

    @property
    def is_named(self) -> bool:
        nameable = self.name.isprintable() and 0 < len(self.name) <= MAX_NAME_CHARACTERS
        return nameable and not _UNNAMED.fullmatch(self.name)

    @property
    def is_word(self) -> bool:
        """Tell whether its name is no value that a table without names could begin with."""
        return not _is_value(self.name, self.site) and not _DATE.match(self.name)

    @property
    def holds_no_words(self) -> bool:
        """Tell whether there are values, all of them numbers or dates."""
        texts = [text.lstrip("<>=≤≥ ") for text in self.given]
        return bool(texts) and all(re.match(POINTED.pattern, text) or _DATE.match(text) for text in texts)

    @property
    def marks(self) -> set[str]:
        """Texts that stand for a missing value: the usual ones, and -9 where every other number is 0 or more."""
        minus = {mark for mark in _MINUS_NINES if mark in self.texts and self.least >= 0}
        return {mark for mark in _MARKS if mark in self.texts and (self.numbers or mark not in ".-")} | minus

    @property
    def is_time(self) -> bool:
        """Tell whether there are values, all of them dates."""
        given, form = self.given, self.site.of(self.name).format
        return bool(given) and all(_is_date(text, form) for text in given)

    @property
    def given(self) -> dict[str, int]:
        """Texts that are values, most frequent first."""
        return {text: count for text, count in self.texts.most_common() if text and text not in self.marks}


def draft(path: Path, site: SiteTable, target: str | None, *, header: bool | None = None) -> str:
    """The text of a ``[schema]``. Without a ``target`` the last column is taken. Raises: ConfigurationError"""
    findings = Findings()
    table = open_table(path, site, findings, header=header is not False)
    names_read = table.names or tuple(f"column{place + 1}" for place in range(table.width))
    seen = [_Seen(name, place, site) for place, name in enumerate(names_read, start=1)]
    for batch in table.batches:
        for found, column in zip(seen, batch.columns, strict=True):
            found.add(texts_of(column, found.name))
    named = header if header is not None else _has_names(seen)
    if not named and table.names is not None:
        for place, found in enumerate(seen, start=1):
            found.add(pa.array([found.name], pa.string()))
            found.name = f"column{place}"
    if not seen[0].rows:
        raise ConfigurationError(f"{path}: no row of data, so there is nothing to draft a schema from")
    counts = Counter(found.name for found in seen if found.is_named)
    names = [name for name, times in counts.items() if times == 1]
    aim = comparable(target) if target else (names or [""])[-1]
    if aim not in names:
        raise ConfigurationError(f"{path}: no column is called {aim!r}; there are {', '.join(names) or 'no names'}")
    if len(names) == 1:
        raise ConfigurationError(
            f"{path}: a schema needs a feature and a target, and the only column with a name is {aim!r}"
        )
    if next(found for found in seen if found.name == aim).is_time:
        raise ConfigurationError(f"{path}: column {aim!r} holds dates: say --target NAME, the column to be predicted")
    marks = sorted({mark for found in seen for mark in found.marks})
    notes = [f"# left out: {finding.text}" for finding in findings]
    drafts = [
        _column(found, is_target=found.name == aim)
        if counts[found.name] == 1
        else f"# column {place} is left out: {'its name is there twice' if counts[found.name] else 'it has no name'}"
        for place, found in enumerate(seen, start=1)
    ]
    return "\n\n".join([_head(path, named=named, marks=marks), *notes, *drafts]) + "\n"


def _has_names(seen: list[_Seen]) -> bool:
    """Does the first line name the columns? A word above numbers or dates does, a value among the others does not."""
    if any(found.is_word and found.holds_no_words for found in seen):
        return True
    counted = [found for found in seen if re.match(POINTED.pattern, found.name)]
    numbers = [float(found.name) for found in counted]
    steps = {after - before for before, after in pairwise(numbers)}
    if steps in ({1.0}, {-1.0}) and all(map(_is_year_above_others, counted)):
        return True
    if len(numbers) >= _LEAST_SERIES and len(steps) == 1 and all(one.is_integer() for one in (*numbers, *steps)):
        # places of columns, or years: as values they would come again below
        return numbers[:2] == [0, 1] or (steps != {0} and not any(found.name in found.texts for found in seen))
    return not numbers and not any(found.name in found.texts for found in seen if found.is_word)


def _is_year_above_others(found: _Seen) -> bool:
    """Tell whether a first line's number is a year and no number below it is one."""
    first, last = _YEARS
    years_below = found.least <= last and found.most >= first
    return first <= float(found.name) <= last and found.numbers > 0 and not years_below


def _head(path: Path, *, named: bool, marks: list[str]) -> str:
    lines = [
        f"# A draft from {path.name}: read every line, give names and units, and widen ranges to what can be right.",
        "# All sites and both operators read the schema: it must not say what a single patient has.",
        "[schema]",
        *([] if named else ["header = false"]),
        *([f"missing_marks = {_toml(marks)}"] if marks else []),
        'scaling = "standard"',
        "[schema.split]",
        "test = 0.2",
        "seed = 1",
    ]
    return "\n".join(lines)


def _column(found: _Seen, *, is_target: bool) -> str:
    given = found.given
    lines = ["[[schema.columns]]", f"name = {_toml(found.name)}"]
    if not given:
        return _commented([*lines, "# no value at all: leave it out"])
    few = len(given) <= _MOST_CATEGORIES and not found.many
    numeric = found.least <= found.most and not found.words
    if found.is_time:
        lines += ['type = "time"', 'role = "observed_at"']
    elif found.foreign and found.numbers + found.foreign >= sum(given.values()):
        return _commented([*lines, "# numbers of another form: a site's file (--site) says decimal and thousands"])
    elif len(given) > 1 and few and (not numeric or found.whole) and not found.limits:
        lines += _listed(found, is_target=is_target)
    elif numeric:
        whole = found.whole and not found.limits
        lines += [f'type = "{"integer" if whole else "number"}"', 'unit = ""', f"range = {_round_range(found)}"]
        if found.limits:
            lines.append('detection_limit = "half"  # what "<5" counts as: the "limit", "half" of it, or "missing"')
    elif len(given) * 2 > found.rows or found.many:
        lines += ['type = "text"', 'role = "patient"', "# if it is a patient's id; else leave it out"]
        return "\n".join(lines) if "id" in found.name.lower() or "patient" in found.name.lower() else _commented(lines)
    else:
        return _commented([*lines, f"# {len(given)} different texts: a category of few values, or leave it out"])
    if is_target:
        lines.append('role = "target"')
    if found.rows > sum(given.values()) and 'role = "observed_at"' not in lines:
        lines.append(_missing_rule(lines, is_target=is_target))
    return "\n".join(lines)


def _listed(found: _Seen, *, is_target: bool) -> list[str]:
    categories = sorted(found.given, key=lambda text: (not _is_value(text, PLAIN), _order(text)))
    kind = "boolean" if len(categories) == 2 and not is_target else "category"
    lines = [f'type = "{kind}"', f"categories = {_toml(categories)}"]
    if is_target:
        lines.append(f"labels = {_toml(categories)}  # what the classes are called; equal labels are one class")
    if min(found.given.values()) < _RARE:
        lines.append(f"# some of them in fewer than {_RARE} rows: join them under one label, or with other = ...")
    return lines


def _missing_rule(lines: list[str], *, is_target: bool) -> str:
    if is_target:
        return 'missing = "drop_row"'
    return 'missing = "category"' if 'type = "category"' in lines else 'missing = "indicator"'


def _round_range(found: _Seen) -> str:
    """Outwards to one digit of the width."""
    width = min(found.most - found.least, _WIDEST)
    least = 1 if found.whole else 1e-9
    step = 10.0 ** math.floor(math.log10(max(width, abs(found.most), least)))
    low, high = math.floor(found.least / step) * step, math.ceil(found.most / step) * step
    ends = (low, high if high > low else low + step)
    return f"[{', '.join(f'{end:g}' if math.isfinite(end) else repr(math.copysign(_LARGEST, end)) for end in ends)}]"


def _order(text: str) -> tuple[float, str]:
    return (float(text) if re.match(POINTED.pattern, text) else 0.0, text)


def _is_value(text: str, site: SiteTable) -> bool:
    numbers = site.numbers_of("")
    return bool(re.match(numbers.pattern, text)) or text in ("", *_MARKS, *site.missing_marks)


def _is_date(text: str, given: str | None) -> bool:
    return not math.isnan(seconds(text, given)) if given else bool(_DATE.match(text))


def _commented(lines: list[str]) -> str:
    return "\n".join(line if line.startswith("#") else f"# {line}" for line in lines)


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
