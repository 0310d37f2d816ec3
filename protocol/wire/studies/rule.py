"""A study's aggregation rule and its options (docs/protocol.md 8, 10); what it takes and opens, its own file says."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, model_validator

from protocol.parameters import Needs
from protocol.rules.fedavg import NormBound
from protocol.rules.fedavg_by_samples import SampleOptions
from protocol.rules.fedopt import OptimiserOptions
from protocol.rules.influence import InfluenceOptions
from protocol.rules.interface import Declared
from protocol.rules.known import KNOWN
from protocol.rules.multi_krum import KrumOptions
from protocol.rules.risk.mallows import MallowsOptions
from protocol.rules.weight_erosion import ErosionOptions
from protocol.wire.message import Message


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
    MALLOWS = "mallows"
    SHRINKAGE = "shrinkage"
    LOCAL = "local"

    @property
    def declared(self) -> Declared:
        """The rule's declaration in its own file."""
        return KNOWN[self.value]

    @property
    def self_weighted(self) -> bool:
        """True if every site computes its own weight, which nobody else sees (docs/protocol.md 9)."""
        return self.declared.self_weighted

    @property
    def counts_classes(self) -> bool:
        """True if the sites' class counts are summed once, before the first update (docs/protocol.md 9)."""
        return self.declared.counts_classes

    @property
    def only_averages(self) -> bool:
        """True if the rule asks a server only for sums of weighted updates: ciphertexts will do."""
        return self.declared.only_averages


class _Named(BaseModel):
    name: RuleName


class RuleSpec(
    MallowsOptions,
    InfluenceOptions,
    NormBound,
    SampleOptions,
    KrumOptions,
    OptimiserOptions,
    ErosionOptions,
    _Named,
    Message,
):
    """The aggregation rule and the options of all rules; options that a rule does not take are refused by the rule."""

    KIND: ClassVar[str] = "rule"

    @property
    def needs(self) -> Needs:
        """The quantities that the rule opens to the requester in every round, besides the range check."""
        return self.name.declared.opens if self.norm_bound is None else self.name.declared.bounded_by

    @model_validator(mode="after")
    def _one_measurement(self) -> RuleSpec:
        opens = self.name.declared.opens
        if self.norm_bound is not None and opens is not Needs.NOTHING:
            raise ValueError(
                f"norm_bound is for averaging rules; rule {self.name.value!r} opens {opens.value} already: leave it out"
            )
        return self
