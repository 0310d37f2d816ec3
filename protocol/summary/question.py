"""The question that a summary or class counts put to one column, so that a site answers it once (docs/protocol.md 17).

The same question about the same values has the same answer, since what is rounded is rounded by a key. The difference
of two answers, to other ranges, bins, categories or rows, counts the patients between them exactly.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from protocol.summary.layout import Layout, Numeric
from protocol.summary.protect import METHOD, Codes, Numbers, Protection
from protocol.text_forms import comparable

FIRST_LINE: Final = "first line"
PLACES: Final = "places"
_TELLING: Final = 10
"""Columns of fewer different values are often the same by chance; no sum of theirs is more than protected counts."""


_UNIT: Final = re.compile(r"\s*[\[(][^\[\]()]*[\])]$")
_PLACE: Final = re.compile(r"column \d+")
_CLASSES_OF: Final = "classes of "
_COUNTED: Final = ("class counts",)


@dataclass(frozen=True)
class OwnColumn:
    """A column as the site's own table has it. ``named_in``: what gave the name, so that names can be compared.

    ``first line`` (of a CSV file, or a Parquet file's columns), ``places`` of a file without one, ``query DIGEST``,
    whose names are the requester's; empty where only the study's name is known.
    """

    name: str
    named_in: str


class Question(BaseModel):
    """One column: as the site's own file calls it, and as the study does; stays at the site.

    ``named_in`` as of an :class:`OwnColumn`; empty also in what an older release wrote down, and without a schema.

    ``asked`` is all that the answer depends on beside the values, a line each. ``values`` is a keyed digest of the
    values, row by row; ``order`` one of their order, the same for a copy in another unit, empty where it tells little.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    column: str
    named: str
    asked: tuple[str, ...]
    values: str
    order: str = ""
    named_in: str = ""

    @property
    def answer(self) -> tuple[tuple[str, ...], str]:
        """The arguments that the answer is a function of."""
        return self.asked, self.values

    def about_the_same(self, other: Question) -> bool:
        """One column, or a copy of it under another name, or one that may be it for all that is known."""
        if self.order != "" and self.order == other.order:
            return True
        if (self.asked == _COUNTED) is not (other.asked == _COUNTED):
            return False
        if self.named_in == other.named_in != "":
            return comparable(self.column) == comparable(other.column)
        return self._may_be(other)

    def _may_be(self, other: Question) -> bool:
        """Compare names that different releases gave: an older one wrote down the study's name or place, with and
        without the unit of the first line.
        """
        if not {self.named_in, other.named_in} <= {"", FIRST_LINE}:
            return True
        names = [_UNIT.sub("", comparable(one.column.removeprefix(_CLASSES_OF))) for one in (self, other)]
        return names[0] == names[1] or any(
            one.named_in == "" and (not name or _PLACE.fullmatch(name) is not None)
            for one, name in zip((self, other), names, strict=True)
        )


def summary_questions(
    layout: Layout, own: Sequence[OwnColumn], columns: Sequence[Numbers | Codes], protection: Protection
) -> tuple[Question, ...]:
    """A question per column; ``own`` are the columns in the site's file, in the layout's order."""
    common = (f"rounded_to = {protection.rounded_to}", f"least_examples = {protection.least_examples}", METHOD)
    found = []
    for column, of_site, values in zip(layout.columns, own, columns, strict=True):
        order = ""
        asked: tuple[str, ...]
        if isinstance(column, Numeric):
            others = sorted(own[at].name for at, other in layout.numeric if other is not column)
            asked = (
                f"range = [{column.low!r}, {column.high!r}]",
                f"bins = {layout.bins}",
                f"sums in units of 1/{layout.resolution:g}",
                f"second moments with {others if layout.second_moments else []}",
                *common,
            )
            order = _order(values, protection.key)
        else:
            asked = (f"categories = {list(column.names)}", f"other = {column.other!r}", *common)
        digest = _keyed(protection.key, np.asarray(values, dtype="<f8"))
        found.append(
            Question(
                column=of_site.name,
                named=column.name,
                asked=asked,
                values=digest,
                order=order,
                named_in=of_site.named_in,
            )
        )
    return tuple(found)


def counts_question(column: OwnColumn, named: str, counts: Sequence[int], key: bytes) -> Question:
    """Class counts are their own answer: other numbers answer another question, but for empty classes at the end."""
    digest = _keyed(key, np.trim_zeros(np.asarray(counts, dtype="<i8"), "b"))
    called = f"{_CLASSES_OF}{column.name}"
    return Question(column=called, named=named, asked=_COUNTED, values=digest, named_in=column.named_in)


def _order(values: Numbers | Codes, key: bytes) -> str:
    """The values' ranks, or from the other end where that sorts first: no unit changes them."""
    missing = np.isnan(values)
    different, ranks = np.unique(values[~missing], return_inverse=True)
    if len(different) < _TELLING:
        return ""
    placed = np.full(len(values), -1, dtype="<i8")
    placed[~missing] = ranks
    turned = np.where(missing, -1, len(different) - 1 - placed).astype("<i8")
    return _keyed(key, min(placed, turned, key=lambda one: one.tobytes()))


def _keyed(key: bytes, numbers: np.ndarray) -> str:
    return hmac.digest(key, b"question" + numbers.tobytes(), hashlib.sha256).hex()
