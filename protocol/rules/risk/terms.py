"""Terms of a rule that weighs by risk: its facts about the study, and its answers besides those of other rules."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, Protocol, Self, runtime_checkable

from protocol.rules.interface import Rule, RuleState

MOST_MEASURE_TRIES: Final = 3
"""Measured rounds in a row that fail before a study without any list goes on alone."""


@dataclass(frozen=True)
class SamplingNoise:
    """The growth of a site's tr Cov with its samples: with S steps over n samples, S^2 / n."""

    update: Literal["gradient", "local_sgd"]
    batch_size: int
    requester_samples: int

    def of(self, samples: int) -> float:
        """v_i / v_0 of a site with so many training samples, were its examples spread as the requester's are."""
        return self._relative(samples) / self._relative(self.requester_samples)

    def _relative(self, samples: int) -> float:
        if self.update == "gradient":
            return 1 / min(self.batch_size, samples)
        return (-(-samples // self.batch_size)) ** 2 / samples


@dataclass(frozen=True)
class ListTerms:
    """The demands of sites' policies on a list (docs/protocol.md 9), and the sites' noise; None: as the requester's.

    ``least`` is m, ``colluders`` t, ``largest_share`` that of the sum's smallest possible weight.
    """

    least: int = 1
    colluders: int = 0
    largest_share: Fraction = Fraction(1)
    noise: SamplingNoise | None = None

    def sure(self, listed: int) -> int:
        """The number of others that are sure to be in the sum: k = m - 1 - t, at most all of them."""
        return max(0, min(self.least - 1 - self.colluders, listed - 1))


@runtime_checkable
class RiskRule(Rule, Protocol):
    """A rule that needs the noise of the requester's own update, and chooses the requester's weight too."""

    @property
    def measures(self) -> bool:
        """True if the rule learns from rounds of their own, and not from those that are summed."""
        ...

    def within(self, terms: ListTerms) -> Self:
        """The same rule under these terms."""
        ...

    def own_numerator(self, state: RuleState) -> int:
        """The requester's weight over the grid."""
        ...

    def measures_next(self, state: RuleState) -> bool:
        """Return whether the next round should measure all sites and sum nothing."""
        ...


def own_numerator(rule: Rule, state: RuleState) -> int | None:
    """The requester's weight over the grid; None under all other rules, where it is 1."""
    return rule.own_numerator(state) if isinstance(rule, RiskRule) else None


def measures_next(rule: Rule, state: RuleState) -> bool:
    """Return whether the rule asks for a round that measures all sites."""
    return isinstance(rule, RiskRule) and rule.measures_next(state)


def without(state: RuleState, names: tuple[str, ...]) -> RuleState:
    """The state as it is for listing: sites that are not listed any more are not weighed."""
    return state.model_copy(update={"sites": tuple(site for site in state.sites if site.name not in names)})
