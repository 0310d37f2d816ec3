r"""How far apart a secure and a plain model can be where a server optimiser applies the average (docs/protocol.md 9).

With u the opened average, m the first moment, s = sqrt(v) and a = 1 - beta_2 (:mod:`protocol.shared_model`),
and delta the distance of the two runs' vectors in L2 norm, one round gives

    delta_u  <= L delta_theta + e                               (:mod:`tests.kit.bounds.regression_facts`)
    delta_m' <= beta_1 delta_m + (1 - beta_1) delta_u + 2 c(3) C
    delta_s' <= (1 + k) A + 2 k ||s'||
    delta_z  <= eta (delta_m' + r delta_s') / max(tau, F - delta_s')     z = eta m' / (s' + tau), the step
    delta_theta' <= delta_theta + (1 + c(6)) delta_z + 2 c(6) ||z|| + 2 u M

    r, F   max_j |m'_j| / (s'_j + tau) and min_j (s'_j + tau) in the plain run: the two quotients differ by
           (m - m~) / (s + tau) + m~ / (s~ + tau) (s~ - s) / (s + tau). The division amplifies, at worst by 1 / tau:
           a small tau makes the bound large, within a few rounds larger than any model, and so says nothing.
    A      FedAdam: sqrt(beta_2 delta_s^2 + a delta_u^2), because s' = sqrt(beta_2 s^2 + a u^2) is a norm, hence
           1-Lipschitz; FedAdagrad: the same with both factors 1; k = c(4).
           FedYogi: where v < u^2, s' = sqrt(s^2 + a u^2), as above. Where v > u^2, s' = sqrt(s^2 - a u^2) has slopes of
           at most 1 and a times 1 / sqrt(1 - a), on a convex set. A = (delta_s + a delta_u) / sqrt(1 - a) covers both.
           In between s' jumps from sqrt(1 - a) s to sqrt(1 + a) s: for every coordinate with
           ||u_j| - s_j| <= delta_s + delta_u + c(4) s_j in the plain run the runs may be on different sides, which adds
           (sqrt(1 + a) - sqrt(1 - a)) (s_j + delta_s), in L2 norm. k = c(4) (1 + a) / (1 - a).
    c, M   as there; products and sums in float32 move m' by c(3) C at most, v' by its k-th part, z by its c(6)-th.
           The decays and tau are the float32 numbers that both runs use.

The plain run's own numbers, F, r, ||s'||, ||z||, come from taking its steps again from its history.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.flat_vector import Vector
from client_agent.learning.models import build_model
from harness.datasets.site_data import SiteData
from harness.engine.history import RoundKind, RoundRecord, RunHistory
from harness.engine.updates import Training, average, clipped_update
from protocol.errors import ConfigurationError
from protocol.messages.control import ListedWeight, RuleName, RuleSpec, Study
from protocol.parameters import StudyParameters
from protocol.shared_model import apply_aggregate, first_decay, first_model, initial_state
from tests.kit.bounds.regression_facts import UNIT, RegressionFacts, RoundFacts, average_error, gamma, summed_sites


@dataclass(frozen=True, eq=False)
class AdaptiveRound:
    """One round of the plain run: F, r, ||s'||, ||z||, ||theta'|| after it; s and ||u| - s| before it, float64[D]."""

    floor: float
    ratio: float
    scale_norm: float
    step_norm: float
    model_norm: float
    scales: NDArray[np.float64] = field(repr=False)
    margins: NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True)
class _Differences:
    model: float = 0.0
    first: float = 0.0
    scale: float = 0.0


def adaptive_difference(
    rounds: Sequence[RoundFacts],
    trajectory: Sequence[AdaptiveRound],
    model: RegressionFacts,
    parameters: StudyParameters,
    spec: RuleSpec,
    step: float,
) -> float:
    """A bound on ||theta - phi|| after ``rounds``; ``step`` is the server's eta. Infinite once it leaves float64."""
    delta = _Differences()
    for facts, taken in zip(rounds, trajectory, strict=True):
        slope = model.one_site if facts.clipped else facts.smoothness
        norm = facts.model_norm + delta.model
        averages = slope * delta.model + average_error(facts, model, parameters, norm)
        beta = float(np.float32(first_decay(spec)))
        first = beta * delta.first + (1 - beta) * averages + 2 * gamma(3) * parameters.clip_norm
        scale = _scale_difference(delta.scale, averages, taken, spec)
        steps = step * (first + taken.ratio * scale) / max(spec.adaptivity, taken.floor - scale)
        rounding = 2 * gamma(6) * taken.step_norm + 2 * UNIT * (taken.model_norm + delta.model + steps)
        delta = _Differences(delta.model + (1 + gamma(6)) * steps + rounding, first, scale)
        if not math.isfinite(delta.model):
            return math.inf
    return delta.model


