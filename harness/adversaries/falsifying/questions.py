"""What a falsifying server asks about one site, one question per round, and how much the answers told it.

A question is a falsehood whose effect depends on a number that the server wants: the site stays in the sum where that
number is on one side of a threshold. Which threshold is next depends on the answers, and on how many failures the
server means to spend.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from client_agent.requester.measuring.allowed_lengths import longest_norm
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
from protocol.arithmetic.ring import Ring
from protocol.parameters import Needs
from protocol.wire.messages import RuleName, RuleSpec

_SQUARED: Final = PARAMETERS.encoded_norm**2


class Question(StrEnum):
    """NORM: is its norm above a number. PROJECTION: is a random projection of it below one. GAP: is a gap between
    two scores of multi-Krum above one."""

    NORM = "norm"
    PROJECTION = "projection"
    GAP = "gap"


@dataclass(frozen=True)
class Left:
    """What may still be asked: rounds, this one included, and failures that the plan has to spend."""

    rounds: int
    failures: int

    @property
    def share_that_fails(self) -> float:
        return share_that_fails(self.rounds, self.failures)


class Search(ABC):
    """One study's questions. Lengths are parts of the clip norm; ``opens`` is what the rule has opened."""

    spec: RuleSpec
    opens: Needs

    @abstractmethod
    def updates(self, seed: int) -> dict[str, Ring]:
        """The sites' updates, the same in every round: the worst case, as updates that move tell less."""

    @abstractmethod
    def ask(self, measured: Measured, left: Left) -> Falsehood | None:
        """The next question; None when there is nothing left to find."""

    @abstractmethod
    def answered(self, stays: bool, *, about_the_update: bool) -> None:
        """Whether the site is in the sum; in a canary round that is about another update, and the asker cannot know."""

    @abstractmethod
    def bits(self, measured: Measured) -> float:
        """What all answers say about the update together; 0 where they say what is not so."""


class NormSearch(Search):
    """Adds to a squared norm what makes it exceed the bound exactly where it is above a threshold."""

    spec, opens = RuleSpec(name=RuleName.FEDAVG, norm_bound=1.0), Needs.NORMS

    def __init__(self) -> None:
        self._low, self._high, self._middle = 0.0, float(_SQUARED), 0.0
        self._bound = min(longest_norm(PARAMETERS, PARAMETERS.weight_grid), 1.0) * PARAMETERS.scale

    def updates(self, seed: int) -> dict[str, Ring]:
        length = 0.1 + 0.8 * float(np.random.default_rng(seed).random())
        return updates_of(seed, (0.5, length, 0.5, 0.6, 0.7, 0.4))

    def ask(self, measured: Measured, left: Left) -> Falsehood | None:
        if self._high - self._low < 2:
            return None
        self._middle = self._high - (self._high - self._low) * left.share_that_fails
        return Falsehood(added=math.floor(self._bound**2 - self._middle))

    def answered(self, stays: bool, *, about_the_update: bool) -> None:
        if stays:
            self._high = self._middle + 1
        else:
            self._low = self._middle - 1

    def bits(self, measured: Measured) -> float:
        truth = measured.length(VICTIM) ** 2
        return math.log2(_SQUARED / (self._high - self._low)) if self._low <= truth <= self._high else 0.0


class ProjectionSearch(Search):
    """Raises its part of one projection of the range check: it then fails below a number that the server knows."""

    spec, opens = RuleSpec(name=RuleName.FEDAVG), Needs.NOTHING

    def __init__(self) -> None:
        self._bits, self._chance = 0.0, 0.0

    def updates(self, seed: int) -> dict[str, Ring]:
        return updates_of(seed, (0.5, 1.0, 0.5, 0.6, 0.7, 0.4))

    def ask(self, measured: Measured, left: Left) -> Falsehood | None:
        chances = [chance_below(one) for one in measured.own_thresholds()]
        chosen = min(range(len(chances)), key=lambda i: abs(chances[i] - left.share_that_fails))
        self._chance = chances[chosen]
        return Falsehood(raised=chosen)

    def answered(self, stays: bool, *, about_the_update: bool) -> None:
        if about_the_update:
            self._bits += told_by(1 - self._chance if stays else self._chance)

    def bits(self, measured: Measured) -> float:
        return self._bits


class GapSearch(Search):
    """Adds to all squared distances of one site what makes multi-Krum leave it out, or just not."""

    spec, opens = RuleSpec(name=RuleName.MULTI_KRUM, byzantine=1), Needs.PAIRS

    def __init__(self) -> None:
        self._least, self._most = -0.5 * _SQUARED, float(_SQUARED)
        self._low, self._high, self._middle = self._least, self._most, 0.0

    def updates(self, seed: int) -> dict[str, Ring]:
        draw = np.random.default_rng(seed).uniform(0.3, 0.6, len(SITES))
        return updates_of(seed, tuple(float(x) for x in draw))

    def ask(self, measured: Measured, left: Left) -> Falsehood | None:
        self._middle = (self._low + self._high) / 2
        return Falsehood(added=math.floor(self._middle))

    def answered(self, stays: bool, *, about_the_update: bool) -> None:
        if stays:
            self._low = self._middle
        else:
            self._high = self._middle

    def bits(self, measured: Measured) -> float:
        found = self._low > self._least and self._high < self._most
        return math.log2((self._most - self._least) / (self._high - self._low)) if found else 0.0


SEARCHES: Final[dict[Question, type[Search]]] = {
    Question.NORM: NormSearch,
    Question.PROJECTION: ProjectionSearch,
    Question.GAP: GapSearch,
}
