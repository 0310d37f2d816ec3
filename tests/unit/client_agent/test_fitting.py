"""Before a site says that it is ready: what its data must have in common with the study, and what it remarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from client_agent.learning.check_data import fitting_data, remarks
from client_agent.learning.data import Examples, LocalData, save_folder
from client_agent.learning.learner import TorchLearner
from client_agent.learning.models import model_spec
from client_agent.learning.names import NO_NAMES, DataNames
from client_agent.learning.plugin import load_plugin
from protocol.errors import ConfigurationError
from protocol.messages.control import Study, TaskKind, TaskSpec
from protocol.parameters import StudyParameters
from tests.unit.client_agent.federation import study
from tests.unit.client_agent.test_plugin import SPEC, plugin_file

NAMES = DataNames(("age", "sex", "fare"), ("died", "survived"))
LINEAR = model_spec("linear", (3,), (), 2)


def study_named(names: DataNames) -> Study:
    parameters = StudyParameters(dimension=8, clip_norm=1.0, least_contributors=3)
    return study().model_copy(update={"model": LINEAR.named(names.features, names.classes), "parameters": parameters})


def examples(labels: list[int], columns: int = 3) -> Examples:
    return Examples(np.ones((len(labels), columns), np.float32), np.array(labels, np.int64))


def site(folder: Path, names: DataNames, labels: tuple[int, ...] = (0, 1), columns: int = 3) -> Path:
    part = examples(list(labels), columns)
    save_folder(folder, LocalData(part, part, names=names))
    return folder


def test_data_with_the_studys_names_are_taken(tmp_path: Path) -> None:
    assert fitting_data(study_named(NAMES), site(tmp_path, NAMES), None).names == NAMES


def test_a_learner_with_columns_in_another_order_is_never_made(tmp_path: Path) -> None:
    site(tmp_path, DataNames(("age", "fare", "sex"), NAMES.classes))
    with pytest.raises(ConfigurationError, match="the same names in another order"):
        TorchLearner(study_named(NAMES), tmp_path, None, "cpu", 1)


def test_a_column_too_many_is_named_and_not_only_counted(tmp_path: Path) -> None:
    site(tmp_path, DataNames((*NAMES.features, "weight"), NAMES.classes), columns=4)
    with pytest.raises(ConfigurationError, match=r"\n\+weight\n"):
        fitting_data(study_named(NAMES), tmp_path, None)
    with pytest.raises(ConfigurationError, match=r"one example has shape \[4\], the model takes \[3\]"):
        fitting_data(study_named(NO_NAMES), tmp_path, None)


def test_a_plugin_names_what_its_data_hold(tmp_path: Path) -> None:
    named = study().model_copy(update={"model": SPEC.named(("age", "sex"), ("died", "survived"))})
    silent = load_plugin(plugin_file(tmp_path))
    with pytest.raises(ConfigurationError, match="does not: give feature_names"):
        fitting_data(named, tmp_path / "value", silent)
    names = "def names(path):\n    return ['age', 'sex'], ('died', 'survived')\n\ndef model()"
    speaking = load_plugin(plugin_file(tmp_path, ("def model()", names)))
    assert fitting_data(named, tmp_path / "value", speaking).names.features == ("age", "sex")


def test_a_class_without_samples_here_is_remarked_by_name(tmp_path: Path) -> None:
    (remark,) = remarks(study_named(NAMES), fitting_data(study_named(NAMES), site(tmp_path, NAMES, (0, 0)), None))
    assert remark.startswith("no training example here of classes ['survived'], of 2:")
    unnamed = study_named(DataNames(NAMES.features))
    silent, missing = remarks(unnamed, fitting_data(unnamed, site(tmp_path / "other", NAMES, (1,)), None))
    assert silent.startswith("the study gives no class_names: nothing checks")
    assert "classes ['died']" in missing


def test_names_that_no_model_could_have_are_not_missed(tmp_path: Path) -> None:
    image = study().model_copy(update={"model": model_spec("linear", (1, 3), (), 2)})
    part = Examples(np.ones((2, 1, 3), np.float32), np.array([0, 1]))
    (remark,) = remarks(image, LocalData(part, part))
    assert remark.startswith("the study gives no class_names:")
    (remark,) = remarks(study_named(NO_NAMES), LocalData(examples([0, 1]), examples([0])))
    assert remark.startswith("the study gives no feature_names and no class_names:")


def test_a_single_output_needs_no_name() -> None:
    hazard = study().model_copy(
        update={
            "model": model_spec("linear", (3,), (), 1).named(NAMES.features, ()),
            "task": TaskSpec(kind=TaskKind.SURVIVAL),
        }
    )
    part = Examples(np.ones((2, 3), np.float32), np.array([[1, 1], [2, 0]], np.float32))
    assert remarks(hazard, LocalData(part, part)) == ()


def test_remarks_reach_the_log(tmp_path: Path) -> None:
    with capture_logs() as lines:
        TorchLearner(study_named(NO_NAMES), site(tmp_path, NAMES), None, "cpu", 1)
    (line,) = [line for line in lines if line["event"] == "data_remark"]
    assert line["study"] == "unit"
    assert "nothing checks" in line["detail"]
