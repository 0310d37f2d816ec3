"""From a study's rule specification to the rule itself."""

from __future__ import annotations

from typing import Final

from protocol.errors import ConfigurationError
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Rule
from protocol.rules.local import Local
from protocol.rules.weight_erosion import WeightErosion
from protocol.wire.messages import RuleName, RuleSpec

_AVERAGING: Final = ("norm_bound",)
_ADAPTIVE: Final = (*_AVERAGING, "server_momentum", "second_moment_decay", "adaptivity")
OPTIONS: Final[dict[RuleName, tuple[str, ...]]] = {
    RuleName.WEIGHT_EROSION: (
        "distance_penalty",
        "size_penalty",
        "erosion_applies",
        "epochs_counted",
        "second_weights",
    ),
    RuleName.FEDAVG: _AVERAGING,
    RuleName.FEDAVG_BY_SAMPLES: (*_AVERAGING, "largest_count"),
    RuleName.WFEDAVG: _AVERAGING,
    RuleName.FEDADAGRAD: _ADAPTIVE,
    RuleName.FEDADAM: _ADAPTIVE,
    RuleName.FEDYOGI: _ADAPTIVE,
    RuleName.MULTI_KRUM: ("byzantine", "selected"),
    RuleName.INFLUENCE: ("step",),
    RuleName.LOCAL: (),
}
"""The options that each rule takes; the others must be left out."""


def rule_for(spec: RuleSpec, *, batch_size: int, grid: int) -> Rule:
    """The rule a study asks for.

    ``batch_size`` is b of docs/protocol.md 10, in samples; ``grid`` the study's weight grid.
    Raises: ConfigurationError naming an option that the rule does not take
    """
    refuse_options(spec)
    if spec.name is RuleName.WEIGHT_EROSION:
        return WeightErosion(
            spec.distance_penalty, spec.size_penalty, batch_size, grid, spec.epochs_counted, spec.second_weights
        )
    if spec.name is RuleName.LOCAL:
        return Local()
    if spec.name is RuleName.FEDAVG:
        return FedAvg(grid, spec.norm_bound)
    raise ConfigurationError(f"rule {spec.name.value!r} is not available in this version")


def refuse_options(spec: RuleSpec) -> None:
    """ConfigurationError when an option that the rule does not take is set to other than its default."""
    taken = OPTIONS[spec.name]
    for option, declared in RuleSpec.model_fields.items():
        found = getattr(spec, option)
        if option != "name" and option not in taken and found != declared.default:
            allowed = ", ".join(taken) or "none at all"
            raise ConfigurationError(
                f"rule {spec.name.value!r} takes no option {option!r}, found {found!r}: leave it out; "
                f"its options are: {allowed}"
            )
