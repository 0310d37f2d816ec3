"""A study's aggregation rule and its options (docs/protocol.md 8, 10)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from protocol.parameters import Needs
from protocol.wire.message import Message, PartyName


class RuleName(StrEnum):
    WEIGHT_EROSION = "weight_erosion"
    FEDAVG = "fedavg"
    FEDAVG_BY_SAMPLES = "fedavg_by_samples"
    WFEDAVG = "wfedavg"
    FEDADAGRAD = "fedadagrad"
    FEDADAM = "fedadam"
    FEDYOGI = "fedyogi"
    MULTI_KRUM = "multi_krum"
    INFLUENCE = "influence"
    LOCAL = "local"

    @property
    def self_weighted(self) -> bool:
        """Whether every site computes its own weight, which nobody else sees (docs/protocol.md 9)."""
        return self in (RuleName.FEDAVG_BY_SAMPLES, RuleName.WFEDAVG)

    @property
    def counts_classes(self) -> bool:
        """Whether the sites' class counts are summed once, before the first update (docs/protocol.md 9)."""
        return self is RuleName.WFEDAVG

    @property
    def only_averages(self) -> bool:
        """Whether sums of weighted updates are all that the rule asks of a server: ciphertexts will do."""
        return self in (RuleName.FEDAVG, RuleName.FEDAVG_BY_SAMPLES, RuleName.WFEDAVG, RuleName.LOCAL)


_NEEDS: Final = {
    RuleName.WEIGHT_EROSION: Needs.DISTANCES,
    RuleName.MULTI_KRUM: Needs.PAIRS,
    RuleName.INFLUENCE: Needs.INNER_PRODUCTS,
}


class SecondWeight(Message):
    """A fixed factor of one site's weight."""

    KIND: ClassVar[str] = "second_weight"
    site: PartyName
    weight: Annotated[float, Field(gt=0, le=1)]


class RuleSpec(Message):
    """The aggregation rule and its options; options a rule does not know are refused by the rule.

    Weight Erosion: ``distance_penalty`` p_d, ``size_penalty`` p_s, ``epochs_counted`` in samples (the paper's formula)
    or in batches (the MNIST study's code), ``second_weights`` beta_i. Server optimisers: ``server_momentum`` beta_1
    (None: 0.9, FedAdagrad 0), ``second_moment_decay`` beta_2, ``adaptivity`` tau. Multi-Krum: ``byzantine`` f,
    ``selected`` m (None: all but f). By samples: ``largest_count``, the number of samples whose weight is 1 (None: the
    largest in the roster). Averaging rules: ``norm_bound``, the longest update that is released; where sites
    weigh themselves, the longest (w g, w C): sqrt(B^2 + C^2) for updates of length B and weight 1. Influence: ``step``,
    how far a weight moves in a round.
    """

    KIND: ClassVar[str] = "rule"
    name: RuleName
    distance_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    size_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    erosion_applies: Literal["next_round", "same_round"] = "next_round"
    epochs_counted: Literal["samples", "batches"] = "samples"
    second_weights: tuple[SecondWeight, ...] = ()
    server_momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    second_moment_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    adaptivity: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    byzantine: Annotated[int, Field(ge=0)] = 1
    selected: Annotated[int, Field(ge=1)] | None = None
    largest_count: Annotated[int, Field(ge=1)] | None = None
    norm_bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    step: Annotated[float, Field(gt=0, le=1)] = 0.5

    @property
    def needs(self) -> Needs:
        """What the rule has opened to the requester in every round, besides the range check."""
        if self.norm_bound is not None:
            return Needs.WEIGHTED_NORMS if self.name.self_weighted else Needs.NORMS
        return _NEEDS.get(self.name, Needs.NOTHING)

    @model_validator(mode="after")
    def _one_measurement(self) -> RuleSpec:
        if self.norm_bound is not None and self.name in _NEEDS:
            raise ValueError(
                f"norm_bound is for averaging rules; rule {self.name.value!r} opens {_NEEDS[self.name].value} already: "
                "leave it out"
            )
        return self
