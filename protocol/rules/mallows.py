"""Mallows averaging: a site weighs as much as its noise averaged out is worth more than its difference costs.

Source: Hansen 2007 for the criterion (``risk.py``); among sites, arXiv 2507.14453. The requester's weight is
        1 - sum(w): w = 0 trains alone, w_i = 1 / (n + 1) is FedAvg.
State:  for every two sites the mean over measured rounds of K_ij / v_0, K_ij = (d_i0^2 + d_j0^2 - d_ij^2) / 2, over the
        rounds in which both were measured; with ``averages = "sums"`` the mean of K_ij over that of v_0. A site that
        was never measured is not listed; a late joiner waits for the next measured round, one that is away or fails
        its check keeps its means.
Needs:  the distances of all pairs with all weights 1: in rounds of their own, the first and every ``measure_every``-th,
        which sum nothing; in between the list stays, and norms are opened. v_0 = tr Cov of the requester's clipped
        update never leaves the requester.
Beyond the papers: the sites' policies as constraints, so that no list is made that a site declines for its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement
from typing import Annotated, ClassVar, Final, Literal, Self

import numpy as np
from pydantic import Field

from protocol.channel.message import omitted
from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.messages.round import ListedWeight
from protocol.parameters import Needs
from protocol.rules.interface import (
    Declared,
    EqualRule,
    ListTerms,
    Measured,
    Options,
    RuleState,
    RunningMean,
    counted,
)
from protocol.rules.risk import Choice, Reals, Risk, best_choice, plug_in_risk, raw_risk

_UNKNOWN: Final = 1.0
"""K_ij / v_0 of two sites never measured together: their biases point nowhere in common."""
_NOISE: Final = ""
"""Third in the key of a mean of v_0 over the rounds in which two sites were measured; no site is called so."""


class MallowsOptions(Options):
    """``criterion``, with its factor: ``bias_factor`` b of the plug-in form, ``variance_factor`` c of the raw one;
    sites are measured in the first round and in every ``measure_every``-th after it, between two of which is a sum.
    ``averages``: over rounds, the ratios K_ij / v_0 are averaged, or K_ij and v_0 each for itself: a requester with
    fewer examples than parameters comes to fit them, v_0 goes to 0, and the ratios of late rounds would decide.
    """

    criterion: Literal["plug_in", "raw"] = omitted("plug_in")
    bias_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = omitted(2.0)
    variance_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = omitted(0.5)
    measure_every: Annotated[int, Field(ge=2, le=1000)] = omitted(10)
    averages: Literal["ratios", "sums"] = omitted("ratios")


@dataclass(frozen=True)
class Mallows(EqualRule):
    """``terms`` are the sites' policies and noise; without them no list is refused and all sites have equal noise.

    Nobody weighs anything before it is measured.
    """

    START: ClassVar[float] = 0.0
    options: MallowsOptions
    grid: int
    terms: ListTerms = field(default_factory=ListTerms)
    needs: Needs = Needs.NORMS
    weights_never_rise: bool = False
    selects: bool = False
    measures: bool = True

    def within(self, terms: ListTerms) -> Self:
        return replace(self, terms=terms)

    def measures_next(self, state: RuleState) -> bool:
        return state.since_measured is None or state.since_measured >= self.options.measure_every - 1

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """After a measured round, new means and weights; after a summed one, one round more since then.

        Raises: ProtocolViolation when pairs were opened without the noise of the requester's own update
        """
        if not measured.pairs:
            since = None if state.since_measured is None else state.since_measured + 1
            return counted(state, measured).model_copy(update={"since_measured": since})
        counted(state, measured)
        means = _averaged(state.means, _learned(self.options, measured))
        state = state.model_copy(update={"means": means, "since_measured": 0})
        chosen = self._chosen(state)
        alphas = {name: n / self.grid for name, n in zip(chosen.names, chosen.choice.numerators.tolist(), strict=True)}
        return state.model_copy(
            update={"sites": tuple(s.model_copy(update={"alpha": alphas.get(s.name, 0.0)}) for s in state.sites)}
        )

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        chosen = self._chosen(state)
        found = zip(chosen.names, chosen.choice.numerators.tolist(), strict=True)
        return tuple(ListedWeight(site=name, numerator=n) for name, n in found if n > 0)

    def own_numerator(self, state: RuleState) -> int:
        return self._chosen(state).choice.own

    def _chosen(self, state: RuleState) -> _Chosen:
        sites = tuple((site.name, site.samples) for site in state.sites)
        return _choose(self.options, self.terms, self.grid, sites, state.means)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The choice for these sites, in this order."""

    names: tuple[str, ...]
    choice: Choice


