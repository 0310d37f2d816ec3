"""Federated averaging with uniform weights: every contributor counts as much as the requester.

Paper:  McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
        from Decentralized Data", AISTATS 2017; here weighted 1 / n, as the Weight Erosion papers compare with.
Needs:  nothing but the range check.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.rules.interface import (
    Measured,
    Needs,
    RuleState,
    SiteFacts,
    listed,
    newcomers,
    require_admitted,
    standings,
)
from protocol.wire.messages import ListedWeight


@dataclass(frozen=True)
class FedAvg:
    """Weight 1 for everybody, always."""

    grid: int
    needs: Needs = Needs.NOTHING
    weights_never_rise: bool = True

    def init(self, sites: tuple[SiteFacts, ...]) -> RuleState:
        return RuleState(sites=standings(sites, 1.0))

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        return RuleState(sites=state.sites + standings(newcomers(state, sites), 1.0))

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """Counts who took part; no weight changes."""
        require_admitted(state, measured)
        present = set(measured.took_part)
        return RuleState(
            sites=tuple(
                site.model_copy(update={"rounds": site.rounds + 1}) if site.name in present else site
                for site in state.sites
            )
        )

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        return listed(state, self.grid)
