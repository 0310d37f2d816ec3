"""A site's folder and its names against the study's, before the site says that it is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from client_agent.learning.data import (
    NO_NAMES,
    DataNames,
    Examples,
    LocalData,
    Named,
    difference,
    folder_names,
    load_folder,
    remarks,
    require_names_of_study,
    require_same_names,
    save_folder,
)
from client_agent.learning.models import model_spec
from client_agent.learning.plugin import fitting_data, load_plugin
from client_agent.learning.settings import TrainerSettings
from client_agent.learning.torch_learner import TorchLearner
from client_agent.settings import AgentSettings
from client_agent.site.context import site_learner
from protocol.errors import ConfigurationError
from protocol.messages.control import Study, TaskKind, TaskSpec
from protocol.parameters import StudyParameters
from protocol.text import NamesKind
from tests.kit.present import present
from tests.unit.client_agent.federation import study
from tests.unit.client_agent.test_plugin import SPEC, plugin_file

# --- data -------------------------------------------------------------------------------------------------------------


def examples(n: int = 4) -> Examples:
    return Examples(np.arange(3 * n, dtype=np.float32).reshape(n, 3), np.arange(n, dtype=np.int64) % 2)


def write(folder: Path, **arrays: Any) -> None:
    save_folder(folder, LocalData(examples(), examples(2)))
    np.savez(folder / "train.npz", **arrays)


NAMES = DataNames(("age", "sex", "fare"), ("no", "yes"))


@pytest.mark.parametrize(("validation", "names"), [(None, NO_NAMES), (examples(4), NAMES)])
def test_what_was_saved_is_loaded(tmp_path: Path, validation: Examples | None, names: DataNames) -> None:
    save_folder(tmp_path / "site", LocalData(examples(5), examples(0), validation, names))
    loaded = load_folder(tmp_path / "site", (3,), 2)
    np.testing.assert_array_equal(loaded.train.X, examples(5).X)
    np.testing.assert_array_equal(loaded.train.y, examples(5).y)
    assert (len(loaded.train), len(loaded.test)) == (5, 0)
    assert (loaded.validation is None) is (validation is None)
    assert validation is None or np.array_equal(present(loaded.validation).X, validation.X)
    assert loaded.names == folder_names(tmp_path / "site") == names
    assert folder_names(tmp_path / "nothing") == NO_NAMES


X, Y = examples().X, examples().y
NAN = np.where(np.arange(12).reshape(4, 3) == 7, np.float32("nan"), X)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"X": X}, "array 'y' is missing"),
        ({"y": Y}, "array 'X' is missing"),
        ({"X": X.astype(np.float64), "y": Y}, "X has type float64, expected float32"),
        ({"X": X, "y": Y[:3]}, "one label for each row"),
        ({"X": X, "y": Y.reshape(4, 1)}, "one label for each row"),
        ({"X": np.float32(1.0), "y": Y}, "one label for each row"),
        ({"X": X[:, :2], "y": Y}, r"shape \[2\], the model takes \[3\]"),
        ({"X": NAN, "y": Y}, "1 rows, the first is row 2"),
        ({"X": X, "y": Y + 1}, r"y lies in 1\.\.2, the model's classes are 0\.\.1"),
        ({"X": X, "y": Y - 1}, r"y lies in -1\.\.0"),
        ({"X": X[:0], "y": Y[:0]}, "no example"),
        ({"X": X, "y": np.array([None] * 4, dtype=object)}, "no readable"),
    ],
)
def test_wrong_arrays_are_refused_by_name(tmp_path: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    write(tmp_path, **arrays)
    with pytest.raises(ConfigurationError, match=said) as caught:
        load_folder(tmp_path, (3,), 2)
    assert "train.npz" in caught.value.detail


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"train\.npz is missing"):
        load_folder(tmp_path, (3,), 2)
    write(tmp_path, X=X, y=Y)
    for content in (b"PK\x03\x04 no archive", b""):
        (tmp_path / "test.npz").write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"test\.npz is no readable"):
            load_folder(tmp_path, (3,), 2)
    np.save(tmp_path / "array.npy", X)
    (tmp_path / "array.npy").rename(tmp_path / "test.npz")
    with pytest.raises(ConfigurationError, match=r"test\.npz: array 'X' is missing; the file holds \[\]"):
        load_folder(tmp_path, (3,), 2)
    save_folder(tmp_path, LocalData(examples(), examples(2), Examples(X, Y + 1)))
    with pytest.raises(ConfigurationError, match=r"validation\.npz: y lies in 1\.\.2"):
        load_folder(tmp_path, (3,), 2)


@pytest.mark.parametrize("file", ["test.npz", "validation.npz"])
def test_the_files_of_a_site_name_the_same_columns(tmp_path: Path, file: str) -> None:
    save_folder(tmp_path, LocalData(examples(), examples(2), examples(1), NAMES))
    turned, classes = np.array(["sex", "age", "fare"]), np.array(NAMES.classes)
    np.savez(tmp_path / file, X=X, y=Y, feature_names=turned, class_names=classes)
    with pytest.raises(ConfigurationError, match=f"differ between files 'train.npz' and '{file}', the same names in"):
        load_folder(tmp_path, (3,), 2)
    np.savez(tmp_path / file, X=X, y=Y)
    with pytest.raises(ConfigurationError, match=f"{file} give no feature_names and the others do"):
        load_folder(tmp_path, (3,), 2)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (np.arange(3), "'feature_names' has type int64 .* expected a list of texts"),
        (np.array([["age", "sex", "fare"]]), r"shape \[1, 3\], expected a list of texts"),
        (np.array([], dtype=str), r"shape \[0\], expected a list of texts"),
        (
            np.array(["age", "sex", "fare"], dtype=object),
            r"Object arrays cannot be loaded .* np\.array\(names, dtype=str\)",
        ),
        (np.array(["age", "sex", "age"]), "'age' is there more than once"),
        (np.array(["age", "sex"]), r"feature_names holds 2 names and one example has shape \[3\]"),
    ],
)
def test_names_are_texts_one_for_each_column(tmp_path: Path, names: np.ndarray, said: str) -> None:
    for file in ("train.npz", "test.npz"):
        np.savez(tmp_path / file, X=X, y=Y, feature_names=names)
    with pytest.raises(ConfigurationError, match=said):
        load_folder(tmp_path, (3,), 2)


def test_more_names_than_a_study_holds_may_stand_in_files(tmp_path: Path) -> None:
    genes = DataNames(tuple(f"gene-{number:06}" for number in range(10_000)))
    part = Examples(np.ones((2, 10_000), np.float32), np.array([0, 1]))
    save_folder(tmp_path, LocalData(part, part, names=genes))
    assert load_folder(tmp_path, (10_000,), 2).names == genes


# --- names ------------------------------------------------------------------------------------------------------------

STUDY = DataNames(("age", "sex", "fare"), ("died", "survived"))


def test_what_the_study_does_not_name_is_not_compared() -> None:
    """None of these is refused; the same names in another order are, below."""
    require_names_of_study(STUDY, STUDY, "heart", "/data")
    require_names_of_study(NO_NAMES, STUDY, "heart", "/data")
    require_names_of_study(DataNames(classes=STUDY.classes), DataNames(("x",), STUDY.classes), "heart", "/data")


ORDER = "not those of /data, the same names in another order:\n--- study heart\n+++ /data\n"


@pytest.mark.parametrize(
    ("features", "classes", "begins", "changed", "advice"),
    [
        (
            ("age", "fare", "sex"),
            STUDY.classes,
            f"feature_names are {ORDER}",
            ["+fare", "-fare"],
            "bring X and feature",
        ),
        (("age", "sex", "fare", "weight"), STUDY.classes, "feature_names are not those of /data:", ["+weight"], "X"),
        (("age", "fare"), STUDY.classes, "feature_names are not those of /data:", ["-sex"], "bring X"),
        (STUDY.features, ("survived", "died"), f"class_names are {ORDER}", None, "number y and class_names as the stu"),
        ((), STUDY.classes, None, None, "/data does not: give feature_names beside X and y"),
        (STUDY.features, (), None, None, "/data does not: give class_names beside X and y"),
    ],
    ids=["turned columns", "one too many", "one missing", "turned classes", "unnamed columns", "unnamed classes"],
)
def test_other_names_than_the_studys_are_refused_with_the_difference(
    features: tuple[str, ...], classes: tuple[str, ...], begins: str | None, changed: list[str] | None, advice: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        require_names_of_study(STUDY, DataNames(features, classes), "heart", "/data")
    said = refused.value.detail
    assert begins is None or said.startswith(f"study 'heart': its {begins}")
    lines = sorted(line for line in said.splitlines() if line[0] in "+-" and line[1] not in "+-")
    assert changed is None or lines == changed
    assert advice in said


def test_a_long_difference_is_cut() -> None:
    mine, yours = (Named(who, tuple(f"{who}-{n}" for n in range(561))) for who in ("mine", "yours"))
    lines = difference(mine, yours).splitlines()
    # two lines of heads, one of the place, 561 names that go and 561 that come; 60 are shown
    assert len(lines) == 61
    assert lines[-1] == f"... and {3 + 2 * 561 - 60} lines more"


def test_several_givers_agree_or_the_silent_one_is_named() -> None:
    a, b, silent = Named("a", ("x", "y")), Named("b", ("x", "z")), Named("c", ())
    require_same_names([a, a], NamesKind.FEATURES, "sites", "here")
    require_same_names([silent, silent], NamesKind.FEATURES, "sites", "here")
    with pytest.raises(ConfigurationError, match="here: c give no feature_names and the others do: all sites give"):
        require_same_names([a, silent], NamesKind.FEATURES, "sites", "here")
    with pytest.raises(ConfigurationError, match=r"class_names differ between sites 'a' and 'b':\n(.|\n)*-y\n\+z"):
        require_same_names([a, b], NamesKind.CLASSES, "sites", "here")


def test_names_of_a_mac_and_of_a_pc_are_the_same() -> None:
    """Letters composed or not; what only looks the same is shown by number."""
    composed, parts = (
        DataNames(("gr\u00f6\u00dfe", "b"), ("ja", "n\u00e9")),
        DataNames(("gro\u0308\u00dfe", "b"), ("ja", "ne\u0301")),
    )
    require_names_of_study(composed, parts, "heart", "/data")
    for kind in NamesKind:
        require_same_names([Named("a", composed.of(kind)), Named("b", parts.of(kind))], kind, "sites", "/data")
        swapped = Named("b", parts.of(kind)[::-1])
        with pytest.raises(ConfigurationError, match="the same names in another order"):
            require_same_names([Named("a", composed.of(kind)), swapped], kind, "sites", "/data")
    said = difference(Named("a", ("\u00b5g",)), Named("b", ("\u03bcg",)))
    assert said.endswith("-\\xb5g\n+\\u03bcg")
    assert difference(Named("a", ("gr\u00f6\u00dfe",)), Named("b", ("b",))).endswith("-gr\u00f6\u00dfe\n+b")


# --- fitting ----------------------------------------------------------------------------------------------------------

LINEAR = model_spec("linear", (3,), (), 2)


def study_named(names: DataNames) -> Study:
    parameters = StudyParameters(dimension=8, clip_norm=1.0, least_contributors=3)
    return study().model_copy(update={"model": LINEAR.named(names.features, names.classes), "parameters": parameters})


def rows(labels: list[int], columns: int = 3) -> Examples:
    return Examples(np.ones((len(labels), columns), np.float32), np.array(labels, np.int64))


def site(folder: Path, names: DataNames, labels: tuple[int, ...] = (0, 1), columns: int = 3) -> Path:
    part = rows(list(labels), columns)
    save_folder(folder, LocalData(part, part, names=names))
    return folder


def test_a_column_too_many_is_named_and_not_only_counted(tmp_path: Path) -> None:
    site(tmp_path, DataNames((*STUDY.features, "weight"), STUDY.classes), columns=4)
    with pytest.raises(ConfigurationError, match=r"\n\+weight\n"):
        TorchLearner(study_named(STUDY), tmp_path, None, "cpu", 1, tmp_path)
    with pytest.raises(ConfigurationError, match=r"one example has shape \[4\], the model takes \[3\]"):
        TorchLearner(study_named(NO_NAMES), tmp_path, None, "cpu", 1, tmp_path)


def test_a_plugin_names_what_its_data_hold(tmp_path: Path) -> None:
    named = study().model_copy(update={"model": SPEC.named(("age", "sex"), ("died", "survived"))})
    silent = load_plugin(plugin_file(tmp_path))
    with pytest.raises(ConfigurationError, match="does not: give feature_names"):
        fitting_data(named, tmp_path / "value", silent)
    names = "def names(path):\n    return ['age', 'sex'], ('died', 'survived')\n\ndef model()"
    speaking = load_plugin(plugin_file(tmp_path, ("def model()", names)))
    assert fitting_data(named, tmp_path / "value", speaking).names.features == ("age", "sex")


def test_a_class_without_samples_here_is_remarked_by_name(tmp_path: Path) -> None:
    (remark,) = remarks(study_named(STUDY), fitting_data(study_named(STUDY), site(tmp_path, STUDY, (0, 0)), None))
    assert remark.startswith("no training example here of classes ['survived'], of 2:")
    unnamed = study_named(DataNames(STUDY.features))
    silent, missing = remarks(unnamed, fitting_data(unnamed, site(tmp_path / "other", STUDY, (1,)), None))
    assert silent.startswith("the study gives no class_names: nothing checks")
    assert "classes ['died']" in missing


def test_names_that_no_model_could_have_are_not_missed(tmp_path: Path) -> None:
    image = study().model_copy(update={"model": model_spec("linear", (1, 3), (), 2)})
    part = Examples(np.ones((2, 1, 3), np.float32), np.array([0, 1]))
    (remark,) = remarks(image, LocalData(part, part))
    assert remark.startswith("the study gives no class_names:")
    (remark,) = remarks(study_named(NO_NAMES), LocalData(rows([0, 1]), rows([0])))
    assert remark.startswith("the study gives no feature_names and no class_names:")


def test_a_single_output_needs_no_name() -> None:
    hazard = study().model_copy(
        update={
            "model": model_spec("linear", (3,), (), 1).named(STUDY.features, ()),
            "task": TaskSpec(kind=TaskKind.SURVIVAL),
        }
    )
    part = Examples(np.ones((2, 3), np.float32), np.array([[1, 1], [2, 0]], np.float32))
    assert remarks(hazard, LocalData(part, part)) == ()


def test_remarks_reach_the_log(tmp_path: Path) -> None:
    settings = AgentSettings.model_construct(data=site(tmp_path, STUDY), trainer=TrainerSettings())
    with capture_logs() as lines:
        site_learner(study_named(NO_NAMES), settings, 1, tmp_path)
    (line,) = [line for line in lines if line["event"] == "data_remark"]
    assert line["study"] == "unit"
    assert "nothing checks" in line["detail"]
