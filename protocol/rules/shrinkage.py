"""Positive-part shrinkage towards the mean: as much of everybody's average as the requester's own noise is worth.

Source: Green, Strawderman, "A James-Stein type estimator for combining unbiased and possibly biased estimators", JASA
        1991; for sites Grimberg 2021. With gbar the plain mean of the n + 1 updates, the requester's among them,
            a = min(1, v_0 / ||g_0 - gbar||^2),    step (1 - a) g_0 + a gbar.
State:  the mean over the rounds of ||g_0 - gbar||^2 / v_0, which the requester computes from the opened sum alone; the
        weights follow one round later.
Needs:  nothing, for sites whose policy opens nothing; v_0 = tr Cov of the requester's clipped update never leaves the
        requester. No weight is below one step of the grid, so that there is always a mean to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolViolation
from protocol.messages.round import ListedWeight
from protocol.parameters import Needs
from protocol.rules.interface import (
    Declared,
    EqualRule,
    ListTerms,
    Measured,
    RuleState,
    RunningMean,
    SiteFacts,
    counted,
)


@dataclass(frozen=True)
class Shrinkage(EqualRule):
    """One weight for all sites, between a step of the grid and 1."""

    grid: int
    needs: Needs = Needs.NOTHING
    weights_never_rise: bool = False
    selects: bool = False
    measures: bool = False

    def within(self, terms: ListTerms) -> Self:
        return self

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        """Late joiners weigh what everybody weighs."""
        return self._shown(super().admit(state, sites))

    def measures_next(self, state: RuleState) -> bool:
        return False

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """Raises: ProtocolViolation without the noise of the requester's update and its distance from the mean"""
        if measured.variance is None or measured.from_mean is None:
            raise ProtocolViolation(f"round {measured.round}: the requester's own noise, or the mean, is unknown")
        state = counted(state, measured)
        if measured.variance > 0:
            ratio = measured.from_mean**2 / measured.variance
            before = state.means[0] if state.means else RunningMean(of=(), value=0.0, rounds=0)
            state = state.model_copy(update={"means": (before.with_value(ratio),)})
        return self._shown(state)

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        numerator = self._numerator(state)
        return tuple(ListedWeight(site=site.name, numerator=numerator) for site in state.sites)

    def own_numerator(self, state: RuleState) -> int:
        """The requester's update counts at least as much as any."""
        return self.grid

    def _numerator(self, state: RuleState) -> int:
        mean = state.means[0].value if state.means else 0.0
        towards = 1.0 if mean <= 1 else 1 / mean
        each = towards / (len(state.sites) + 1)
        return max(1, round(self.grid * each / (1 - towards + each)))

    def _shown(self, state: RuleState) -> RuleState:
        alpha = self._numerator(state) / self.grid
        return state.model_copy(
            update={"sites": tuple(site.model_copy(update={"alpha": alpha}) for site in state.sites)}
        )


def distance_from_mean(
    average: NDArray[np.float32], own: NDArray[np.float64], own_numerator: int, numerators: Sequence[int]
) -> float:
    """||g_0 - gbar||, from the opened average, one's own update and the weights of the sites in the sum.

    With other weights than equal ones the others count by theirs: gbar = (g_0 + n h) / (n + 1), h their weighted mean.

    Shapes:   float32[D], float64[D]
    """
    others, n = sum(numerators), len(numerators)
    rest = average.astype(np.float64) * (own_numerator + others) - own * own_numerator
    return n / (n + 1) * float(np.linalg.norm(own - rest / others))


def _made(_options: object, _batch_size: int, grid: int) -> Shrinkage:
    return Shrinkage(grid)


SHRINKAGE: Final = Declared("shrinkage", _made, looks_at_examples=True)
