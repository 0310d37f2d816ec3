"""A site's folder: what is accepted, and a named error for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.learning.data import NO_NAMES, DataNames, Examples, LocalData, folder_names, load_folder, save_folder
from protocol.errors import ConfigurationError


def examples(n: int = 4) -> Examples:
    return Examples(np.arange(3 * n, dtype=np.float32).reshape(n, 3), np.arange(n, dtype=np.int64) % 2)


def write(folder: Path, **arrays: Any) -> None:
    save_folder(folder, LocalData(examples(), examples(2)))
    np.savez(folder / "train.npz", **arrays)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    save_folder(tmp_path / "site", LocalData(examples(5), examples(0)))
    loaded = load_folder(tmp_path / "site", (3,), 2)
    np.testing.assert_array_equal(loaded.train.X, examples(5).X)
    np.testing.assert_array_equal(loaded.train.y, examples(5).y)
    assert (len(loaded.train), len(loaded.test)) == (5, 0)


def saved(folder: Path, validation: Examples | None) -> Path:
    save_folder(folder, LocalData(examples(5), examples(0), validation))
    return folder


def test_validation_examples_are_taken_where_there_are_some(tmp_path: Path) -> None:
    assert load_folder(saved(tmp_path / "none", None), (3,), 2).validation is None
    loaded = load_folder(saved(tmp_path / "some", examples(4)), (3,), 2)
    assert loaded.validation is not None
    np.testing.assert_array_equal(loaded.validation.X, examples(4).X)
    np.savez(tmp_path / "some" / "validation.npz", X=examples(4).X, y=examples(4).y + 1)
    with pytest.raises(ConfigurationError, match=r"validation\.npz: y lies in 1\.\.2"):
        load_folder(tmp_path / "some", (3,), 2)


X, Y = examples().X, examples().y
NAN = np.where(np.arange(12).reshape(4, 3) == 7, np.float32("nan"), X)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"X": X}, "array 'y' is missing"),
        ({"y": Y}, "array 'X' is missing"),
        ({"X": X.astype(np.float64), "y": Y}, "X has type float64, expected float32"),
        ({"X": X, "y": Y.astype(np.float32)}, r"y has type float32, expected int64.*kind = 'regression'"),
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
    (tmp_path / "test.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(ConfigurationError, match=r"test\.npz is no readable"):
        load_folder(tmp_path, (3,), 2)
    (tmp_path / "test.npz").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"test\.npz is no readable"):
        load_folder(tmp_path, (3,), 2)
    np.save(tmp_path / "array.npy", X)
    (tmp_path / "array.npy").rename(tmp_path / "test.npz")
    with pytest.raises(ConfigurationError, match=r"test\.npz: array 'X' is missing; the file holds \[\]"):
        load_folder(tmp_path, (3,), 2)


NAMES = DataNames(("age", "sex", "fare"), ("no", "yes"))


def test_names_come_back_as_they_were_saved(tmp_path: Path) -> None:
    save_folder(tmp_path, LocalData(examples(), examples(2), examples(1), NAMES))
    assert load_folder(tmp_path, (3,), 2).names == folder_names(tmp_path) == NAMES
    save_folder(tmp_path / "plain", LocalData(examples(), examples(2)))
    assert folder_names(tmp_path / "plain") == folder_names(tmp_path / "nothing") == NO_NAMES


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
