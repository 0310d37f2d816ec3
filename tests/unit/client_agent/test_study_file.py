"""A study from TOML: layers filled in, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.study_file import study_from_toml
from protocol.errors import ConfigurationError
from protocol.wire.messages import MOST_COUNTS_ROUNDS, RuleName
from tests.unit.client_agent.federation import ROSTER

GOOD = """
name = "first"
rounds = 30
seed = 4

[model]
kind = "mlp"
inputs = [8, 8]
hidden = [10]
classes = 3

[rule]
name = "weight_erosion"
distance_penalty = 0.02

[training]
update = "local_sgd"
batch_size = 8

[parameters]
clip_norm = 2.0
"""
PLUGIN = """
import torch

def model():
    return torch.nn.Linear(4, 2)

def data(path):
    return None

def loss(model, batch):
    return None
"""


def test_sites_that_weigh_themselves_share_one_coordinate_more() -> None:
    text = GOOD.replace('name = "weight_erosion"\ndistance_penalty = 0.02', 'name = "wfedavg"')
    study = study_from_toml(text, "s.toml", ROSTER, None)
    assert study.parameters.dimension == study.model_dimension + 1
    assert study.most_rounds == study.rounds + MOST_COUNTS_ROUNDS


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ('name = "multi_krum"\nbyzantine = 1', "'multi_krum' with byzantine=1 needs 5 sites"),
        ('name = "fedavg"\nnorm_bound = 0.0', "norm_bound"),
        ('name = "fedavg"\nstep = 0.1', "takes no option 'step'"),
        ('name = "krum"', "rule.name"),
    ],
)
def test_a_rule_that_these_sites_cannot_run_is_refused(rule: str, message: str) -> None:
    text = GOOD.replace('name = "weight_erosion"\ndistance_penalty = 0.02', rule)
    with pytest.raises(ConfigurationError, match=message):
        study_from_toml(text, "s.toml", ROSTER, None)


def test_a_whole_study() -> None:
    study = study_from_toml(GOOD, "s.toml", ROSTER, None)
    assert (study.name, study.rounds, study.seed) == ("first", 30, 4)
    assert study.roster_digest == ROSTER.digest()
    assert study.parameters.dimension == 64 * 10 + 10 + 10 * 3 + 3
    assert study.parameters.least_contributors == 3
    assert [layer.shape for layer in study.model.layers] == [(10, 64), (10,), (3, 10), (3,)]
    assert study.rule.name is RuleName.WEIGHT_EROSION
    assert study.training.epochs == 1


def test_a_plugin_model(tmp_path: Path) -> None:
    path = tmp_path / "site_model.py"
    path.write_text(PLUGIN)
    text = GOOD.replace('"mlp"', '"plugin"').replace("inputs = [8, 8]\nhidden = [10]\nclasses = 3", "inputs = [4]")
    study = study_from_toml(text, "s.toml", ROSTER, path)
    assert study.parameters.dimension == 10
    with pytest.raises(ConfigurationError, match="set key 'plugin'"):
        study_from_toml(text, "s.toml", ROSTER, None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds = 30", "round = 30", "key 'rounds' is missing"),
        ("rounds = 30", "rounds = 30\nround = 1", "unknown key 'round'; did you mean 'rounds'"),
        ('"mlp"', '"mpl"', "key 'model.kind'.*found 'mpl'"),
        ("batch_size = 8", "batch_size = 0", "key 'training.batch_size'.*found 0"),
        ("batch_size = 8", "batch = 8", "unknown key 'training.batch'"),
        ("clip_norm = 2.0", "clip_norm = 3.0", "clip_norm must be a power of two, found 3.0"),
        ("clip_norm = 2.0", "clip_norm = 2.0\ndimension = 5", "unknown key 'parameters.dimension'"),
        ('"weight_erosion"', '"erosion"', "key 'rule.name'"),
        ('"weight_erosion"', '"fedavg"', "rule 'fedavg' takes no option 'distance_penalty'"),
        ("distance_penalty = 0.02", 'erosion_applies = "same_round"', "plain simulation only"),
        ("hidden = [10]", "hidden = [0]", "sizes start at 1"),
        ('name = "first"', 'name = "First Study"', "key 'name'"),
        ("inputs = [8, 8]", 'inputs = "8"', "key 'model.inputs'"),
    ],
)
def test_wrong_studies(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigurationError, match=message):
        study_from_toml(GOOD.replace(old, new), "s.toml", ROSTER, None)
