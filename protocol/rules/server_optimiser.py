"""The step that every site takes with an opened average: plain, or with an adaptive server optimiser.

Paper:  Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021,
        Algorithm 2. With u the opened average, which points uphill (the paper's Delta = -u):
            m = beta_1 m + (1 - beta_1) u
            v = v + u^2                               FedAdagrad
            v = v - (1 - beta_2) u^2 sign(v - u^2)    FedYogi
            v = beta_2 v + (1 - beta_2) u^2           FedAdam
            x = x - eta m / (sqrt(v) + tau)
        m = 0 and v = tau^2 at first. beta_1 = 0.9 and beta_2 = 0.99 unless the study says otherwise; FedAdagrad's
        beta_1 is 0 (their section 5).
Units:  with local SGD u is a sum of gradients, the paper's Delta over the local learning rate; so is tau here.

What a site keeps as its model is the state x, m, v in one vector. Every operation is element by element in float32,
in one fixed order, so that all sites hold the same bits.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolViolation
from protocol.rules.fedopt import require_adaptivity
from protocol.wire.messages import RuleName, RuleSpec
from protocol.wire.studies.study import Study

State: TypeAlias = NDArray[np.float32]
_ADAPTIVE: Final = frozenset({RuleName.FEDADAGRAD, RuleName.FEDADAM, RuleName.FEDYOGI})
_MOMENTUM: Final = 0.9


def state_vectors(rule: RuleName) -> int:
    """S, how many vectors of the model's length a site keeps: the model alone, or with both moments."""
    return 3 if rule in _ADAPTIVE else 1


def initial_state(model: State, spec: RuleSpec) -> State:
    """Return a site's state before the first round: the model, m = 0 and v = tau^2.

    Shapes:   float32[D] -> float32[S * D]
    Raises:   ConfigurationError, as :func:`require_adaptivity`
    """
    require_adaptivity(spec)
    if state_vectors(spec.name) == 1:
        return model.copy()
    tau = np.float32(spec.adaptivity)
    return np.concatenate([model, np.zeros_like(model), np.full_like(model, tau * tau)])


def model_part(state: State, dimension: int) -> State:
    """The model within a state, as a view.

    Raises:   ProtocolViolation, when the state is not a whole number of such models
    """
    if dimension < 1 or state.ndim != 1 or state.size == 0 or state.size % dimension:
        raise ProtocolViolation(f"a state of shape {state.shape} does not hold models of {dimension} parameters")
    return state[:dimension]


def apply_aggregate(state: State, average: State, spec: RuleSpec, server_learning_rate: float) -> State:
    """The state after one released round; the arguments are left as they are.

    Shapes:   float32[S * D], float32[D] -> float32[S * D]
    Raises:   ProtocolViolation, when lengths do not fit, or an adaptive step leaves float32's range
    """
    vectors = state_vectors(spec.name)
    if state.shape != (vectors * average.size,) or {state.dtype, average.dtype} != {np.dtype(np.float32)}:
        raise ProtocolViolation(
            f"rule {spec.name.value!r} keeps float32[{vectors * average.size}], found {state.dtype}{list(state.shape)}"
            f" and an average in {average.dtype}"
        )
    if vectors == 1:
        step = np.multiply(np.float32(server_learning_rate), average, dtype=np.float32)
        return np.subtract(state, step, dtype=np.float32)
    return _adapted(state, average, spec, np.float32(server_learning_rate))


def _adapted(state: State, average: State, spec: RuleSpec, rate: np.float32) -> State:
    """Into one new vector, with one more of length D for the terms."""
    after = state.copy()
    model, first, second = after.reshape(3, average.size)
    beta = np.float32(first_decay(spec))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        term = average * (np.float32(1) - beta)
        first *= beta
        first += term
        np.multiply(average, average, out=term)
        _update_second(second, term, spec)
        np.sqrt(second, out=term)
        term += np.float32(spec.adaptivity)
        np.divide(first, term, out=term)
        term *= rate
        model -= term
    if not np.isfinite(after).all():
        raise ProtocolViolation(
            f"a step of rule {spec.name.value!r} leaves the range of float32 with adaptivity {spec.adaptivity} and "
            f"server learning rate {rate}: the model stays as it was; choose a larger adaptivity or a smaller rate"
        )
    return after


def largest_step(study: Study) -> float:
    """The longest step that a released round can take, in the model's own units (L2 norm).

    Why: no average that passes the check of its norm is longer than the clip norm C but for the rounding, so this is
    how far a requester can move the model in a round by its own update.

    How: plain, eta C. With moments, ||m|| <= C gives eta C / tau. A coordinate's step is |m| / (sqrt(v) + tau) too, and
    where v keeps at least rho v + sigma u^2 of a round (FedAdagrad 1 and 1, FedAdam beta_2 and 1 - beta_2, FedYogi
    2 beta_2 - 1 and 1 - beta_2), Cauchy and Schwarz bound |m| / sqrt(v) by (1 - beta_1) / sqrt(sigma (1 - beta_1^2 /
    rho)); so the step is at most eta sqrt(D) times that, if it is the smaller of the two.
    """
    spec, clip_norm = study.rule, study.parameters.clip_norm
    rate = study.training.server_learning_rate
    if state_vectors(spec.name) == 1:
        return rate * clip_norm
    by_norm = clip_norm / spec.adaptivity
    return rate * min(by_norm, math.sqrt(study.model_dimension) * _largest_ratio(spec))


def _largest_ratio(spec: RuleSpec) -> float:
    """Return the largest ratio of |m| to sqrt(v) in a coordinate; infinite where v forgets faster than m."""
    beta_1, beta_2 = first_decay(spec), spec.second_moment_decay
    kept, taken = 1.0, 1.0
    if spec.name is not RuleName.FEDADAGRAD:
        kept, taken = (2 * beta_2 - 1 if spec.name is RuleName.FEDYOGI else beta_2), 1 - beta_2
    if beta_1 * beta_1 >= kept:
        return math.inf
    return (1 - beta_1) / math.sqrt(taken * (1 - beta_1 * beta_1 / kept))


def first_decay(spec: RuleSpec) -> float:
    """beta_1, the rule's own default where the study leaves it out."""
    if spec.server_momentum is not None:
        return spec.server_momentum
    return 0.0 if spec.name is RuleName.FEDADAGRAD else _MOMENTUM


def _update_second(second: State, squares: State, spec: RuleSpec) -> None:
    """v of the paper, in place; ``squares`` is u^2 and is used up."""
    decay = np.float32(spec.second_moment_decay)
    if spec.name is RuleName.FEDYOGI:
        squares *= np.sign(second - squares)
    elif spec.name is RuleName.FEDADAM:
        second *= decay
    if spec.name is not RuleName.FEDADAGRAD:
        squares *= np.float32(1) - decay
    if spec.name is RuleName.FEDYOGI:
        second -= squares
    else:
        second += squares
