"""Weights of their own for every layer: blocks, means, the step, a run, and what sketches would cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import moiety
from client_agent.learning.models import model_spec
from harness.grain.blocks import Block, Means, averaged, block_a_layer, one_block
from harness.grain.costs import cost_of
from harness.grain.grained_run import Grain, GrainLine
from harness.simulation.files.json_lines import read_lines
from harness.simulation.files.study_files import STUDIES
from protocol.parameters import MIN_SKETCH_LENGTH, RANGE_PROJECTIONS
from protocol.rules.risk.terms import ListTerms

LAYERS = model_spec("mlp", (3,), (4,), 2).layers
BLOCKS = block_a_layer(LAYERS)


def test_a_layers_weights_and_bias_are_one_block() -> None:
    assert [(block.start, block.stop) for block in BLOCKS] == [(0, 16), (16, 26)]
    assert len({block.name for block in BLOCKS}) == 2
    assert [block.size for block in one_block(LAYERS)] == [26]


def test_a_site_that_is_alike_in_one_layer_weighs_there_alone() -> None:
    random = np.random.default_rng(0)
    noise = 0.1
    offsets = random.normal(size=(3, 26)) * noise
    offsets[:, 16:] += 10  # far from the requester in the second layer
    means = Means(np.zeros((2, 3, 3))).with_round(BLOCKS, offsets, np.full(26, noise**2))
    first, second = means.choices(np.ones(3), ListTerms(), 1024, 2.0)
    assert first.weights().sum() > 0.5 > 0.05 > second.weights().sum()
    together = Means(np.zeros((1, 3, 3))).with_round(one_block(LAYERS), offsets, np.full(26, noise**2))
    (whole,) = together.choices(np.ones(3), ListTerms(), 1024, 2.0)
    assert whole.weights().sum() < 0.05


def test_means_are_over_rounds_and_silence_is_no_measurement() -> None:
    offsets = np.ones((2, 26))
    once = Means(np.zeros((2, 2, 2))).with_round(BLOCKS, offsets, np.full(26, 1.0))
    np.testing.assert_allclose(once.products, np.ones((2, 2, 2)))
    twice = once.with_round(BLOCKS, 3 * offsets, np.concatenate([np.ones(16), np.zeros(10)]))
    np.testing.assert_allclose(twice.products[0], 5.0)
    np.testing.assert_allclose(twice.products[1], 1.0)


def test_every_block_steps_by_its_own_weights() -> None:
    updates = np.stack([np.zeros(26), np.ones(26), np.full(26, 3.0)])
    step = averaged(BLOCKS, [np.array([0.5, 0.0]), np.array([0.0, 0.5])], updates)
    np.testing.assert_allclose(step, np.concatenate([np.full(16, 0.5), np.full(10, 1.5)]))
    np.testing.assert_array_equal(averaged(BLOCKS, [np.zeros(0)] * 2, updates[:1]), updates[0])


def test_sketches_of_every_layer_cost_their_lengths() -> None:
    whole = cost_of((Block("model", 0, 20_000),), 9, MIN_SKETCH_LENGTH)
    assert whole.opened == 45
    assert whole.elements == 45 * MIN_SKETCH_LENGTH + 10 * RANGE_PROJECTIONS
    cut = cost_of((Block("a", 0, 100), Block("b", 100, 20_000)), 9, MIN_SKETCH_LENGTH)
    assert cut.opened == 90
    assert cut.elements - whole.elements == 45 * 100 + 10 * RANGE_PROJECTIONS
    assert cut.bytes > whole.bytes


def test_the_command_runs_every_grain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, study = tmp_path / "there" / "grain.jsonl", tmp_path / "digits.toml"
    text = (STUDIES / "digits.toml").read_text()
    study.write_text(text.replace("least_contributors = 9", "least_contributors = 3\nweight_grid = 1024"))
    with pytest.raises(SystemExit) as ended:
        moiety.main(["bench", "grain", str(study), "--rounds", "2", "--out", str(out)])
    assert not ended.value.code
    lines = {line.grain: line for line in read_lines(out, GrainLine)}
    assert set(lines) == set(Grain)
    assert all(len(line.log_loss) == 2 for line in lines.values())
    assert (lines[Grain.LOCAL].own_weight, lines[Grain.FEDAVG].own_weight) == (1.0, 0.1)
    assert len(lines[Grain.LAYERS].blocks) == 2
    assert len({line.log_loss for line in lines.values()}) == len(Grain)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2].startswith("model: 45 numbers opened")
    assert printed[-1].startswith("layers: 90 numbers opened")
