"""Flat vectors and devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.learning.flat_vector import layer_shapes, layer_sizes, load_vector, model_vector, pick_device
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import LayerShape


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def test_layers_come_in_the_models_order() -> None:
    layers = layer_shapes(small())
    assert layers == (
        LayerShape(name="0.weight", shape=(3, 2)),
        LayerShape(name="0.bias", shape=(3,)),
        LayerShape(name="2.weight", shape=(1, 3)),
        LayerShape(name="2.bias", shape=(1,)),
    )
    assert layer_sizes(layers) == (("0.weight", 6), ("0.bias", 3), ("2.weight", 3), ("2.bias", 1))
    assert layer_sizes((LayerShape(name="scalar", shape=()),)) == (("scalar", 1),)


def test_a_vector_goes_in_and_comes_out_bit_for_bit() -> None:
    model = small()
    vector = np.linspace(-1, 1, 13, dtype=np.float32)
    load_vector(model, vector)
    np.testing.assert_array_equal(model_vector(model), vector)
    assert model.get_parameter("0.weight")[1, 0].item() == vector[2]
    vector[0] = 7
    assert model_vector(model)[0] == -1


@pytest.mark.parametrize("vector", [np.zeros(12, np.float32), np.zeros(13, np.float64), np.zeros((13, 1), np.float32)])
def test_another_vector_is_refused(vector: np.ndarray) -> None:
    with pytest.raises(UnusableUpdate, match=r"float32\[13\]"):
        load_vector(small(), vector)


def test_buffers_are_refused_with_the_advice_to_use_group_norm() -> None:
    with pytest.raises(UnusableUpdate, match=r"1\.running_mean.*GroupNorm"):
        layer_shapes(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    assert len(layer_shapes(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)))) == 4


def test_other_types_and_empty_models_are_refused() -> None:
    with pytest.raises(UnusableUpdate, match=r"'weight' has type torch\.float64"):
        layer_shapes(nn.Linear(2, 2, dtype=torch.float64))
    with pytest.raises(UnusableUpdate, match="no parameters"):
        layer_shapes(nn.ReLU())


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigurationError, match="0 CUDA devices"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigurationError, match="2 CUDA devices"):
        pick_device("cuda:2")


@pytest.mark.parametrize("wanted", ["gpu", "cuda:", "cuda:x", "cpu:0", "CUDA", ""])
def test_unknown_devices_are_refused(wanted: str) -> None:
    with pytest.raises(ConfigurationError, match="allowed are auto, cpu, cuda and cuda:n"):
        pick_device(wanted)
