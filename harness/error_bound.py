r"""How far apart the models of a secure and a plain run can be, same seeds and same weights (docs/protocol.md 2, 9).

Let theta be the secure model, phi the plain one, delta_r = ||theta_r - phi_r||. Both take
``model - eta * average``, the average being sum_i w_i clip(g_i) / W with W the sum of weights, the requester's 1
included. For softmax regression each g_i is the gradient of a convex function over one batch, and the Hessian of
sum_i w_i g_i / W is at most L = lambda_max(S) / 2 + l2, where S averages x x^T over the sites' batches by weight (x
with the bias's 1 appended). A site's own Hessian is at most L_1 = max|x|^2 / 2 + l2. Then

    delta_{r+1} <= q_r delta_r + eta * e_r + a_r

    q_r   max(1, eta L - 1) when no site's update was clipped: I - eta H with 0 <= H <= L.
          1 + eta L_1 otherwise: clipping is a projection, so it never spreads two updates further apart.
    e_r   n sqrt(D) 2^-f / W: stochastic rounding moves each of n sites' D coordinates by less than 2^-f;
          plus 2 g, where g is what float32 does to the average gradient (below); plus 2 u C for rounding the average
          to float32, u = 2^-24, an average's norm being at most C.
    a_r   2 u (2 eta C + M), rounding in eta * average and in the subtraction; M bounds both models' norms.

    g = sqrt(K)/2 c(d+1) M mean(|x|^2) + (sqrt(K) c(8) + sqrt(2) c(b+2)) mean(|x|) + 2 u l2 M,  c(m) = m u / (1 - m u)

for K classes, d inputs and batches of b rows, means over the rows by weight: an inner product of m terms is wrong by
at most c(m) times the product of the norms, softmax is 1/2-Lipschitz and takes about 8 roundings, a row's gradient has
norm at most sqrt(2) |x|. M = ||phi_r|| + delta_r. Encoding and clipping run in float64, whose rounding is 2^-29 of it.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 3.1 (c is his gamma); Nesterov, 2.1 (I - eta H).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_agent.models import build_model
from client_agent.trainer import gradient_rows, site_seed
from client_agent.update import model_vector
from harness.datasets.site_data import SiteData
from harness.history import RoundRecord, RunHistory
from protocol.errors import ConfigurationError
from protocol.parameters import StudyParameters
from protocol.wire.messages import Study

_UNIT = 2.0**-24


@dataclass(frozen=True)
class RoundFacts:
    """One round: n ``sites``, W, L, the rows' mean length and mean square, ||phi_r|| before it; requester included."""

    sites: int
    sum_of_weights: float
    smoothness: float
    mean_length: float
    mean_square: float
    model_norm: float
    clipped: bool


@dataclass(frozen=True)
class RegressionFacts:
    """The softmax regression that was trained: sizes, l2, and the longest row with the bias's 1."""

    classes: int
    inputs: int
    batch_size: int
    longest_row: float
    l2: float


def smoothness(batches: Sequence[tuple[float, NDArray[np.float32]]], l2: float) -> float:
    """L of the weighted average of softmax regressions: half the largest eigenvalue of the rows' second moment.

    Shapes:   every batch comes with its weight, X float32[b, ...] without the bias's column
    """
    total = sum(weight for weight, _ in batches)
    rows = [math.sqrt(weight / total / len(X)) * with_bias(X) for weight, X in batches]
    return float(np.linalg.norm(np.vstack(rows), ord=2) ** 2) / 2 + l2


def with_bias(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Flat rows in float64 with the bias's 1 appended."""
    return np.hstack([X.reshape(len(X), -1).astype(np.float64), np.ones((len(X), 1))])


def longest_row(X: NDArray[np.float32]) -> float:
    """The largest norm of a row, the bias's 1 appended."""
    return float(np.linalg.norm(with_bias(X), axis=1).max())


def difference_bound(
    rounds: Sequence[RoundFacts], model: RegressionFacts, parameters: StudyParameters, step: float
) -> float:
    """A bound on ||theta - phi|| after ``rounds``, hence on every coordinate; ``step`` is the server's eta."""
    worst = model.longest_row**2 / 2 + model.l2
    clip_norm = parameters.clip_norm
    delta = 0.0
    for facts in rounds:
        norm = facts.model_norm + delta
        growth = 1 + step * worst if facts.clipped else max(1.0, step * facts.smoothness - 1)
        encoding = facts.sites * math.sqrt(parameters.dimension) / parameters.scale / facts.sum_of_weights
        rounding = step * 2 * (_gradient_error(facts, model, norm) + _UNIT * clip_norm)
        delta = growth * delta + step * encoding + rounding + 2 * _UNIT * (2 * step * clip_norm + norm)
    return delta


def _gradient_error(facts: RoundFacts, model: RegressionFacts, norm: float) -> float:
    """g: how far an average gradient computed in float32 can be from the exact one."""
    root = math.sqrt(model.classes)
    logits = root / 2 * _gamma(model.inputs + 1) * norm * facts.mean_square
    rest = (root * _gamma(8) + math.sqrt(2) * _gamma(model.batch_size + 2)) * facts.mean_length
    return logits + rest + 2 * _UNIT * model.l2 * norm


def bound_of_run(history: RunHistory, study: Study, sites: Sequence[SiteData]) -> float:
    """The bound for a softmax regression that ``history`` trained by mini-batch gradients; it needs every site's data.

    Raises: ConfigurationError for another model, or updates that are not gradients
    """
    if study.model.kind != "linear" or study.training.update != "gradient" or study.seed is None:
        raise ConfigurationError("the bound is derived for a linear model trained by mini-batch gradients, seeded")
    model = RegressionFacts(
        classes=study.model.classes,
        inputs=math.prod(study.model.inputs),
        batch_size=study.training.batch_size,
        longest_row=max(longest_row(site.train.X) for site in sites),
        l2=study.training.l2,
    )
    initial = float(np.linalg.norm(model_vector(build_model(study.model, study.seed)).astype(np.float64)))
    norms = [initial, *(record.model_norm for record in history.rounds)]
    rounds = [
        _round_facts(record, norm, study, study.seed, sites)
        for record, norm in zip(history.rounds, norms, strict=False)
    ]
    return difference_bound(rounds, model, study.parameters, study.training.server_learning_rate)


def _round_facts(
    record: RoundRecord, model_norm: float, study: Study, seed: int, sites: Sequence[SiteData]
) -> RoundFacts:
    weights = {w.site: w.numerator / study.parameters.weight_grid for w in record.handed_out}
    taking_part = [(1.0, sites[0]), *((weights[s.name], s) for s in sites if s.name in record.took_part)]
    batches = [
        (weight, site.train.X[gradient_rows(len(site.train), study.training, record.round, site_seed(seed, site.name))])
        for weight, site in taking_part
    ]
    total = sum(weight for weight, _ in taking_part)
    lengths = [(weight / total, np.linalg.norm(with_bias(X), axis=1)) for weight, X in batches]
    return RoundFacts(
        sites=len(taking_part),
        sum_of_weights=total,
        smoothness=smoothness(batches, study.training.l2),
        mean_length=sum(weight * float(np.mean(rows)) for weight, rows in lengths),
        mean_square=sum(weight * float(np.mean(rows**2)) for weight, rows in lengths),
        model_norm=model_norm,
        clipped=record.clipped_share > 0,
    )


def _gamma(terms: int) -> float:
    return terms * _UNIT / (1 - terms * _UNIT)
