"""What a summary or class counts ask about one column of a site, so that it answers one question (docs/protocol.md 17).

The same question about the same values has the same answer, since what is rounded is rounded by a key. The difference
of two answers, to other ranges, bins, categories or rows, counts the patients between them exactly.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from protocol.summary.layout import Layout, Numeric
from protocol.summary.protect import Codes, Numbers, Protection

_TELLING: Final = 10
"""Columns of fewer different values are often the same by chance; no sum of theirs is more than protected counts."""


class Question(BaseModel):
    """One column: as the site's own file calls it, and as the study does; stays at the site.

    ``asked`` is all that the answer depends on beside the values, a line each. ``values`` is a keyed digest of the
    values, row by row; ``order`` one of their order, the same for a copy in another unit, empty where it tells little.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    column: str
    named: str
    asked: tuple[str, ...]
    values: str
    order: str = ""

    @property
    def answer(self) -> tuple[tuple[str, ...], str]:
        """What the answer is a function of."""
        return self.asked, self.values

    def about_the_same(self, other: Question) -> bool:
        """One column, or a copy of it under another name."""
        return self.column == other.column or (self.order != "" and self.order == other.order)


def summary_questions(
    layout: Layout, own_names: Sequence[str], columns: Sequence[Numbers | Codes], protection: Protection
) -> tuple[Question, ...]:
    """A question per column; ``own_names`` are the columns' in the site's file, in the layout's order."""
    common = (f"rounded_to = {protection.rounded_to}", f"least_examples = {protection.least_examples}")
    found = []
    for column, own, values in zip(layout.columns, own_names, columns, strict=True):
        order = ""
        asked: tuple[str, ...]
        if isinstance(column, Numeric):
            others = sorted(own_names[at] for at, other in layout.numeric if other is not column)
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
        found.append(Question(column=own, named=column.name, asked=asked, values=digest, order=order))
    return tuple(found)


def counts_question(column: str, named: str, counts: Sequence[int], key: bytes) -> Question:
    """Class counts are their own answer: other numbers answer another question, but for empty classes at the end."""
    digest = _keyed(key, np.trim_zeros(np.asarray(counts, dtype="<i8"), "b"))
    return Question(column=f"classes of {column}", named=named, asked=("class counts",), values=digest)


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
