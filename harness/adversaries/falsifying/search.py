"""How much one answer a round can say, where answers of one kind are limited: a search with few failures.

A site that was left out of two sums takes no part any more, so a server that asks by failing its check has two
failures per site and study. With t rounds and k failures to spend, C(t,0) + ... + C(t,k) cases can be told apart.
"""

from __future__ import annotations

import math


def cases(rounds: int, failures: int) -> int:
    """How many cases so many rounds tell apart of which at most ``failures`` fail."""
    return sum(math.comb(rounds, failed) for failed in range(min(rounds, failures) + 1))


def most_bits(rounds: int, failures: int) -> float:
    """The most that a server learns about one site in so many rounds, whatever it asks, in bits."""
    return math.log2(cases(rounds, failures))


def share_that_fails(rounds: int, failures: int) -> float:
    """Which part of the cases the next question should let fail, so that all answers together say the most."""
    return cases(rounds - 1, failures - 1) / cases(rounds, failures) if failures else 0.0


def told_by(chance: float) -> float:
    """What an answer says that had this chance beforehand, in bits."""
    return -math.log2(chance)
