r"""How far apart the averages of a secure and a plain round can be, each from its own model (docs/protocol.md 2).

For softmax regression each g_i is the gradient of a convex function over one batch, and the Hessian of
sum_i w_i g_i / W is at most L = lambda_max(S) / 2 + l2, where S averages x x^T over the sites' batches by weight (x
with the bias's 1 appended). A site's own Hessian is at most L_1 = max|x|^2 / 2 + l2; clipping is a projection, so it
never spreads two updates further apart. From models that are delta apart, the averages are at most L delta + e apart
(L_1 where an update was clipped), with

    e   n sqrt(D) 2^-f / W: stochastic rounding moves each of n sites' D coordinates by less than 2^-f;
        where sites weigh themselves n (sqrt(D) + 1) 2^-f / (W - n / E): the opened sum of weights is off by less than
        n / E too, and the average it divides has norm at most C = E 2^-f;
        plus 2 g, where g is what float32 does to the average gradient (below); plus 2 u C for rounding the average
        to float32, u = 2^-24, an average's norm being at most C.

    g = sqrt(K)/2 c(d+1) M mean(|x|^2) + (sqrt(K) c(8) + sqrt(2) c(b+2)) mean(|x|) + 2 u l2 M,  c(m) = m u / (1 - m u)

for K classes, d inputs and batches of b rows, means over the rows by weight: an inner product of m terms is wrong by
at most c(m) times the product of the norms, softmax is 1/2-Lipschitz and takes about 8 roundings, a row's gradient has
norm at most sqrt(2) |x|. M bounds both models' norms. Encoding and clipping run in float64, whose rounding is 2^-29 of
it. Both runs use the same weights: those on the list, or those that follow from the sites' data.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 3.1 (c is his gamma)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.trainer import gradient_rows
from client_agent.learning.training_seeds import site_seed
from harness.datasets.site_data import SiteData
from harness.engine.history import RoundRecord, RunHistory
from harness.engine.updates import own_weight
from protocol.ckks.ciphertext import CkksParameters
from protocol.errors import ConfigurationError
from protocol.messages.control import Study
from protocol.parameters import StudyParameters

UNIT: Final = 2.0**-24


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
    self_weighted: bool = False
    rounded: bool = True


@dataclass(frozen=True)
class RegressionFacts:
    """The softmax regression that was trained: sizes, l2, and the longest row with the bias's 1."""

    classes: int
    inputs: int
    batch_size: int
    longest_row: float
    l2: float

    @property
    def one_site(self) -> float:
        """L_1."""
        return self.longest_row**2 / 2 + self.l2


def average_error(facts: RoundFacts, model: RegressionFacts, parameters: StudyParameters, norm: float) -> float:
    """e for models of norm at most ``norm``."""
    encoding = facts.sites * math.sqrt(parameters.dimension) / parameters.scale / facts.sum_of_weights
    if facts.self_weighted:
        opened_weights = facts.sum_of_weights - facts.sites / parameters.encoded_norm
        encoding = facts.sites * (math.sqrt(parameters.dimension) + 1) / parameters.scale / opened_weights
    if not facts.rounded:
        encoding = encryption_error(facts, parameters)
    return encoding + 2 * (_gradient_error(facts, model, norm) + UNIT * parameters.clip_norm)


def encryption_error(facts: RoundFacts, parameters: StudyParameters) -> float:
    """How far the average under CKKS can be from the exact one, in L2 norm (docs/protocol.md 11).

    A decrypted value of a sum of n ciphertexts is off by s sqrt(n), in units of C, s = ``value_deviation``; within
    d = 8 standard deviations, so are the vector by d sqrt(D) and the sum of weights W by d. S/W has norm at most C,
    and S'/W' - S/W = (S' - S)/W' + S/W (W - W')/W'.
    """
    off = 8 * CkksParameters().value_deviation * math.sqrt(facts.sites)
    return parameters.clip_norm * off * (math.sqrt(parameters.dimension) + 1) / (facts.sum_of_weights - off)


def gamma(terms: int) -> float:
    """c(m)."""
    return terms * UNIT / (1 - terms * UNIT)


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


def regression_facts(study: Study, sites: Sequence[SiteData]) -> RegressionFacts:
    """Raises: ConfigurationError for another model, or updates that are not gradients of the plain mean loss"""
    training = study.training
    plain_gradients = training.update == "gradient" and training.class_weights == "none"
    if study.model.kind != "linear" or study.model.personal or not plain_gradients or study.seed is None:
        raise ConfigurationError(
            "the bound is derived for a linear model without personal layers, trained by mini-batch gradients without "
            "class weights, seeded"
        )
    return RegressionFacts(
        classes=study.model.classes,
        inputs=math.prod(study.model.inputs),
        batch_size=training.batch_size,
        longest_row=max(longest_row(site.train.X) for site in sites),
        l2=training.l2,
    )


def round_facts(
    history: RunHistory, record: RoundRecord, model_norm: float, study: Study, sites: Sequence[SiteData]
) -> RoundFacts:
    """The facts of one round in which the model moved; ``model_norm`` is ||phi_r|| before it."""
    taking_part = [(weight_of(history, record, site, study, sites), site) for site in summed_sites(record, sites)]
    batches = [
        (weight, site.train.X[gradient_rows(len(site.train), study.training, record.round, _seed(study, site))])
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
        self_weighted=study.rule.name.self_weighted,
        rounded=study.protection.plan.rounded or not record.took_part,
    )


def summed_sites(record: RoundRecord, sites: Sequence[SiteData]) -> list[SiteData]:
    """The requester and the contributors in a round's sum."""
    return [sites[0], *(site for site in sites if site.name in record.took_part)]


def weight_of(
    history: RunHistory, record: RoundRecord, site: SiteData, study: Study, sites: Sequence[SiteData]
) -> float:
    """A site's weight in a round: the one it gives itself, the listed one, or the rest for the requester."""
    totals = next((one.class_totals for one in history.rounds if one.class_totals), ())
    largest = study.rule.largest_count or max(len(one.train) for one in sites)
    own = own_weight(study, site, totals, largest) if record.took_part else None
    if own is not None:
        return own
    if site is sites[0] and record.sum_of_weights is not None:
        others = sum(weight.numerator for weight in record.handed_out if weight.site in record.took_part)
        return record.sum_of_weights - others / study.parameters.weight_grid
    numerators = {weight.site: weight.numerator for weight in record.handed_out}
    return numerators.get(site.name, study.parameters.weight_grid) / study.parameters.weight_grid


def _gradient_error(facts: RoundFacts, model: RegressionFacts, norm: float) -> float:
    """g: how far an average gradient computed in float32 can be from the exact one."""
    root = math.sqrt(model.classes)
    logits = root / 2 * gamma(model.inputs + 1) * norm * facts.mean_square
    rest = (root * gamma(8) + math.sqrt(2) * gamma(model.batch_size + 2)) * facts.mean_length
    return logits + rest + 2 * UNIT * model.l2 * norm


def _seed(study: Study, site: SiteData) -> int:
    return site_seed(study.seed or 0, site.name)
