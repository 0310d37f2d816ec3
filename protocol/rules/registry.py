"""From a study's rule specification to the rule itself, and what it refuses before the study starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from protocol.errors import ConfigurationError
from protocol.rules.fedavg import FedAvg
from protocol.rules.fedavg_by_samples import FedAvgBySamples
from protocol.rules.fedopt import FedOpt
from protocol.rules.influence import Influence
from protocol.rules.interface import Rule
from protocol.rules.local import Local
from protocol.rules.multi_krum import MultiKrum, least_sites
from protocol.rules.server_optimiser import require_adaptivity
from protocol.rules.weight_erosion import WeightErosion
from protocol.rules.wfedavg import WFedAvg
from protocol.wire.messages import RuleName, RuleSpec

_AVERAGING: Final = ("norm_bound",)
_ADAPTIVE: Final = (*_AVERAGING, "server_momentum", "adaptivity")
_DECAYING: Final = (*_ADAPTIVE, "second_moment_decay")
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
    RuleName.FEDADAM: _DECAYING,
    RuleName.FEDYOGI: _DECAYING,
    RuleName.MULTI_KRUM: ("byzantine", "selected"),
    RuleName.INFLUENCE: ("step",),
    RuleName.LOCAL: (),
}
"""The options that each rule takes; the others must be left out.

Where sites weigh themselves, ``norm_bound`` opens the norm of (w g, w C), which lies between w C and 1.42 w C and so
shows w: a need of its own, which sites' policies do not allow by default.
"""

_UNIFORM: Final[dict[RuleName, type[FedAvg]]] = {
    RuleName.FEDAVG: FedAvg,
    RuleName.FEDAVG_BY_SAMPLES: FedAvgBySamples,
    RuleName.WFEDAVG: WFedAvg,
    RuleName.FEDADAGRAD: FedOpt,
    RuleName.FEDADAM: FedOpt,
    RuleName.FEDYOGI: FedOpt,
}


def rule_for(spec: RuleSpec, *, batch_size: int, grid: int) -> Rule:
    """The rule a study asks for.

    ``batch_size`` is b of docs/protocol.md 10, in samples; ``grid`` the study's weight grid.
    Raises: ConfigurationError naming an option that the rule does not take, or cannot take with this value
    """
    refuse_options(spec)
    match spec.name:
        case RuleName.WEIGHT_EROSION:
            return WeightErosion(
                spec.distance_penalty, spec.size_penalty, batch_size, grid, spec.epochs_counted, spec.second_weights
            )
        case RuleName.MULTI_KRUM:
            return MultiKrum(grid, spec.byzantine, spec.selected)
        case RuleName.INFLUENCE:
            return Influence(spec.step, grid)
        case RuleName.LOCAL:
            return Local()
        case _:
            require_adaptivity(spec)
            return _UNIFORM[spec.name](grid, spec.norm_bound)


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


def require_sites(spec: RuleSpec, contributors: Sequence[str], least_contributors: int = 1) -> None:
    """Refuse, before a study starts, sites with which no round of it could be released.

    ``contributors`` are the names of the roster's sites without the requester; ``least_contributors`` is m of
    docs/protocol.md 9.
    Raises: ConfigurationError
    """
    if spec.name is RuleName.LOCAL:
        return
    if len(contributors) < least_contributors:
        raise ConfigurationError(
            f"{len(contributors)} sites besides the requester are too few for least_contributors={least_contributors}: "
            "let more sites join, or agree on a smaller number"
        )
    if spec.name is RuleName.MULTI_KRUM:
        _require_enough_for_krum(spec, len(contributors) + 1, least_contributors)
    _require_second_weights(spec, contributors)


def _require_second_weights(spec: RuleSpec, contributors: Sequence[str]) -> None:
    named = Counter(one.site for one in spec.second_weights)
    unknown = sorted(name for name in named if name not in contributors)
    if unknown:
        raise ConfigurationError(
            f"second_weights names {unknown}, no contributors of this study; they are {list(contributors)}"
        )
    twice = sorted(name for name, times in named.items() if times > 1)
    if twice:
        raise ConfigurationError(f"second_weights names {twice} more than once: give every site one second weight")


def _require_enough_for_krum(spec: RuleSpec, sites: int, least_contributors: int) -> None:
    """Below, the requester may be among the m selected, so that m - 1 contributors are sure."""
    least = least_sites(spec.byzantine)
    if sites < least:
        raise ConfigurationError(
            f"rule 'multi_krum' with byzantine={spec.byzantine} needs {least} sites with the requester, found {sites}: "
            "let more sites join, or assume fewer Byzantine ones"
        )
    most = sites - spec.byzantine
    selected = most if spec.selected is None else spec.selected
    if not least_contributors < selected <= most:
        raise ConfigurationError(
            f"rule 'multi_krum' selects {selected} of {sites} sites, the requester among them; allowed are "
            f"{least_contributors + 1} (least_contributors and the requester) to {most} (all but byzantine)"
        )
