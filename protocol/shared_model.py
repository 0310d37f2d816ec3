"""The shared model at every site: its version 0, and the step with an opened average (docs/protocol.md 10, 12).

Every site derives version 0 by itself and compares it. Why: a requester that chooses the first model can choose one
whose gradients hold single records, and read them out of an honest sum of several sites (trap weights, Boenisch et al.
2023; MediLeak, Shi et al. 2024).

How: AES-256-CTR under a key that follows from the study gives one 64-bit word per coordinate, in the order of the flat
vector. A layer's name and shape say what becomes of its words:

    shape of two or more dimensions     uniform within +-1/sqrt(fan_in), fan_in the product of all but the first
    ``bias`` of such a ``weight``       uniform within the bound of its weight
    other ``weight``                    ones (the scale of a normalisation)
    ``running_var``                     ones (the averaged variance of a normalisation)
    everything else                     zeros

which is torch's default for linear and convolutional layers and for normalisations. A word's upper 53 bits u give
float32((2 u / 2^53 - 1) * bound): every operation is one that IEEE 754 rounds in one way, so every CPU has the same
bits. Words are drawn for ones and zeros too, so that a layer's values do not depend on what stands before it but size.

The step is plain, or with an adaptive server optimiser.

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

import hashlib
import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Usage, expand
from protocol.errors import ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec
from protocol.messages.model import LayerShape
from protocol.messages.study import Study
from protocol.rules.fedavg import require_adaptivity

_CHUNK: Final = 1 << 16
_SHIFT: Final = np.uint64(11)
_STEP: Final = 2.0**-52
_ONES: Final = ("weight", "running_var")


def first_model(study: Study) -> NDArray[np.float32]:
    """Version 0 of the study's model: from its seed where it has one, so that simulations compare, else its digest.

    Shapes:   -> float32[D], the shared layers
    """
    if study.seed is not None:
        return seeded_model(study.model.layers, study.seed)
    return drawn_model(study.model.layers, _key(f"study {study.digest()}"))


def seeded_model(layers: Sequence[LayerShape], seed: int) -> NDArray[np.float32]:
    """Version 0 of every study with this seed and these layers."""
    return drawn_model(layers, _key(f"seed {seed}"))


def drawn_model(layers: Sequence[LayerShape], key: bytes) -> NDArray[np.float32]:
    """The layers' first values under one 32-byte key, one layer after the other. Shapes: -> float32[D]"""
    out = np.zeros(sum(math.prod(layer.shape) for layer in layers), dtype=np.float32)
    start, bounds = 0, dict[str, float]()
    for layer in layers:
        stop = start + math.prod(layer.shape)
        bound = _bound(layer, bounds)
        if bound > 0:
            _draw_into(out[start:stop], key, start, bound)
        elif _last(layer) in _ONES:
            out[start:stop] = 1.0
        start = stop
    return out


def model_digest_of(model: NDArray[np.float32]) -> str:
    """Return the digest that a study pins for a pretrained start: SHA-256 over the little-endian float32 values."""
    return hashlib.sha256(np.ascontiguousarray(model, dtype="<f4").tobytes()).hexdigest()


def _bound(layer: LayerShape, bounds: dict[str, float]) -> float:
    """Return the bound of the uniform draw, 0 for a constant; notes what a layer's weight leaves for its bias."""
    module = layer.name.rpartition(".")[0]
    if len(layer.shape) > 1:
        bound = 1 / math.sqrt(math.prod(layer.shape[1:]))
        if _last(layer) == "weight":
            bounds[module] = bound
        return bound
    return bounds.get(module, 0.0) if _last(layer) == "bias" else 0.0


def _last(layer: LayerShape) -> str:
    return layer.name.rpartition(".")[2]


def _draw_into(out: NDArray[np.float32], key: bytes, place: int, bound: float) -> None:
    for start in range(0, out.size, _CHUNK):
        piece = out[start : start + _CHUNK]
        words = expand(key, Usage.FIRST_MODEL, piece.size, start=place + start)
        piece[:] = ((words >> _SHIFT).astype(np.float64) * _STEP - 1.0) * bound


def _key(text: str) -> bytes:
    return hashlib.sha256(f"moiety first model, {text}".encode()).digest()


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
        return plain_step(state, average, server_learning_rate)
    return _adapted(state, average, spec, np.float32(server_learning_rate))


def plain_step(model: State, average: State, server_learning_rate: float) -> State:
    """The model after a step without moments, float32[D]: in this order of operations, so that all sites agree."""
    step = np.multiply(np.float32(server_learning_rate), average, dtype=np.float32)
    return np.subtract(model, step, dtype=np.float32)


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
