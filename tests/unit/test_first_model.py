"""Version 0 of a model: the same bits everywhere, from the study alone."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from client_agent.learning.flat_vector import model_vector
from client_agent.learning.models import build_model, model_spec
from protocol.messages.control import LayerShape
from protocol.shared_model import drawn_model, first_model, model_digest_of, seeded_model
from tests.unit.client_agent.federation import study

KEY = bytes(range(32))
VECTOR = ["-0x1.0f0ece0000000p-5", "-0x1.c927ac0000000p-6", "-0x1.1b12400000000p-5"]
DIGEST = "03f09ab1e48b7551960977bb81e9114344af187b2bd3051e5ee2ed63e656723a"


def layer(name: str, *shape: int) -> LayerShape:
    return LayerShape(name=name, shape=shape)


DENSE = (layer("1.weight", 5, 6), layer("1.bias", 5))


def test_the_bits_are_these() -> None:
    """Over several chunks of the stream, computed once by hand-checked steps; another CPU must give the same."""
    layers = (layer("a.weight", 300, 301), layer("a.bias", 300), layer("n.weight", 7), layer("n.bias", 7))
    model = drawn_model(layers, KEY)
    assert [value.hex() for value in map(float, model[:3])] == VECTOR
    assert hashlib.sha256(model.astype("<f4").tobytes()).hexdigest() == DIGEST


def test_values_by_name_and_shape() -> None:
    layers = (
        *DENSE,
        layer("conv.weight", 4, 2, 3, 3),
        layer("conv.bias", 4),
        layer("norm.weight", 4),
        layer("norm.bias", 4),
        layer("table", 3, 16),
        layer("bias", 5),
        layer("scale"),
    )
    model, parts, start = drawn_model(layers, KEY), {}, 0
    for one in layers:
        parts[one.name] = model[start : start + math.prod(one.shape)]
        start += math.prod(one.shape)
    bounds = {"1.weight": 6, "1.bias": 6, "conv.weight": 18, "conv.bias": 18, "table": 16}
    for name, fan_in in bounds.items():
        drawn = np.abs(parts[name])
        assert 0 < drawn.max() <= np.float32(1 / math.sqrt(fan_in)), name
        assert len(np.unique(drawn)) == drawn.size
    np.testing.assert_array_equal(parts["norm.weight"], np.ones(4))
    for name in ("norm.bias", "bias", "scale"):
        assert not parts[name].any(), name


def test_values_fill_the_interval_evenly() -> None:
    model = drawn_model((layer("w", 400, 4),), KEY)
    # the mean of 1600 uniform draws in [-1/2, 1/2] is normal with standard deviation 1/sqrt(12 * 1600)
    assert abs(model.mean()) < 5 / math.sqrt(12 * 1600)
    assert model.std() == pytest.approx(1 / math.sqrt(12), rel=0.05)


def test_a_seed_fixes_the_model_for_simulations_else_the_study_does() -> None:
    seeded, other = study(seed=3), study(seed=3).model_copy(update={"rounds": 9})
    np.testing.assert_array_equal(first_model(seeded), first_model(other))
    layers = seeded.model.layers
    np.testing.assert_array_equal(first_model(seeded), seeded_model(layers, 3))
    assert not np.array_equal(seeded_model((layer("w", 2, 2),), 3), seeded_model((layer("w", 2, 2),), 4))
    spec = model_spec("mlp", (6,), (5,), 3)
    plain = study(seed=None).model_copy(update={"model": spec})
    renamed = plain.model_copy(update={"name": "another"})
    assert not np.array_equal(first_model(plain), first_model(renamed))
    np.testing.assert_array_equal(first_model(plain), first_model(plain.model_copy()))


def test_built_in_models_begin_with_it() -> None:
    spec = model_spec("cnn", (1, 8, 8), (4, 6, 8), 3)
    np.testing.assert_array_equal(model_vector(build_model(spec, 5)), seeded_model(spec.layers, 5))


def test_a_pretrained_model_is_named_by_its_values() -> None:
    model = seeded_model(DENSE, 1)
    assert model_digest_of(model) == hashlib.sha256(model.astype("<f4").tobytes()).hexdigest()
    assert model_digest_of(model) != model_digest_of(model[::-1])
