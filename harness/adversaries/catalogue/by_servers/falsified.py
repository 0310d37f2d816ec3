"""Server B falsifies what it puts into the products, and reads bits from who stays in the sum.

What comes back to a server of a measured round is the release set alone, in which a site stays or does not: at most
one bit per site and round. The figure is how much that tells, over a study of 30 rounds, about a number of the server's
choice, where the site's update is the same in every round (the worst case; updates that move tell less). Over more
seeds, and with canary rounds: ``moiety attack leak``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.falsified_round import Question
from harness.adversaries.leak import CLAUSE, ROUNDS, most

_SEEDS: Final = (1, 2, 3)
_ONE_BIT: Final = 1.0
_LEFT_OUT_TWICE: Final = "a site that was left out of two sums takes no part any more"


@dataclass(frozen=True)
class FalsifiedMeasurement(Attack):
    """30 rounds, in which the server asks one question each; whichever of its two plans says more counts.

    It spends its failures as if a site bore two, or asks as if it bore any number.
    """

    name: str
    tries: str
    question: Question
    defence: str = _LEFT_OUT_TWICE
    without: Mapping[str, object] = field(default_factory=lambda: CLAUSE)
    party = Party.SERVER
    figure = f"bits about one site's update in {ROUNDS} rounds"
    promised = False

    def attempt(self, folder: Path) -> Found:
        found = most(self.question, _SEEDS)
        return Found(found > _ONE_BIT, found)


def falsified_measurements() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (
        FalsifiedMeasurement(
            "falsified-norm",
            "adds to its share of a squared norm and sees who stays, to find the norm by bisection",
            Question.NORM,
        ),
        FalsifiedMeasurement(
            "falsified-range-check",
            "raises its operand of a projection in the range check and sees who stays, where nothing is opened",
            Question.PROJECTION,
        ),
        FalsifiedMeasurement(
            "falsified-pairs",
            "adds to a site's squared distances and sees whom multi-Krum selects, to find a gap between scores",
            Question.GAP,
            "none: under a rule that selects, being left out is what the rule does",
            {},
        ),
    )
