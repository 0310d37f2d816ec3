"""The metrics of every round are scikit-learn's, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from client_agent.learning.predictions import NotComputable, area_under_roc, mean_log_loss, share_right


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("examples", [10, 11, 100, 997])
@pytest.mark.parametrize("levels", [4, 10**9])
def test_the_bits_are_those_of_scikit_learn(classes: int, examples: int, levels: int) -> None:
    random = np.random.default_rng([classes, examples, levels])
    y = random.permutation(np.append(np.arange(classes), random.integers(0, classes, examples - classes)))
    p = random.multinomial(levels, random.dirichlet(np.full(classes, 0.3), examples)) / levels
    chosen = p.argmax(axis=1)
    area = (
        metrics.roc_auc_score(y, p[:, 1])
        if classes == 2
        else metrics.roc_auc_score(y, p, multi_class="ovr", labels=np.arange(classes))
    )
    assert area_under_roc(y, p) == area
    assert mean_log_loss(y, p) == metrics.log_loss(y, p, labels=np.arange(classes))
    assert share_right(y, chosen) == metrics.accuracy_score(y, chosen)


def test_one_score_for_everybody_is_half() -> None:
    y, p = np.array([0, 1, 1]), np.full((3, 2), 0.5)
    assert area_under_roc(y, p) == metrics.roc_auc_score(y, p[:, 1]) == 0.5


@pytest.mark.parametrize("label", [-1, 2])
def test_a_class_that_the_model_does_not_know_has_no_log_loss(label: int) -> None:
    with pytest.raises(NotComputable, match="classes beyond the model's 2"):
        mean_log_loss(np.array([0, label]), np.full((2, 2), 0.5))
