"""The published mistake: sums over features in place of gradients."""

import numpy as np
import pytest

from harness.datasets.breast_cancer import breast_cancer_five_hospitals
from harness.papers.build import STUDIES
from harness.rounds_plain import run_plain, run_rounds
from harness.row_sums import RowSums
from harness.simulation.case import read_case
from harness.simulation.run_one import simulated_study
from protocol.errors import ConfigurationError


def test_every_feature_of_a_class_gets_the_sum_and_every_bias_the_biases_sum():
    average = np.array([1, 2, 3, 10, 20, 30, 0.5, 0.25], np.float32)
    spoilt = RowSums(features=3, classes=2).spoilt(average)
    assert spoilt.tolist() == [6, 6, 6, 60, 60, 60, 0.75, 0.75]
    assert spoilt.dtype == np.float32


def test_a_run_with_the_mistake_differs_from_fedavg_and_ends_all_the_same():
    federation = breast_cancer_five_hospitals(0)
    table = read_case(STUDIES / "breast_cancer.toml").variant("fedavg").study.model_copy(update={"rounds": 2})
    study = simulated_study(table, "test", federation, 0)
    right = run_plain(study, federation.sites)
    wrong = run_rounds(study, federation.sites, RowSums.of(study), protection="plain")
    assert wrong.shared_rounds == right.shared_rounds == 2
    assert not np.array_equal(wrong.final_model, right.final_model)


def test_it_is_for_linear_models_only():
    federation = breast_cancer_five_hospitals(0)
    table = read_case(STUDIES / "breast_cancer.toml").variant("fedavg").study
    study = simulated_study(table, "test", federation, 0)
    other = study.model_copy(update={"model": study.model.model_copy(update={"kind": "mlp"})})
    with pytest.raises(ConfigurationError, match="linear"):
        RowSums.of(other)
