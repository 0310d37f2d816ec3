"""From a study's rule specification to the rule itself."""

from __future__ import annotations

from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Rule, refuse_options
from protocol.rules.local import Local
from protocol.rules.weight_erosion import WeightErosion
from protocol.wire.messages import RuleName, RuleSpec


def rule_for(spec: RuleSpec, *, batch_size: int, grid: int) -> Rule:
    """The rule a study asks for.

    ``batch_size`` is b of docs/protocol.md 10, in samples; ``grid`` the study's weight grid.
    Raises: ConfigurationError naming an option that the rule does not take.
    """
    if spec.name is RuleName.WEIGHT_EROSION:
        return WeightErosion(spec.distance_penalty, spec.size_penalty, batch_size, grid)
    refuse_options(spec, "distance_penalty", "size_penalty", "erosion_applies")
    return FedAvg(grid) if spec.name is RuleName.FEDAVG else Local()
