"""Influence: a contributor's weight follows how much its update lowers the requester's validation loss.

Source: sketched in Grimberg 2020 (semester report), 2.2; the normalisation and the moving average are this project's.
State:  with v the gradient of the requester's validation loss at the present model, a small step along g_i lowers
        that loss by <g_i, v> per unit of learning rate, to first order. The most helpful update of the round, the
        requester's own g_0 included, counts as 1:
            t_i = max(0, <g_i, v>) / max(<g_0, v>, max_j <g_j, v>)        0 where that maximum is not positive
            alpha_i = (1 - step) alpha_i + step t_i
        alpha starts at 1. The ratio does not depend on ||v||.
Needs:  the inner products with v. A site that missed the round keeps its alpha; one whose alpha rounds to 0 on the
        grid is not listed again, so it is never measured again either. Weights may rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from protocol.arithmetic.fixed_point import quantise_weight
from protocol.errors import LocalOptimumReached, ProtocolViolation
from protocol.parameters import Needs
from protocol.rules.interface import (
    Declared,
    EqualRule,
    Measured,
    Options,
    RuleState,
    SiteStanding,
    counted,
)


class InfluenceOptions(Options):
    """``step``: how far a weight moves in a round."""

    step: Annotated[float, Field(gt=0, le=1)] = 0.5


@dataclass(frozen=True)
class Influence(EqualRule):
    """``step``, in (0, 1], is how far a weight moves in a round."""

    step: float
    grid: int
    needs: Needs = Needs.INNER_PRODUCTS
    weights_never_rise: bool = False
    selects: bool = False

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """Weights after one released round.

        Raises: LocalOptimumReached when v = 0, ProtocolViolation when an inner product is missing
        """
        if measured.probe_norm == 0:
            raise LocalOptimumReached(
                f"round {measured.round}: the gradient of the requester's validation loss is zero, so no update can "
                "lower it: the model has reached a local optimum and the study can be completed"
            )
        influences = dict(measured.inner_products)
        missing = [name for name in measured.took_part if name not in influences]
        if missing:
            raise ProtocolViolation(
                f"round {measured.round}: no inner product was opened for {missing}, which took part"
            )
        took_part = {name: influences[name] for name in measured.took_part}
        best = max([measured.requester_inner_product, *took_part.values()])
        return RuleState(
            sites=tuple(
                self._moved(site, took_part[site.name], best) if site.name in took_part else site
                for site in counted(state, measured).sites
            )
        )

    def _moved(self, site: SiteStanding, influence: float, best: float) -> SiteStanding:
        target = influence / best if influence > 0 else 0.0
        alpha = min(1.0, (1 - self.step) * site.alpha + self.step * target)
        return site.model_copy(update={"alpha": alpha if quantise_weight(alpha, self.grid) > 0 else 0.0})


def _made(options: InfluenceOptions, _batch_size: int, grid: int) -> Influence:
    return Influence(options.step, grid)


INFLUENCE: Final = Declared("influence", _made, options=("step",), opens=Needs.INNER_PRODUCTS, looks_at_examples=True)
