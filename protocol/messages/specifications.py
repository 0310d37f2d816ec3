"""Parts of a study: its rule, ranking, summary and noise, each with its options (docs/protocol.md 8, 10, 17, 19)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field, model_validator

from protocol.channel.message import Message, omitted
from protocol.messages.table import ColumnRole, ColumnSpec, MissingRule, Scaling, TableSchema
from protocol.parameters import Needs, check_clip_norm
from protocol.rules.fedavg import (
    FEDADAGRAD,
    FEDADAM,
    FEDAVG,
    FEDAVG_BY_SAMPLES,
    FEDYOGI,
    WFEDAVG,
    NormBound,
    OptimiserOptions,
    SampleOptions,
)
from protocol.rules.influence import INFLUENCE, InfluenceOptions
from protocol.rules.interface import Declared
from protocol.rules.local import LOCAL
from protocol.rules.mallows import MALLOWS, MallowsOptions
from protocol.rules.multi_krum import MULTI_KRUM, KrumOptions
from protocol.rules.shrinkage import SHRINKAGE
from protocol.rules.weight_erosion import WEIGHT_EROSION, ErosionOptions
from protocol.summary.layout import MOST_BINS, Categories, Column, Layout, Numeric


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
        return _DECLARED[self.value]

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


_DECLARED: Final = {
    one.name: one
    for one in (
        WEIGHT_EROSION,
        FEDAVG,
        FEDAVG_BY_SAMPLES,
        WFEDAVG,
        FEDADAGRAD,
        FEDADAM,
        FEDYOGI,
        MULTI_KRUM,
        INFLUENCE,
        MALLOWS,
        SHRINKAGE,
        LOCAL,
    )
}


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


MOST_RANKING_ROUNDS: Final = 3
"""The most tries to rank a study's sites; those rounds do not count among its rounds."""
LEAST_PENALTY: Final = 1e-2
"""The smallest penalty per example that a study may rank with, and that any site's policy can allow."""


class RankingSpec(Message):
    """Sites are ranked once, before the first update, by the squared loss of their own ridge regressions.

    ``penalty`` is the ridge's, per example, at most 1 and at least 1e-2: under a smaller one the coefficient of a
    feature that one patient has comes close to that patient's residual. ``clip_norm`` is the longest model vector that
    a site shares, a power of two from 1 to 1024. The requester chooses both: docs/threat_model.md says what it would
    learn beyond these bounds.
    """

    KIND: ClassVar[str] = "ranking"
    penalty: Annotated[float, Field(ge=LEAST_PENALTY, le=1, allow_inf_nan=False)] = LEAST_PENALTY
    clip_norm: Annotated[float, Field(ge=1, le=1024, allow_inf_nan=False)] = 16.0

    @model_validator(mode="after")
    def _consistent(self) -> RankingSpec:
        check_clip_norm(self.clip_norm)
        return self


MOST_SUMMARY_ROUNDS: Final = 3
"""The most tries to sum a study's summary; those rounds do not count among its rounds."""
LEAST_EXAMPLES: Final = 10
"""Fewer values than that are shared of no column, whatever a study or a site says."""
LEAST_ROUNDED_TO: Final = 5


class SummarySpec(Message):
    """One summary, once per study, of all columns of its schema but ids and times.

    ``most_rows`` is the largest table that a site may have; the larger, the coarser what all sites share. What a site
    replaces by zeros and rounds, ``protocol/summary/protection.py`` says; ``least_examples`` and ``rounded_to`` can ask
    for more protection than usual, never for less. ``second_moments`` are of pairs of numeric columns.
    """

    KIND: ClassVar[str] = "summary"
    bins: Annotated[int, Field(ge=1, le=MOST_BINS)] = MOST_BINS
    most_rows: Annotated[int, Field(ge=LEAST_EXAMPLES, le=10**8)] = 10_000
    least_examples: Annotated[int, Field(ge=LEAST_EXAMPLES, le=10**6)] = LEAST_EXAMPLES
    rounded_to: Annotated[int, Field(ge=LEAST_ROUNDED_TO, le=1000)] = LEAST_ROUNDED_TO
    second_moments: bool = False

    def layout(self, schema: TableSchema) -> Layout:
        """Entry by entry. Raises: ValueError where the schema's columns cannot be summarised like this"""
        return Layout(
            columns=tuple(_column(column) for column in summarised(schema)),
            bins=self.bins,
            rounded_to=self.rounded_to,
            most_rows=self.most_rows,
            second_moments=self.second_moments,
        )


_IDS_AND_TIMES: Final = frozenset({ColumnRole.PATIENT, ColumnRole.OBSERVED_AT})


def summarised(schema: TableSchema) -> tuple[ColumnSpec, ...]:
    """The schema's columns that a summary has, in order; ids and times are none of them, whatever their type."""
    return tuple(column for column in schema.columns if column.role not in _IDS_AND_TIMES)


def _column(column: ColumnSpec) -> Column:
    if column.type.listed:
        places = dict(zip(column.values, column.class_of, strict=True))
        other = None if column.other is None else column.classes[places[column.other]]
        return Categories(column.name, column.classes, other)
    if column.range is None:
        raise ValueError(
            f"column {column.name!r}: a summary clips to the schema's range, and it has none: give the smallest and "
            "the largest value that can be right, as range = [0, 120]"
        )
    return Numeric(column.name, *column.range)


LEAST_NOISE: Final = 0.1
MOST_NOISE: Final = 1000.0
NO_SERVERS_NOISE: Final = (
    "privacy.unit 'site', noise that the servers add to sums, no longer exists: take unit = 'record', whose noise "
    "every site adds to its own updates, or leave [privacy] out (docs/privacy_budget.md)"
)
_FITTED: Final = (MissingRule.MEDIAN, MissingRule.INDICATOR)


class PrivacySpec(Message):
    """Noise that hides each single record.

    Every site clips each record's gradient to ``record_clip`` and adds discrete Gaussian noise to their sum, of
    ``noise_multiplier`` times ``record_clip`` as its standard deviation; batches are drawn, each record by itself with
    probability batch_size / examples (docs/protocol.md 19). ``unit`` "site" is read in studies of older versions that
    have ended; no party runs one (``Study.unsupported``).
    """

    KIND: ClassVar[str] = "privacy"
    unit: Literal["record", "site"] = "record"
    record_clip: Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)] | None = omitted()
    noise_multiplier: Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _clips(self) -> PrivacySpec:
        if self.unit == "record" and self.record_clip is None:
            raise ValueError("privacy.unit 'record' clips every record's gradient: give record_clip (1.0 is usual)")
        return self

    @property
    def clip(self) -> float:
        """The record clip of a study that can run. Raises: ValueError, where the unit is 'site'"""
        if self.record_clip is None:
            raise ValueError("a study whose unit is 'site' clips no record")
        return self.record_clip


def require_public_preparation(schema: TableSchema) -> None:
    """Features are made from the schema alone, not from what a site's other records are.

    Raises: ValueError
    """
    if schema.scaling is Scaling.STANDARD:
        raise ValueError(
            "privacy: scaling 'standard' divides by the spread of each site's own records, so one record changes all "
            "others: take scaling 'range' or 'none', or 'common' with numbers that are known beforehand"
        )
    for column in schema.columns:
        if column.missing in _FITTED:
            raise ValueError(
                f"privacy: column {column.name!r} has missing values filled by the site's own median, so one record "
                "changes others: take 'drop_row', 'category' or 'refuse'"
            )
