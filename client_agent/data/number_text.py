"""A number's text as one table writes it: its decimal sign, and what parts its thousands.

A comma before exactly three digits can be either. Where a site says ``decimal = ","`` and nothing of thousands, "1,200"
is no number: 1.2 and 1200 would both be guesses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Numbers = NDArray[np.float64]
SPACES: Final = " \u00a0\u2009\u202f"
APOSTROPHES: Final = "'\u2019"
_SIGNS: Final = {",": ",", ".": r"\.", " ": f"[{SPACES}]", "'": f"[{APOSTROPHES}]"}
"""The values of ``thousands`` in a site's file, and the expression of all characters that it stands for."""
_ANY_SIGN: Final = f"[,.{SPACES}{APOSTROPHES}]"
_MINUS: Final = "\u2212"
_EXPONENT: Final = r"([eE][+-]?\d+)?"
_ENDLESS: Final = r"^(?i)[+-]?(nan|inf|infinity)$"
_DECIMAL_COMMA: Final = rf"^[+-]?\d*,\d+{_EXPONENT}$"
_THREE_AFTER_COMMA: Final = r"^[+-]?[1-9]\d{0,2},\d{3}$"
_THREE_AFTER_POINT: Final = r"^[+-]?[1-9]\d{0,2}\.\d{3}$"
_UNDER_THOUSAND: Final = r"^[+-]?\d{1,3}$"
_GROUPED: Final = rf"^[+-]?\d{{1,3}}({_ANY_SIGN}\d{{2,3}})*{_ANY_SIGN}\d{{3}}([.,]\d*)?$"
_LIMIT: Final = f"^(<=?|>=?|≤|≥|&lt;=?|&gt;=?|&le;|&ge;)[{SPACES}]*"
_BELOW: Final = "^(<|≤|&l)"


@dataclass(frozen=True)
class NumberText:
    """``thousands`` None: nobody says; "": nothing parts them."""

    decimal: str = "."
    thousands: str | None = None

    def pointed(self, texts: pa.Array) -> tuple[pa.Array, Mask]:
        """The texts, numbers as Python writes them, and bool[n], which are numbers."""
        plain = _with_minus(texts)
        numbers = matches(plain, self.pattern)
        if self.decimal == "," and self.thousands is None:
            numbers &= ~matches(plain, _THREE_AFTER_COMMA)
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
        pointed = given & matches(_with_minus(texts), _THREE_AFTER_POINT)
        whole = given & matches(_with_minus(texts), _UNDER_THOUSAND)
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


def endless(texts: pa.Array) -> Mask:
    """Mark those that say that they are infinite or no number at all."""
    return matches(texts, _ENDLESS)


def decimal_comma(texts: pa.Array) -> Mask:
    """Mark those that would be numbers if a comma were the decimal sign."""
    return matches(_with_minus(texts), _DECIMAL_COMMA)


def comma_of_two_meanings(texts: pa.Array) -> Mask:
    """Mark those with a comma that parts a thousand or is the decimal sign."""
    return matches(_with_minus(texts), _THREE_AFTER_COMMA)


def grouped(texts: pa.Array) -> Mask:
    """Mark those that look like numbers whose thousands are parted, by whatever sign."""
    return matches(_with_minus(texts), _GROUPED)


def limits(texts: pa.Array) -> tuple[pa.Array, Mask, Mask]:
    """Texts such as "<5" without their sign; bool[n], which had one; bool[n], which are below it."""
    limited = matches(texts, _LIMIT)
    if not limited.any():
        return texts, limited, limited
    return pc.replace_substring_regex(texts, _LIMIT, ""), limited, matches(texts, _BELOW)


def _with_minus(texts: pa.Array) -> pa.Array:
    return pc.replace_substring(texts, _MINUS, "-")


def matches(texts: pa.Array, pattern: str) -> Mask:
    """bool[n], false for a null."""
    found = pc.fill_null(pc.match_substring_regex(texts, pattern), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)
