"""Server optimisers against Reddi et al. 2021, Algorithm 2, taken one number at a time in the paper's own signs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.shared_model import apply_aggregate, initial_state, largest_step, model_part, state_vectors
from tests.unit.parties import study

ADAPTIVE = (RuleName.FEDADAGRAD, RuleName.FEDADAM, RuleName.FEDYOGI)
OTHERS = tuple(name for name in RuleName if name not in ADAPTIVE)
f32 = np.float32


def spec(name: RuleName, momentum: float | None = None, decay: float = 0.99, tau: float = 1e-3) -> RuleSpec:
    return RuleSpec(name=name, server_momentum=momentum, second_moment_decay=decay, adaptivity=tau)


class SlowOptimiser:
    """Algorithm 2 for one coordinate, Delta pointing downhill, every operation rounded to float32."""

    def __init__(self, name: RuleName, x: f32, beta_1: float, beta_2: float, tau: float, eta: float) -> None:
        self.name, self.x, self.m, self.v = name, x, f32(0), f32(tau) * f32(tau)
        self.beta_1, self.beta_2, self.tau, self.eta = f32(beta_1), f32(beta_2), f32(tau), f32(eta)

    def step(self, delta: f32) -> None:
        one = f32(1)
        self.m = self.beta_1 * self.m + (one - self.beta_1) * delta
        square = delta * delta
        if self.name is RuleName.FEDADAGRAD:
            self.v = self.v + square
        elif self.name is RuleName.FEDYOGI:
            self.v = self.v - (one - self.beta_2) * square * np.sign(self.v - square)
        else:
            self.v = self.beta_2 * self.v + (one - self.beta_2) * square
        self.x = self.x + self.eta * (self.m / (np.sqrt(self.v) + self.tau))


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("momentum", [None, 0.0, 0.7])
def test_same_bits_as_the_paper_number_by_number(
    name: RuleName, momentum: float | None, rng: np.random.Generator
) -> None:
    rule = spec(name, momentum, decay=0.9, tau=0.01)
    beta_1 = momentum if momentum is not None else (0.0 if name is RuleName.FEDADAGRAD else 0.9)
    model = rng.normal(size=17).astype(np.float32)
    slow = [SlowOptimiser(name, x, beta_1, 0.9, 0.01, 0.3) for x in model]
    state = initial_state(model, rule)
    for _ in range(12):
        average = (rng.normal(size=17) * 10.0 ** rng.integers(-4, 2, size=17)).astype(np.float32)
        state = apply_aggregate(state, average, rule, 0.3)
        for one, u in zip(slow, average, strict=True):
            one.step(-u)
    x, m, v = state.reshape(3, 17)
    assert x.tolist() == [float(one.x) for one in slow]
    assert m.tolist() == [-float(one.m) for one in slow]
    assert v.tolist() == [float(one.v) for one in slow]


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_second_moment_never_becomes_negative(name: RuleName, rng: np.random.Generator) -> None:
    for decay in (0.0, 0.5, 0.999):
        rule = spec(name, decay=decay, tau=1e-6)
        state = initial_state(np.zeros(50, dtype=np.float32), rule)
        for _ in range(20):
            average = (rng.normal(size=50) * 10.0 ** rng.integers(-20, 10, size=50)).astype(np.float32)
            state = apply_aggregate(state, average, rule, 1.0)
            assert (state[100:] >= 0).all()


@pytest.mark.parametrize("name", OTHERS)
def test_other_rules_take_one_plain_step(name: RuleName, rng: np.random.Generator) -> None:
    model, average = rng.normal(size=(2, 9)).astype(np.float32)
    assert state_vectors(name) == 1
    state = initial_state(model, RuleSpec(name=name))
    assert state.tolist() == model.tolist()
    after = apply_aggregate(state, average, RuleSpec(name=name), 0.1)
    assert after.tolist() == [float(x - f32(0.1) * u) for x, u in zip(model, average, strict=True)]


@pytest.mark.parametrize("name", [*ADAPTIVE, RuleName.FEDAVG])
def test_arguments_are_left_as_they_are_and_the_model_comes_first(name: RuleName, rng: np.random.Generator) -> None:
    model, average = rng.normal(size=(2, 5)).astype(np.float32)
    state = initial_state(model, spec(name))
    assert state.size == 5 * state_vectors(name)
    before = state.copy()
    after = apply_aggregate(state, average, spec(name), 0.1)
    assert state.tolist() == before.tolist()
    assert not np.shares_memory(after, state)
    assert not np.shares_memory(state, model)
    assert model_part(state, 5).tolist() == model.tolist()
    assert np.shares_memory(model_part(after, 5), after)


@pytest.mark.parametrize(("size", "dimension"), [(7, 3), (0, 3), (6, 0), (6, -3)])
def test_a_state_that_holds_no_such_model_is_refused(size: int, dimension: int) -> None:
    with pytest.raises(ProtocolViolation, match="does not hold models"):
        model_part(np.zeros(size, dtype=np.float32), dimension)


@pytest.mark.parametrize("tau", [1e-13, 1e13, 1e300])
def test_an_adaptivity_whose_square_float32_cannot_hold_is_refused(tau: float) -> None:
    with pytest.raises(ConfigurationError, match=r"between 1e-12 and 1000000000000\.0, found"):
        initial_state(np.zeros(1, dtype=np.float32), spec(RuleName.FEDYOGI, tau=tau))


def test_wrong_lengths_and_types_are_refused() -> None:
    rule = spec(RuleName.FEDADAM)
    state = initial_state(np.zeros(4, dtype=np.float32), rule)
    with pytest.raises(ProtocolViolation, match=r"keeps float32\[9\], found float32\[12\]"):
        apply_aggregate(state, np.zeros(3, dtype=np.float32), rule, 0.1)
    with pytest.raises(ProtocolViolation, match="average in float64"):
        apply_aggregate(state, np.zeros(4), rule, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolation, match=r"keeps float32\[4\], found float32\[12\]"):
        apply_aggregate(state, np.zeros(4, dtype=np.float32), spec(RuleName.FEDAVG), 0.1)


@pytest.mark.parametrize(
    ("tau", "rate", "u"), [(1e-3, 1.0, 1e30), (1e-3, 1e38, 1.0), (1e-3, 1.0, math.nan), (1e-3, 1.0, -math.inf)]
)
def test_a_step_beyond_float32_stops_with_the_model_as_it_was(tau: float, rate: float, u: float) -> None:
    rule = spec(RuleName.FEDADAM, 0.0, 0.9999, tau)
    state = initial_state(np.zeros(2, dtype=np.float32), rule)
    before = state.copy()
    with pytest.raises(ProtocolViolation, match="leaves the range of float32"):
        apply_aggregate(state, np.array([0, u], dtype=np.float32), rule, rate)
    assert state.tolist() == before.tolist()


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize(("momentum", "decay"), [(None, 0.99), (0.0, 0.9), (0.9, 0.5), (0.0, 0.5), (0.3, 0.6)])
def test_no_step_is_longer_than_the_largest_one(
    name: RuleName, momentum: float | None, decay: float, rng: np.random.Generator
) -> None:
    """Averages of clip norm at most: constant, alternating, a long pause and then one, and drawn ones."""
    rule = spec(name, momentum, decay, tau=0.01)
    of = study_with(rule, clip_norm=4.0, dimension=9)
    largest = largest_step(of)
    drawn = rng.normal(size=(40, 9)) * 10.0 ** rng.integers(-5, 2, size=(40, 1))
    even = np.full(9, 4 / 3)
    courses: list[Any] = [drawn, [even] * 40, [even * (-1) ** k for k in range(40)], [even * 1e-6] * 30 + [even] * 10]
    for course in courses:
        state = initial_state(np.zeros(9, dtype=np.float32), rule)
        for one in course:
            average = (one * min(1.0, 4.0 / float(np.linalg.norm(one)))).astype(np.float32)
            after = apply_aggregate(state, average, rule, of.training.server_learning_rate)
            # float32 rounds each of a few operations by 2^-24 of the result
            assert np.linalg.norm((after - state)[:9].astype(np.float64)) <= largest * (1 + 2.0**-18)
            state = after


def test_the_largest_step_is_reached() -> None:
    """Plainly by one update of length C; by FedAdagrad nearly, where every entry is far above tau."""
    plain = study_with(spec(RuleName.FEDAVG), clip_norm=4.0, dimension=9)
    assert largest_step(plain) == 0.5 * 4.0
    first = study_with(spec(RuleName.FEDADAGRAD, tau=1e-6), clip_norm=4.0, dimension=9)
    assert largest_step(first) == 0.5 * 3.0
    state = initial_state(np.zeros(9, dtype=np.float32), first.rule)
    after = apply_aggregate(state, np.full(9, 4 / 3, dtype=np.float32), first.rule, 0.5)
    assert np.linalg.norm((after - state)[:9]) == pytest.approx(1.5, rel=1e-5)
    slow = study_with(spec(RuleName.FEDADAM, tau=1e3), clip_norm=4.0, dimension=9)
    assert largest_step(slow) == 0.5 * 4.0 / 1e3


def study_with(rule: RuleSpec, clip_norm: float, dimension: int) -> Study:
    parameters = StudyParameters(dimension=dimension, clip_norm=clip_norm, least_contributors=3)
    training = TrainingSpec(server_learning_rate=0.5)
    return study("ab" * 32, dimension, rule=rule, parameters=parameters, training=training)
