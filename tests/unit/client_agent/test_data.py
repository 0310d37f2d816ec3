"""A site's folder: what is accepted, and a named error for everything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.data import Examples, LocalData, load_folder, save_folder
from protocol.errors import ConfigurationError


def examples(n: int = 4) -> Examples:
    return Examples(np.arange(3 * n, dtype=np.float32).reshape(n, 3), np.arange(n, dtype=np.int64) % 2)


def write(folder: Path, **arrays: np.ndarray) -> None:
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
        ({"X": X, "y": Y.astype(np.int32)}, "y has type int32, expected int64"),
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
