"""Server B falsifies what it puts into the products, and reads bits from who stays in the sum.

What comes back to a server of a measured round is the release set alone, in which a site stays or does not: at most
one bit per site and round. The figure is how much that tells, over a study of 30 rounds, about a number of the server's
choice, where the site's update is the same in every round (the worst case; updates that move tell less).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from client_agent.requester.measuring.allowed_lengths import longest_norm
from client_agent.requester.measuring.judging import Judgement
from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.falsifying.measured import (
    PARAMETERS,
    SITES,
    VICTIM,
    Falsehood,
    Measured,
    chance_below,
    updates_of,
)
from harness.adversaries.falsifying.search import share_that_fails, told_by
from harness.adversaries.scripted.requester import study
from protocol.arithmetic.prg import derive
from protocol.errors import PolicyRefusal
from protocol.parameters import Needs
from protocol.policy import clauses
from protocol.policy.memory import SiteMemory, remember_left_out
from protocol.wire.messages import Announcement, RuleName, RuleSpec

_ROUNDS: Final = 30
_SEEDS: Final = (1, 2, 3)
_ONE_BIT: Final = 1.0
_ALL: Final = _ROUNDS + 1
_SQUARED: Final = PARAMETERS.encoded_norm**2


class _Site:
    """The victim's memory of being left out, and its policy's clause on it."""

    def __init__(self) -> None:
        self._memory = SiteMemory()

    def takes_part(self, number: int) -> bool:
        announced = Announcement(
            study_digest=study().digest(),
            round=number,
            listed=SITES[1:],
            least_contributors=3,
            opens=Needs.NOTHING,
            model_version=number,
            model_digest="00" * 32,
            weight_list_digest="11" * 32,
            closes_at_s=10**9,
        )
        try:
            clauses.check_left_out_twice(announced, self._memory)
        except PolicyRefusal:
            return False
        return True

    def saw(self, number: int, judged: Judgement) -> bool:
        """-> whether the victim is in the sum, which is what the server sees too"""
        released = (SITES[0], *judged.measured.took_part)
        self._memory = remember_left_out(self._memory, number, SITES, released, judged.failed, own=VICTIM)
        return VICTIM in released


class FalsifiedMeasurement(Attack):
    """30 rounds, in which the server asks one question each; whichever of its two plans says more counts.

    It spends its failures as if a site bore two, or asks as if it bore any number.
    """

    party = Party.SERVER
    figure = f"bits about one site's update in {_ROUNDS} rounds"
    promised = False
    defence = "a site that was left out of two sums takes no part any more"
    without: Mapping[str, object] = {"protocol.policy.clauses.check_left_out_twice": passes}

    def attempt(self, folder: Path) -> Found:
        plans = (clauses.TIMES_LEFT_OUT, _ALL)
        most = max(float(np.mean([self._told(seed, failures) for seed in _SEEDS])) for failures in plans)
        return Found(most > _ONE_BIT, most)

    @abstractmethod
    def _told(self, seed: int, failures: int) -> float:
        """Bits, in one study, by a plan that spends at most so many failures."""


class NormByFalsehood(FalsifiedMeasurement):
    """Adds to a squared norm what makes it exceed the bound exactly where it is above the middle of what is left."""

    name = "falsified-norm"
    tries = "adds to its share of a squared norm and sees who stays, to find the norm by bisection"
    _spec, _opens = RuleSpec(name=RuleName.FEDAVG, norm_bound=1.0), Needs.NORMS

    def _told(self, seed: int, failures: int) -> float:
        length = 0.1 + 0.8 * float(np.random.default_rng(seed).random())
        updates, site = updates_of(seed, (0.5, length, 0.5, 0.6, 0.7, 0.4)), _Site()
        low, high, spent = 0.0, float(_SQUARED), 0
        bound = min(longest_norm(PARAMETERS, PARAMETERS.weight_grid), 1.0) * PARAMETERS.scale
        for number in range(1, _ROUNDS + 1):
            if not site.takes_part(number) or high - low < 2:
                break
            middle = high - (high - low) * share_that_fails(_ALL - number, failures - spent)
            measured = Measured(self._spec, self._opens, updates, derive(bytes([seed]) * 32, str(number)))
            if site.saw(number, measured.judged(Falsehood(added=math.floor(bound**2 - middle)), number)):
                high = middle + 1
            else:
                low, spent = middle - 1, spent + 1
        truth = measured.length(VICTIM) ** 2
        return math.log2(_SQUARED / (high - low)) if low <= truth <= high else 0.0


class RangeByFalsehood(FalsifiedMeasurement):
    """Raises its part of one projection of the range check: it then fails below a number that the server knows."""

    name = "falsified-range-check"
    tries = "raises its operand of a projection in the range check and sees who stays, where nothing is opened"
    _spec, _opens = RuleSpec(name=RuleName.FEDAVG), Needs.NOTHING

    def _told(self, seed: int, failures: int) -> float:
        updates, site, spent, bits = updates_of(seed, (0.5, 1.0, 0.5, 0.6, 0.7, 0.4)), _Site(), 0, 0.0
        for number in range(1, _ROUNDS + 1):
            if not site.takes_part(number):
                break
            measured = Measured(self._spec, self._opens, updates, derive(bytes([seed]) * 32, str(number)))
            chances = [chance_below(one) for one in measured.own_thresholds()]
            wanted = share_that_fails(_ALL - number, failures - spent)
            chosen = min(range(len(chances)), key=lambda i: abs(chances[i] - wanted))
            stays = site.saw(number, measured.judged(Falsehood(raised=chosen), number))
            bits += told_by(1 - chances[chosen] if stays else chances[chosen])
            spent += not stays
        return bits


class SelectionByFalsehood(FalsifiedMeasurement):
    """Adds to all squared distances of one site what makes multi-Krum leave it out, or just not."""

    name = "falsified-pairs"
    tries = "adds to a site's squared distances and sees whom multi-Krum selects, to find a gap between scores"
    defence = "none: under a rule that selects, being left out is what the rule does"
    without: Mapping[str, object] = {}
    _spec, _opens = RuleSpec(name=RuleName.MULTI_KRUM, byzantine=1), Needs.PAIRS

    def _told(self, seed: int, failures: int) -> float:
        draw = np.random.default_rng(seed).uniform(0.3, 0.6, len(SITES))
        updates = updates_of(seed, tuple(float(x) for x in draw))
        low, high = -0.5 * _SQUARED, float(_SQUARED)
        width = high - low
        for number in range(1, _ROUNDS + 1):
            middle = (low + high) / 2
            measured = Measured(self._spec, self._opens, updates, derive(bytes([seed]) * 32, str(number)))
            judged = measured.judged(Falsehood(added=math.floor(middle)), number)
            if VICTIM in judged.measured.took_part:
                low = middle
            else:
                high = middle
        return math.log2(width / (high - low)) if low > -0.5 * _SQUARED and high < _SQUARED else 0.0


def falsified_measurements() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (NormByFalsehood(), RangeByFalsehood(), SelectionByFalsehood())
