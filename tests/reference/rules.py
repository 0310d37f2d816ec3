"""Weight Erosion's step and the clauses of a site's policy that are arithmetic (docs/protocol.md 9, 10)."""

from __future__ import annotations

from fractions import Fraction


def erode(alpha: float, participation: int, batch: int, samples: int, p_d: float, p_s: float, d_rel: float) -> float:
    """alpha^r from alpha^(r-1); ``participation`` is r, counted in rounds in which the site took part."""
    passes = (participation - 1) * batch // samples
    return max(0.0, alpha - (1.0 + p_s * passes) * p_d * d_rel)


def settle(alpha: float, grid: int) -> float:
    """A weight that rounds to 0 on the grid (at most half a step, the tie going to 0) is 0 for good."""
    return 0.0 if Fraction(alpha) <= Fraction(1, 2 * grid) else alpha


def median(values: list[float]) -> float:
    """The weight at which a late joiner starts: the median of the others' weights."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def share_of_lightest(own: int, others: list[int], least: int, colluders: int) -> Fraction:
    """Own weight over own plus the m-1-t lightest others; the requester is in neither."""
    company = sorted(others)[: max(0, least - 1 - colluders)]
    return Fraction(own, own + sum(company))


def contributes(own: int, others: list[int], least: int, colluders: int) -> bool:
    """m - t >= 3 and at most 60 %."""
    return least - colluders >= 3 and share_of_lightest(own, others, least, colluders) <= Fraction(3, 5)
