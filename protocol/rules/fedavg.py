"""Federated averaging and its relatives: weights by samples or classes, adaptive optimisers.

Federated averaging with uniform weights: every contributor counts as much as the requester.

Paper:  McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
        from Decentralized Data", AISTATS 2017; here weighted 1 / n, as the Weight Erosion papers compare with.
Needs:  nothing but the range check; the norms where updates beyond a bound are left out.

By sample count a site counts as much as it has training samples.

Paper:  the same: sum n_i g_i / sum n_i.
Needs:  nothing but the range check; with a norm bound the weighted norms. Each site scales its update by its own weight
        (``sample_weight``) and shares that weight as one more coordinate, so that nobody else sees it (a norm
        bound shows it to the requester); the list says 1 for every site.

WFedAvg: a site counts the more, the more evenly its samples cover the classes.

Paper:  Cerasti et al. 2023: w_i proportional to 1 / sum_j P_j p_ij^2, P_j the share of class j in all samples and
        p_ij its share at site i.
Needs:  nothing but the range check; with a norm bound the weighted norms. The class totals are summed once, before the
        first update; each site computes its own weight from them (``class_weight``), scales its update by it
        and shares it as one more coordinate. Nobody learns another site's class counts or weight (a norm bound shows
        the requester the weight); the list says 1 for every site.

FedAdagrad, FedAdam, FedYogi: a uniform average, applied by an adaptive optimiser that every site runs alike.

Paper:  Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021,
        Algorithm 2; the step itself is in ``protocol/shared_model.py``.
Needs:  nothing but the range check; the norms where updates beyond a bound are left out.

A self-weighted site scales its clipped update by w in [1/grid, 1] and shares w C as one more coordinate, so nobody
else sees w and the sum can still be divided by the sum of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, ClassVar, Final, Self

import numpy as np
from pydantic import Field

from protocol.arithmetic.ring import Ring
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.parameters import Needs, StudyParameters
from protocol.rules.interface import (
    Declared,
    EqualRule,
    Measured,
    Options,
    RuleState,
    within_bound,
)


class NormBound(Options):
    """``norm_bound``: the longest update that is released; where sites weigh themselves, the longest (w g, w C):
    sqrt(B^2 + C^2) for updates of length B and weight 1.
    """

    norm_bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@dataclass(frozen=True)
class FedAvg(EqualRule):
    """Weight 1 for everybody, always; ``norm_bound`` leaves out longer updates."""

    grid: int
    norm_bound: float | None = None
    weights_never_rise: bool = True
    selects: bool = False

    BOUNDED_BY: ClassVar[Needs] = Needs.NORMS
    """The quantity that a norm bound has opened."""

    @classmethod
    def made(cls, options: NormBound, _batch_size: int, grid: int) -> Self:
        return cls(grid, options.norm_bound)

    @property
    def needs(self) -> Needs:
        return Needs.NOTHING if self.norm_bound is None else self.BOUNDED_BY

    def select(self, state: RuleState, measured: Measured) -> tuple[str, ...]:
        return within_bound(measured, self.norm_bound)


FEDAVG: Final = Declared("fedavg", FedAvg.made, options=("norm_bound",), only_averages=True)


class SampleOptions(Options):
    """``largest_count``: the number of samples whose weight is 1; None: the largest in the roster."""

    largest_count: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class FedAvgBySamples(FedAvg):
    """The requester's part: list everybody. A norm bound shows it the weights, so sites must allow that."""

    BOUNDED_BY: ClassVar[Needs] = Needs.WEIGHTED_NORMS


FEDAVG_BY_SAMPLES: Final = Declared(
    "fedavg_by_samples",
    FedAvgBySamples.made,
    options=("norm_bound", "largest_count"),
    bounded_by=FedAvgBySamples.BOUNDED_BY,
    self_weighted=True,
    only_averages=True,
)


@dataclass(frozen=True)
class WFedAvg(FedAvg):
    """The requester's part: list everybody. A norm bound shows it the weights, so sites must allow that."""

    BOUNDED_BY: ClassVar[Needs] = Needs.WEIGHTED_NORMS


WFEDAVG: Final = Declared(
    "wfedavg",
    WFedAvg.made,
    options=("norm_bound",),
    bounded_by=WFedAvg.BOUNDED_BY,
    self_weighted=True,
    counts_classes=True,
    only_averages=True,
)


