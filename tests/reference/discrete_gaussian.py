"""The discrete Gaussian of Canonne, Kamath and Steinke (2020) in whole numbers and fractions, one draw at a time.

Words are 64 bits, taken one after the other; a uniform number below m takes the top bits of a word until it is below m,
and no word where m is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass
class Words:
    """A stream of 64-bit words and the place in it."""

    values: list[int]
    at: int = 0

    def next(self) -> int:
        self.at += 1
        return self.values[self.at - 1]


def draw(words: Words, sigma: int) -> int:
    """Algorithm 3 with t = sigma."""
    while True:
        value = laplace(words, sigma)
        exponent = Fraction((abs(value) - sigma) ** 2, 2 * sigma**2)
        if bernoulli_exp(words, exponent, 2 * sigma**2):
            return value


def laplace(words: Words, t: int) -> int:
    """Algorithm 2 with s = 1."""
    while True:
        rest = below(words, t)
        if not bernoulli_exp(words, Fraction(rest, t), t):
            continue
        times = 0
        while bernoulli_exp(words, Fraction(1), 1):
            times += 1
        negative = below(words, 2) == 1
        size = rest + t * times
        if negative and size == 0:
            continue
        return -size if negative else size


def bernoulli_exp(words: Words, exponent: Fraction, den: int) -> bool:
    """Algorithm 1: heads with probability exp(-exponent), a fraction of denominator ``den``."""
    if exponent > 1:
        whole = exponent.numerator // exponent.denominator
        if not all(bernoulli_exp(words, Fraction(1), 1) for _ in range(whole)):
            return False
        exponent -= whole
    k = 1
    while below(words, den) < exponent * den and below(words, k) == 0:
        k += 1
    return k % 2 == 1


def below(words: Words, bound: int) -> int:
    """A uniform whole number below ``bound``."""
    bits = (bound - 1).bit_length()
    while bits:
        drawn = words.next() >> (64 - bits)
        if drawn < bound:
            return drawn
    return 0