def _scale_difference(before: float, averages: float, taken: AdaptiveRound, spec: RuleSpec) -> float:
    """delta_s'."""
    decay = np.float32(spec.second_moment_decay)
    a, rounding = float(np.float32(1) - decay), gamma(4)
    if spec.name is RuleName.FEDYOGI:
        rounding *= (1 + a) / (1 - a)
        either_side = taken.margins <= before + averages + gamma(4) * taken.scales
        jumps = (math.sqrt(1 + a) - math.sqrt(1 - a)) * (taken.scales[either_side] + before)
        exact = (before + a * averages) / math.sqrt(1 - a) + float(np.linalg.norm(jumps))
    elif spec.name is RuleName.FEDADAM:
        exact = math.hypot(math.sqrt(float(decay)) * before, math.sqrt(a) * averages)
    else:
        exact = math.hypot(before, averages)
    return (1 + rounding) * exact + 2 * rounding * taken.scale_norm


def adaptive_rounds(history: RunHistory, study: Study, sites: Sequence[SiteData]) -> tuple[AdaptiveRound, ...]:
    """The plain run's steps, taken again.

    Raises: ConfigurationError when they do not end at the history's model: it is no plain run of these sites
    """
    state = initial_state(first_model(study), study.rule)
    taken = []
    for record in history.rounds:
        if record.kind not in (RoundKind.RELEASED, RoundKind.ALONE):
            continue
        averaged = _average_again(record, state, study, sites)
        after = apply_aggregate(state, averaged, study.rule, study.training.server_learning_rate)
        taken.append(_facts(state, averaged, after, study))
        state = after
    if not np.array_equal(state[: study.model_dimension], history.final_model):
        raise ConfigurationError(
            "the bound follows a plain run's own steps, and this history is not one of these sites"
        )
    return tuple(taken)


def _average_again(record: RoundRecord, state: Vector, study: Study, sites: Sequence[SiteData]) -> Vector:
    training = Training(study, build_model(study.model, study.seed or 0))
    grid = study.parameters.weight_grid
    numerators = {weight.site: weight.numerator for weight in record.handed_out}
    own, *others = (
        clipped_update(training, site, state[: study.model_dimension], record.round)
        for site in summed_sites(record, sites)
    )
    names = [site.name for site in summed_sites(record, sites)[1:]]
    weights = [ListedWeight(site=name, numerator=numerators[name]) for name in names]
    return average(own.values, list(zip(weights, others, strict=True)), grid)


def _facts(before: Vector, averaged: Vector, after: Vector, study: Study) -> AdaptiveRound:
    _, _, second = _parts(before)
    model, first, second_after = _parts(after)
    scales, divisors = np.sqrt(second), np.sqrt(second_after) + study.rule.adaptivity
    quotients = np.abs(first) / divisors
    return AdaptiveRound(
        floor=float(divisors.min()),
        ratio=float(quotients.max()),
        scale_norm=float(np.linalg.norm(np.sqrt(second_after))),
        step_norm=study.training.server_learning_rate * float(np.linalg.norm(quotients)),
        model_norm=float(np.linalg.norm(model)),
        scales=scales,
        margins=np.abs(np.abs(averaged.astype(np.float64)) - scales),
    )


def _parts(state: Vector) -> Iterator[NDArray[np.float64]]:
    """Model, m and v."""
    return iter(state.astype(np.float64).reshape(3, -1))
