"""A site's own examples, from a folder that never leaves the site.

The folder holds ``train.npz`` and ``test.npz``, each with X (float32, one row an example) and y (int64, the class);
``validation.npz`` beside them is for rules that weigh sites by the requester's validation loss, at the requester.
Pickled arrays are never read.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from protocol.errors import ConfigurationError

Features = NDArray[np.float32]
Labels = NDArray[np.int64]
VALIDATION_FILE: Final = "validation.npz"


@dataclass(frozen=True)
class Examples:
    """X float32[n, ...] and y int64[n]; n may be 0."""

    X: Features
    y: Labels

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class LocalData:
    """What a site trains on and what it tests on; ``validation`` is empty where it sets nothing apart."""

    train: Examples
    test: Examples
    validation: Examples | None = None


def load_folder(folder: Path, inputs: tuple[int, ...], classes: int) -> LocalData:
    """The site's examples, checked against the study's model: one example has shape ``inputs``, y is below ``classes``.

    Raises: ConfigurationError that names the file, the array, what was found and what is expected
    """
    train = _load(folder / "train.npz", inputs, classes)
    if len(train) == 0:
        raise ConfigurationError(f"{folder / 'train.npz'}: no example; a site needs at least one to train on")
    test = _load(folder / "test.npz", inputs, classes)
    apart = folder / VALIDATION_FILE
    return LocalData(train, test, _load(apart, inputs, classes) if apart.exists() else None)


def save_folder(folder: Path, data: LocalData) -> None:
    """Write the folder that ``load_folder`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "train.npz", X=data.train.X, y=data.train.y)
    np.savez(folder / "test.npz", X=data.test.X, y=data.test.y)
    if data.validation is not None:
        np.savez(folder / VALIDATION_FILE, X=data.validation.X, y=data.validation.y)


def checked(
    X: NDArray[np.generic], y: NDArray[np.generic], inputs: tuple[int, ...], classes: int, where: str
) -> Examples:
    """Examples with the right types, shapes, labels and no NaN; ``where`` begins every error."""
    if X.dtype != np.float32:
        raise ConfigurationError(f"{where}: X has type {X.dtype}, expected float32")
    if y.dtype != np.int64:
        raise ConfigurationError(f"{where}: y has type {y.dtype}, expected int64")
    if y.ndim != 1 or X.ndim < 1 or len(X) != len(y):
        raise ConfigurationError(
            f"{where}: X has shape {list(X.shape)} and y {list(y.shape)}, expected one label for each row of X"
        )
    if X.shape[1:] != inputs:
        raise ConfigurationError(f"{where}: one example has shape {list(X.shape[1:])}, the model takes {list(inputs)}")
    _check_values(X, y, classes, where)
    return Examples(X.astype(np.float32, copy=False), y.astype(np.int64, copy=False))


def _check_values(X: NDArray[np.generic], y: NDArray[np.generic], classes: int, where: str) -> None:
    finite = np.isfinite(X.astype(np.float32, copy=False))
    bad_rows = np.flatnonzero(~finite.all(axis=tuple(range(1, X.ndim))))
    if len(bad_rows):
        raise ConfigurationError(
            f"{where}: X holds NaN or infinity in {len(bad_rows)} rows, the first is row {bad_rows[0]}; "
            "fill in or drop missing values first"
        )
    labels = y.astype(np.int64)
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ConfigurationError(
            f"{where}: y lies in {labels.min()}..{labels.max()}, the model's classes are 0..{classes - 1}"
        )


def _load(path: Path, inputs: tuple[int, ...], classes: int) -> Examples:
    if not path.is_file():
        raise ConfigurationError(f"{path} is missing: put the site's examples there, arrays X (float32) and y (int64)")
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            found = archive.files if isinstance(archive, NpzFile) else []
            arrays = [archive[name] for name in ("X", "y") if name in found]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{path} is no readable .npz file of plain arrays: {error}") from None
    for name in ("X", "y"):
        if name not in found:
            raise ConfigurationError(f"{path}: array {name!r} is missing; the file holds {sorted(found)}")
    return checked(arrays[0], arrays[1], inputs, classes, str(path))
