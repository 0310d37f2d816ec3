"""Federated averaging with uniform weights: every contributor counts as much as the requester.

Paper:  McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
        from Decentralized Data", AISTATS 2017; here weighted 1 / n, as the Weight Erosion papers compare with.
Needs:  nothing but the range check; the norms where updates beyond a bound are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field

from protocol.parameters import Needs
from protocol.rules.interface import (
    Declared,
    Measured,
    Options,
    RuleState,
    SiteFacts,
    counted,
    listed,
    newcomers,
    standings,
    within_bound,
)
from protocol.wire.round import ListedWeight


class NormBound(Options):
    """``norm_bound``: the longest update that is released; where sites weigh themselves, the longest (w g, w C):
    sqrt(B^2 + C^2) for updates of length B and weight 1.
    """

    norm_bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@dataclass(frozen=True)
class FedAvg:
    """Weight 1 for everybody, always; ``norm_bound`` leaves out longer updates."""

    grid: int
    norm_bound: float | None = None
    weights_never_rise: bool = True
    selects: bool = False

    BOUNDED_BY: ClassVar[Needs] = Needs.NORMS
    """What a norm bound has opened."""

    @classmethod
    def made(cls, options: NormBound, _batch_size: int, grid: int) -> Self:
        return cls(grid, options.norm_bound)

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


FEDAVG: Final = Declared("fedavg", FedAvg.made, options=("norm_bound",), only_averages=True)
