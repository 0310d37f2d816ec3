"""Federated averaging with uniform weights: every contributor counts as much as the requester.

Paper:  McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
        from Decentralized Data", AISTATS 2017; here weighted 1 / n, as the Weight Erosion papers compare with.
Needs:  nothing but the range check; the norms where updates beyond a bound are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.parameters import Needs
from protocol.rules.interface import (
    Measured,
    RuleState,
    SiteFacts,
    counted,
    listed,
    newcomers,
    standings,
    within_bound,
)
from protocol.wire.messages import ListedWeight


@dataclass(frozen=True)
class FedAvg:
    """Weight 1 for everybody, always; ``norm_bound`` leaves out longer updates."""

    grid: int
    norm_bound: float | None = None
    weights_never_rise: bool = True
    selects: bool = False

    BOUNDED_BY: ClassVar[Needs] = Needs.NORMS
    """What a norm bound has opened."""

    @property
    def needs(self) -> Needs:
        return Needs.NOTHING if self.norm_bound is None else self.BOUNDED_BY

    def init(self, sites: tuple[SiteFacts, ...]) -> RuleState:
        return RuleState(sites=standings(sites, 1.0))

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        return RuleState(sites=state.sites + standings(newcomers(state, sites), 1.0))

    def select(self, state: RuleState, measured: Measured) -> tuple[str, ...]:
        return within_bound(measured, self.norm_bound)

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """Counts who took part; no weight changes."""
        return counted(state, measured)

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        return listed(state, self.grid)
