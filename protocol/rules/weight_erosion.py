"""Weight Erosion: a contributor's weight falls with the distance of its updates from the requester's.

Paper:  Grimberg, Hartley, Jaggi, Karimireddy, "Weight Erosion: an Update Aggregation Scheme for Personalized
        Collaborative Machine Learning", DCL 2020 (LNCS 12444), Algorithm 1; docs/protocol.md 10.
State:  alpha_i^0 = 1;  d_rel = ||g_i - g_0|| / ||g_0||;
        alpha_i^r = max(0, alpha_i^(r-1) - (1 + p_s * floor((r - 1) b / |S_i|)) p_d d_rel).
        r counts the released rounds in which site i took part, b is the batch size in samples. With
        ``epochs_counted`` "batches", |S_i| is the number of site i's batches instead, as in the MNIST study's code
        (Gengler, Beaussart, Yuan): the size penalty then grows about b times as fast.
Needs:  the distances; ||g_0|| of the clipped update.
Beyond the paper: a late joiner starts at the median of the others' weights; a weight that rounds to 0 on the
        grid is 0 for good; a site that missed the round, or failed its range check, keeps its alpha. A fixed second
        weight beta_i, which the paper's conclusion asks for, multiplies what is handed out: w_i = beta_i alpha_i.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from protocol.arithmetic.fixed_point import quantise_weight
from protocol.channel.message import Message, PartyName
from protocol.errors import ConfigurationError, LocalOptimumReached
from protocol.messages.round import ListedWeight
from protocol.parameters import Needs
from protocol.rules.interface import (
    Declared,
    EqualRule,
    Measured,
    Options,
    RuleState,
    SiteFacts,
    SiteStanding,
    listed,
    newcomers,
    require_admitted,
    standings,
)


class SecondWeight(Message):
    """A fixed factor of one site's weight."""

    KIND: ClassVar[str] = "second_weight"
    site: PartyName
    weight: Annotated[float, Field(gt=0, le=1)]


class ErosionOptions(Options):
    """``distance_penalty`` p_d, ``size_penalty`` p_s, ``epochs_counted`` in samples (the paper's formula) or in batches
    (the MNIST study's code), ``second_weights`` beta_i. ``erosion_applies``: "same_round" in plain simulations alone.
    """

    distance_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    size_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    erosion_applies: Literal["next_round", "same_round"] = "next_round"
    epochs_counted: Literal["samples", "batches"] = "samples"
    second_weights: tuple[SecondWeight, ...] = ()


@dataclass(frozen=True)
class WeightErosion(EqualRule):
    """Algorithm 1 with p_d = ``distance_penalty`` and p_s = ``size_penalty``."""

    distance_penalty: float
    size_penalty: float
    batch_size: int
    grid: int
    epochs_counted: Literal["samples", "batches"] = "samples"
    second_weights: tuple[SecondWeight, ...] = ()
    needs: Needs = Needs.DISTANCES
    weights_never_rise: bool = True
    selects: bool = False

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        """Late joiners start at the median of the weights that are still above 0 (1 when there is none)."""
        alive = [site.alpha for site in state.sites if site.alpha > 0]
        start = median(alive) if alive else 1.0
        return RuleState(sites=state.sites + standings(newcomers(state, sites), start))

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """One round of erosion.

        Raises: LocalOptimumReached when ||g_0|| is 0, ProtocolViolation when a distance is missing.
        """
        if measured.requester_norm == 0:
            raise LocalOptimumReached(
                f"round {measured.round}: the requester's update is zero, so relative distances are undefined: "
                "its model has reached a local optimum and the study can be completed"
            )
        require_admitted(state, measured)
        present = set(measured.took_part)
        return RuleState(
            sites=tuple(self._eroded(site, measured) if site.name in present else site for site in state.sites)
        )

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        return listed(state, self.grid, self._second_weight)

    def _second_weight(self, name: str) -> float:
        return next((one.weight for one in self.second_weights if one.site == name), 1.0)

    def _eroded(self, site: SiteStanding, measured: Measured) -> SiteStanding:
        rounds = site.rounds + 1
        relative_distance = measured.distance_of(site.name) / measured.requester_norm
        size = site.samples if self.epochs_counted == "samples" else -(-site.samples // self.batch_size)
        passes = (rounds - 1) * self.batch_size // size
        loss = (1 + self.size_penalty * passes) * self.distance_penalty * relative_distance
        alpha = max(0.0, site.alpha - loss)
        if quantise_weight(alpha * self._second_weight(site.name), self.grid) == 0:
            alpha = 0.0
        return site.model_copy(update={"alpha": alpha, "rounds": rounds})


def _made(options: ErosionOptions, batch_size: int, grid: int) -> WeightErosion:
    penalties = options.distance_penalty, options.size_penalty
    return WeightErosion(*penalties, batch_size, grid, options.epochs_counted, options.second_weights)


def _require_second_weights(options: ErosionOptions, contributors: Sequence[str], _least: int) -> None:
    named = Counter(one.site for one in options.second_weights)
    unknown = sorted(name for name in named if name not in contributors)
    if unknown:
        raise ConfigurationError(
            f"second_weights names {unknown}, no contributors of this study; they are {list(contributors)}"
        )
    twice = sorted(name for name, times in named.items() if times > 1)
    if twice:
        raise ConfigurationError(f"second_weights names {twice} more than once: give every site one second weight")


WEIGHT_EROSION: Final = Declared(
    "weight_erosion",
    _made,
    options=tuple(ErosionOptions.model_fields),
    opens=Needs.DISTANCES,
    check_sites=_require_second_weights,
)
