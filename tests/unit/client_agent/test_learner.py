"""What rules ask of a site's data: counts, and the gradient of the validation loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import Examples, LocalData, save_folder
from client_agent.learning.learner import TorchLearner
from client_agent.learning.models import model_spec
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, RuleSpec
from protocol.parameters import StudyParameters
from protocol.shared_model import initial_state
from tests.unit.client_agent.federation import study

MODEL = model_spec("linear", (3,), (), 3)
RNG = np.random.default_rng(5)


def examples(labels: list[int]) -> Examples:
    return Examples(RNG.normal(size=(len(labels), 3)).astype(np.float32), np.array(labels, dtype=np.int64))


TRAIN, VALIDATION = examples([0, 0, 1, 0]), examples([1, 0])


def learner(folder: Path, rule: RuleName, validation: Examples | None = VALIDATION) -> TorchLearner:
    save_folder(folder, LocalData(TRAIN, examples([]), validation))
    of = study().model_copy(
        update={
            "model": MODEL,
            "rule": RuleSpec(name=rule),
            "parameters": StudyParameters(dimension=12, clip_norm=1.0, least_contributors=3),
        }
    )
    return TorchLearner(of, folder, None, "cpu", 1)


def test_classes_that_a_site_lacks_are_counted_as_none(tmp_path: Path) -> None:
    site = learner(tmp_path, RuleName.WFEDAVG)
    assert site.class_counts() == (3, 1, 0)
    assert site.sample_count() == 4


def test_the_probe_is_the_gradient_on_the_validation_examples(tmp_path: Path) -> None:
    """Softmax regression at the model 0: the mean of (1/3 - onehot) x over the examples, and of (1/3 - onehot)."""
    probe = learner(tmp_path, RuleName.INFLUENCE).probe(np.zeros(12, dtype=np.float32))
    wrong = 1 / 3 - np.eye(3)[VALIDATION.y]
    expected = np.concatenate([(wrong.T @ VALIDATION.X / 2).ravel(), wrong.mean(axis=0)])
    # a softmax of three equal logits, its difference, two products, a sum, a mean: eight float32 roundings of numbers
    # that do not reach the largest feature
    largest = float(np.abs(VALIDATION.X).max())
    np.testing.assert_allclose(probe, expected, rtol=0, atol=8 * 2.0**-24 * max(1.0, largest))


@pytest.mark.parametrize("validation", [None, examples([])])
def test_without_validation_examples_the_file_is_named(tmp_path: Path, validation: Examples | None) -> None:
    with pytest.raises(ConfigurationError, match=r"'influence' measures .* into validation\.npz beside train\.npz"):
        learner(tmp_path, RuleName.INFLUENCE, validation).probe(np.zeros(12, dtype=np.float32))


def test_a_server_optimiser_moves_its_moments_with_the_model(tmp_path: Path) -> None:
    site = learner(tmp_path, RuleName.FEDADAM)
    before = initial_state(np.zeros(12, dtype=np.float32), RuleSpec(name=RuleName.FEDADAM))
    after = site.apply(before, np.ones(12, dtype=np.float32))
    assert after.shape == (36,)
    assert (after[:12] < 0).all()
    assert (after[12:24] > 0).all()


def test_without_a_finish_table_there_is_no_finish(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"created without \[finish\]"):
        learner(tmp_path, RuleName.FEDAVG).finish(np.zeros(12, dtype=np.float32))