@dataclass(frozen=True, eq=False)
class _Means:
    """K / v_0 of the sites that were measured, or K with v_0 beside it."""

    values: dict[tuple[str, ...], float]

    @cached_property
    def measured(self) -> frozenset[str]:
        return frozenset(of[0] for of in self.values if of[0] == of[1])

    def matrix(self, names: Sequence[str]) -> Reals:
        def mean(one: str, other: str) -> float:
            key = _key(one, other)
            return self.values.get(key, _UNKNOWN) / self.values.get((*key, _NOISE), 1.0)

        return np.array([[mean(one, other) for other in names] for one in names], dtype=np.float64)


@lru_cache(maxsize=256)
def _choose(
    options: MallowsOptions,
    terms: ListTerms,
    grid: int,
    sites: tuple[tuple[str, int], ...],
    means: tuple[RunningMean, ...],
) -> _Chosen:
    """A function of its arguments; planning a round asks for it several times."""
    known = _Means({mean.of: mean.value for mean in means})
    among = [(name, samples) for name, samples in sites if name in known.measured]
    names = tuple(name for name, _ in among)
    if not names:
        return _Chosen((), Choice(grid, np.zeros(0, np.int64)))
    noise = np.array([1.0 if terms.noise is None else terms.noise.of(samples) for _, samples in among])
    return _Chosen(names, best_choice(_risk(options, known.matrix(names), noise), terms, grid))


def _risk(options: MallowsOptions, K: Reals, noise: Reals) -> Risk:
    if options.criterion == "raw":
        return raw_risk(K, options.variance_factor)
    return plug_in_risk(K, noise, options.bias_factor)


def _learned(options: MallowsOptions, measured: Measured) -> dict[tuple[str, ...], float]:
    """Add one round to the means: K_ij / v_0, or K_ij and v_0 beside it. Raises: ProtocolViolation"""
    ratios = _products(measured)
    if options.averages == "ratios" or measured.variance is None:
        return ratios
    noise = measured.variance
    return {key: ratio * noise for key, ratio in ratios.items()} | dict.fromkeys(
        ((*key, _NOISE) for key in ratios), noise
    )


def _products(measured: Measured) -> dict[tuple[str, ...], float]:
    """K_ij / v_0 of one round; none where the requester's update has no noise that could be averaged out.

    Raises: ProtocolViolation when the noise or a distance is missing
    """
    if measured.variance is None:
        raise ProtocolViolation(f"round {measured.round}: pairs were opened, but the requester's own noise is unknown")
    if measured.variance == 0:
        return {}
    squared = {frozenset((pair.first, pair.second)): pair.distance**2 for pair in measured.pairs}
    own = {name: _to_requester(name, squared, measured) for name in measured.took_part}
    found: dict[tuple[str, ...], float] = {}
    for one, other in combinations_with_replacement(measured.took_part, 2):
        apart = 0.0 if one == other else squared.get(frozenset((one, other)))
        if apart is None:
            raise ProtocolViolation(f"round {measured.round}: no distance of {one!r} to {other!r} was opened")
        found[_key(one, other)] = (own[one] + own[other] - apart) / (2 * measured.variance)
    return found


def _to_requester(name: str, squared: dict[frozenset[str], float], measured: Measured) -> float:
    among = set(measured.took_part)
    found = [value for pair, value in squared.items() if name in pair and not pair <= among]
    if len(found) != 1:
        raise ProtocolViolation(f"round {measured.round}: no distance of {name!r} to the requester was opened")
    return found[0]


def _averaged(means: tuple[RunningMean, ...], found: dict[tuple[str, ...], float]) -> tuple[RunningMean, ...]:
    kept = tuple(mean.with_value(found[mean.of]) if mean.of in found else mean for mean in means)
    known = {mean.of for mean in means}
    return kept + tuple(RunningMean(of=of, value=value, rounds=1) for of, value in found.items() if of not in known)


def _key(one: str, other: str) -> tuple[str, ...]:
    return (one, other) if one <= other else (other, one)


def _made(options: MallowsOptions, _batch_size: int, grid: int) -> Mallows:
    chosen = {name: getattr(options, name) for name in MallowsOptions.model_fields}
    return Mallows(MallowsOptions(**chosen), grid)


def _require_factor(options: MallowsOptions) -> None:
    """ConfigurationError for the factor of the form that was not chosen."""
    raw = options.criterion == "raw"
    name, other = ("bias_factor", "plug_in") if raw else ("variance_factor", "raw")
    if getattr(options, name) != MallowsOptions.model_fields[name].default:
        raise ConfigurationError(f"{name} belongs to criterion {other!r}: leave it out, or choose that criterion")


MALLOWS: Final = Declared(
    "mallows",
    _made,
    options=tuple(MallowsOptions.model_fields),
    opens=Needs.NORMS,
    measures=Needs.PAIRS,
    looks_at_examples=True,
    check=_require_factor,
)
