"""A site's own examples, from a folder that never leaves the site.

The folder holds ``train.npz`` and ``test.npz``, each with X (float32, one row an example) and y (one row of targets an
example, whose form the study's task says: client_agent.tasks.targets);
``validation.npz`` beside them is for rules that weigh sites by the requester's validation loss, at the requester.
``feature_names`` and ``class_names`` (text) beside X and y say what the columns and the classes are, in every file of
a folder or in none. Pickled arrays are never read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from client_agent.learning.names import NO_NAMES, DataNames, Named, require_same_names
from client_agent.tasks.targets import Targets, checked_targets
from protocol.errors import ConfigurationError
from protocol.messages.control import TaskKind, TaskSpec
from protocol.messages.model import CLASSES
from protocol.text import NamesKind, require_nameable, require_one_each

Features = NDArray[np.float32]
Arrays = dict[str, NDArray[np.generic]]
TRAIN_FILE: Final = "train.npz"
VALIDATION_FILE: Final = "validation.npz"
DATA_FILES: Final = (TRAIN_FILE, "test.npz", VALIDATION_FILE)


@dataclass(frozen=True)
class Examples:
    """X float32[n, ...] and y, the targets that a task takes: int64[n] for classes; n may be 0."""

    X: Features
    y: Targets

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class LocalData:
    """A site's training and test examples; ``validation`` is empty where it sets nothing apart."""

    train: Examples
    test: Examples
    validation: Examples | None = None
    names: DataNames = NO_NAMES


def load_folder(folder: Path, inputs: tuple[int, ...], outputs: int, task: TaskSpec = CLASSES) -> LocalData:
    """The site's examples, checked against the study: one example has shape ``inputs``, y what the task takes.

    Raises: ConfigurationError that names the file, the array, what was found and what is expected
    """
    train = _load(folder / TRAIN_FILE, inputs, outputs, task)
    if len(train) == 0:
        raise ConfigurationError(f"{folder / 'train.npz'}: no example; a site needs at least one to train on")
    test = _load(folder / "test.npz", inputs, outputs, task)
    apart = folder / VALIDATION_FILE
    validation = _load(apart, inputs, outputs, task) if apart.exists() else None
    names = folder_names(folder)
    try:
        require_one_each(names.features, names.classes, inputs, outputs)
    except ValueError as error:
        raise ConfigurationError(f"{folder}: {error}") from None
    return LocalData(train, test, validation, names)


def folder_names(folder: Path) -> DataNames:
    """Return the names of columns and classes in the folder's files, before anything is known of a model; missing files
    say nothing.

    Raises: ConfigurationError when a file's names are no texts, or the files' names differ
    """
    files = folder_files(folder)
    if not files:
        return NO_NAMES
    found = [_names(path) for path in files]
    for kind in NamesKind:
        given = [Named(path.name, names.of(kind)) for path, names in zip(files, found, strict=True)]
        require_same_names(given, kind, "files", str(folder))
    return found[0]


def folder_files(folder: Path) -> list[Path]:
    """Those of a site's files that are there."""
    return [folder / name for name in DATA_FILES if (folder / name).is_file()]


def save_folder(folder: Path, data: LocalData) -> None:
    """Write the folder that ``load_folder`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    names: Arrays = {kind.value: np.array(data.names.of(kind)) for kind in NamesKind if data.names.of(kind)}
    for name, part in zip(DATA_FILES, (data.train, data.test, data.validation), strict=True):
        if part is not None:
            np.savez(folder / name, allow_pickle=False, X=part.X, y=part.y, **names)


def checked(
    X: NDArray[np.generic],
    y: NDArray[np.generic],
    inputs: tuple[int, ...],
    outputs: int,
    where: str,
    task: TaskSpec = CLASSES,
) -> Examples:
    """Examples with the right types, shapes and targets and no NaN; ``where`` begins every error."""
    if X.dtype != np.float32:
        raise ConfigurationError(f"{where}: X has type {X.dtype}, expected float32")
    if y.ndim < 1 or X.ndim < 1 or len(X) != len(y):
        one = "label" if task.kind is TaskKind.CLASSES else "row of y"
        raise ConfigurationError(
            f"{where}: X has shape {list(X.shape)} and y {list(y.shape)}, expected one {one} for each row of X"
        )
    if X.shape[1:] != inputs:
        raise ConfigurationError(f"{where}: one example has shape {list(X.shape[1:])}, the model takes {list(inputs)}")
    finite = np.isfinite(X.astype(np.float32, copy=False))
    bad_rows = np.flatnonzero(~finite.all(axis=tuple(range(1, X.ndim))))
    if len(bad_rows):
        raise ConfigurationError(
            f"{where}: X holds NaN or infinity in {len(bad_rows)} rows, the first is row {bad_rows[0]}; "
            "fill in or drop missing values first"
        )
    return Examples(X.astype(np.float32, copy=False), checked_targets(y, task, outputs, where))


def _load(path: Path, inputs: tuple[int, ...], outputs: int, task: TaskSpec) -> Examples:
    if not path.is_file():
        raise ConfigurationError(f"{path} is missing: put the site's examples there, arrays X (float32) and y")
    arrays = _read(path, ("X", "y"), needed=True)
    return checked(arrays["X"], arrays["y"], inputs, outputs, str(path), task)


def _names(path: Path) -> DataNames:
    arrays = _read(path, list(NamesKind))
    return DataNames(_texts(arrays, NamesKind.FEATURES, path), _texts(arrays, NamesKind.CLASSES, path))


def _texts(arrays: Arrays, kind: NamesKind, path: Path) -> tuple[str, ...]:
    if kind.value not in arrays:
        return ()
    array = arrays[kind.value]
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind != "U":
        raise ConfigurationError(
            f"{path}: array {kind.value!r} has type {array.dtype} and shape {list(array.shape)}, expected a list of "
            "texts, such as np.array(['age', 'sex'])"
        )
    names = tuple(str(name) for name in array)
    try:
        require_nameable(kind, names)
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return names


def _read(path: Path, wanted: Collection[str], *, needed: bool = False) -> Arrays:
    """The wanted arrays that the file holds. Raises: ConfigurationError, also for a needed one that it lacks"""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            found = archive.files if isinstance(archive, NpzFile) else []
            arrays: Arrays = {name: archive[name] for name in wanted if name in found}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigurationError(
            f"{path} is no readable .npz file of plain arrays: {error} (names as np.array(names, dtype=str))"
        ) from None
    for name in wanted:
        if needed and name not in found:
            raise ConfigurationError(f"{path}: array {name!r} is missing; the file holds {sorted(found)}")
    return arrays
