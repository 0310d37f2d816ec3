"""The published mistake: sums over features in place of gradients."""

import functools

import numpy as np
import pytest

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.engine.loop import run_plain, run_rounds
from harness.engine.updates import RowSums
from harness.simulate.case import read_case
from harness.simulate.study_files import STUDIES, simulated_study
from protocol.errors import ConfigurationError


def by_python_sum(gradients: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The published line itself, on (kernel, bias) pairs, kernels features by classes."""
    kernel, bias = functools.reduce(lambda a, b: (sum(a[0], b[0]), sum(a[1], b[1])), gradients)
    return kernel / len(gradients), bias / len(gradients)


def test_it_is_what_pythons_sum_makes_of_two_gradients():
    random = np.random.default_rng(0)
    # Small integers: sums are exact, and so is a quarter of them.
    pairs = [(random.integers(-9, 10, (3, 2)) * 1.0, random.integers(-9, 10, 2) * 1.0) for _ in range(4)]
    kernel, bias = by_python_sum(pairs)
    spoilt = RowSums(features=3, classes=2).spoilt([np.concatenate((k.T.ravel(), b)) for k, b in pairs])
    assert spoilt.tolist() == [*kernel.T.ravel(), *bias]
    assert spoilt.dtype == np.float32


def test_the_first_gradients_row_sums_count_features_squared_times():
    nothing, one = np.zeros(8), np.array([1, 2, 3, 10, 20, 30, 0.5, 0.25])
    spoilt = RowSums(features=3, classes=2).spoilt([one, nothing, nothing, nothing])
    assert (spoilt * 4).tolist() == [9 * 6] * 3 + [9 * 60] * 3 + [4 * 0.75] * 2


def test_a_run_with_the_mistake_differs_from_fedavg_and_ends_all_the_same():
    federation = breast_cancer_five_hospitals(0)
    table = read_case(STUDIES / "breast_cancer.toml").variant("fedavg").study
    # The requester's row sums count 30^3 times over five sites: at the study's own rate the run diverges, rightly.
    training = table.training.model_copy(update={"server_learning_rate": 1e-5})
    table = table.model_copy(update={"rounds": 2, "training": training})
    study = simulated_study(table, "test", federation, 0)
    right = run_plain(study, federation.sites)
    wrong = run_rounds(study, federation.sites, RowSums.of(study), protection="plain")
    assert wrong.shared_rounds == right.shared_rounds == 2
    assert not np.array_equal(wrong.final_model, right.final_model)


def test_it_is_for_linear_models_and_fedavg_only():
    case, federation = read_case(STUDIES / "breast_cancer.toml"), breast_cancer_five_hospitals(0)
    fedavg, local = (simulated_study(case.variant(n).study, "test", federation, 0) for n in ("fedavg", "local"))
    with pytest.raises(ConfigurationError, match="linear"):
        RowSums.of(fedavg.model_copy(update={"model": fedavg.model.model_copy(update={"kind": "mlp"})}))
    with pytest.raises(ConfigurationError, match="is FedAvg's, the rule is 'local'"):
        RowSums.of(local)