_ADAPTIVITIES: Final = (1e-12, 1e12)
_OPTIONS: Final = ("norm_bound", "server_momentum", "adaptivity")


class OptimiserOptions(Options):
    """``server_momentum`` beta_1 (None: 0.9, FedAdagrad 0), ``second_moment_decay`` beta_2, ``adaptivity`` tau."""

    server_momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    second_moment_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    adaptivity: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """The requester's part, which is FedAvg's: weight 1 for everybody, always."""


def require_adaptivity(options: OptimiserOptions) -> None:
    """ConfigurationError when tau^2 is too large or small for float32."""
    lowest, highest = _ADAPTIVITIES
    if not lowest <= options.adaptivity <= highest:
        raise ConfigurationError(f"adaptivity lies between {lowest} and {highest}, found {options.adaptivity}")


FEDADAGRAD: Final = Declared("fedadagrad", FedOpt.made, options=_OPTIONS, check=require_adaptivity)
FEDADAM: Final = replace(FEDADAGRAD, name="fedadam", options=(*_OPTIONS, "second_moment_decay"))
FEDYOGI: Final = replace(FEDADAM, name="fedyogi")


_SAMPLES_PER_NORM: Final = 4


def sample_weight(count: int, largest_count: int, grid: int) -> float:
    """The weight of a site with ``count`` training samples: count / largest_count, within [1/grid, 1].

    Source:  McMahan et al. 2017, n_k / n, up to a factor that the sum of weights takes out again
    Raises:  UnusableUpdate without samples; ConfigurationError for a largest count below 1
    """
    if count < 1:
        raise UnusableUpdate(f"this site has {count} training samples: it has nothing to contribute")
    if largest_count < 1:
        raise ConfigurationError(f"largest_count is the number of samples of weight 1, found {largest_count}")
    return _within_grid(Fraction(count, largest_count), grid)


def class_weight(counts: Sequence[int], totals: Sequence[int], grid: int) -> float:
    """The weight of a site with ``counts`` samples of each class, all sites together having ``totals``.

    1 / sum_j P_j p_ij^2, with P_j the share of class j in ``totals`` and p_ij its share at the site, divided by the
    largest value that any site could have, sum_j 1 / P_j (at p_ij proportional to 1 / P_j); not below 1/grid. A rare
    class makes that largest value large and all weights small: below 1/grid sites weigh the same.

    Source:  Cerasti et al. 2023, WFedAvg
    Raises:  UnusableUpdate when the counts are no counts of these classes; ConfigurationError when a class has no
             samples at any site
    """
    if len(counts) != len(totals) or min(counts, default=0) < 0 or sum(counts) < 1:
        raise UnusableUpdate(
            f"a site counts its samples of {len(totals)} classes, at least one in all, found {list(counts)}"
        )
    missing = [place for place, total in enumerate(totals) if total < 1]
    if missing:
        raise ConfigurationError(
            f"no site has training samples of classes {missing}; check the labels, or declare fewer classes"
        )
    own, everywhere = sum(counts), sum(totals)
    spread = Fraction(sum(total * n * n for n, total in zip(counts, totals, strict=True)), everywhere * own * own)
    largest = sum((Fraction(everywhere, total) for total in totals), Fraction(0))
    return _within_grid(1 / (spread * largest), grid)


def counts_vector(counts: Sequence[int], parameters: StudyParameters) -> Ring:
    """The site's class counts as it shares them: plain integers first, zeros behind.

    Fewer than 4 E samples: then no projection of the range check is out of range (docs/protocol.md 6).

    Shapes:   -> uint64[D], ring 2^64, no fraction bits
    Raises:   UnusableUpdate when the counts do not fit
    """
    largest = _SAMPLES_PER_NORM * parameters.encoded_norm - 1
    if len(counts) > parameters.dimension:
        raise UnusableUpdate(f"{len(counts)} class counts do not fit a vector of {parameters.dimension} coordinates")
    if min(counts, default=0) < 0 or not 1 <= sum(counts) <= largest:
        raise UnusableUpdate(
            f"a site's class counts are at least 0 and sum to 1 to {largest} samples, found {list(counts)}"
        )
    vector = np.zeros(parameters.dimension, dtype=np.uint64)
    vector[: len(counts)] = counts
    return vector


def _within_grid(weight: Fraction, grid: int) -> float:
    """Rounded to a float inside [1/grid, 1]."""
    return max(1.0 / grid, float(min(weight, Fraction(1))))
