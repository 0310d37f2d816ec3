"""A site's own examples, from a folder that never leaves the site, and their targets and names against the study's.

The folder holds ``train.npz`` and ``test.npz``, each with X (float32, one row an example) and y (one row of targets an
example, in the form of the study's task); ``validation.npz`` beside them is for rules that weigh sites by the
requester's validation loss, at the requester. ``feature_names`` and ``class_names`` (text) beside X and y say what the
columns and the classes are, in every file of a folder or in none. Pickled arrays are never read. Beside them
``transformation.json`` says by which schema ``moiety data prepare`` made them, which is compared before the agent says
that it is ready.

A model that is trained on columns in another order, or on labels that mean something else, learns nonsense without any
error. So names are equal, in the same order, or nothing begins (docs/joining.md). They are compared before shapes are:
a column too many is then named, and not only counted.

Targets: any numbers go in, checked ones of one form come out. What is wrong is said by row, never by value.

    classes                  any whole numbers [n]                           -> int64[n], 0 to classes - 1
    multi_label              0 or 1, [n, labels]                             -> float32[n, labels]
    regression               finite numbers [n], or [n, ...]                 -> float32[n, outputs]
    counts                   whole numbers from 0, [n], or [n, ...]          -> float32[n, outputs]
    survival                 [n, 2]: time above 0, event 1 or 0 (censored)   -> float32[n, 2]
    own                      finite numbers of any shape [n, ...]            -> as they are
"""

from __future__ import annotations

import difflib
import json
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from pydantic import ValidationError

from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec, Study, TableSchema, TaskKind, TaskSpec
from protocol.messages.model import CLASSES
from protocol.text import NamesKind, comparable, lookalike, require_nameable, require_one_each

_MOST_LINES: Final = 60
_WHAT: Final = {NamesKind.FEATURES: "the columns of X", NamesKind.CLASSES: "the classes of y"}
_MEND: Final = {
    NamesKind.FEATURES: "bring X and feature_names into the study's order and call the columns by its names",
    NamesKind.CLASSES: "number y and class_names as the study does",
}


@dataclass(frozen=True)
class DataNames:
    """The names of the columns of X and of the classes of y; empty where nothing says."""

    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def of(self, kind: NamesKind) -> tuple[str, ...]:
        return self.features if kind is NamesKind.FEATURES else self.classes


NO_NAMES: Final = DataNames()


@dataclass(frozen=True)
class Named:
    """Somebody's names; empty where it gives none."""

    giver: str
    names: tuple[str, ...]

    @property
    def compared(self) -> tuple[str, ...]:
        """Letters as Unicode composes them: a Mac and a PC write the same name in different bytes."""
        return tuple(map(comparable, self.names))


def require_same_names(found: Sequence[Named], kind: NamesKind, givers: str, where: str) -> None:
    """All give the same names in the same order, or none does. Raises: ConfigurationError with the difference"""
    first = found[0]
    silent = [one.giver for one in found if not one.names]
    if silent and len(silent) < len(found):
        raise ConfigurationError(
            f"{where}: {', '.join(silent)} give no {kind.value} and the others do: all {givers} give them, or none does"
        )
    for other in found[1:]:
        if other.compared != first.compared:
            raise ConfigurationError(
                f"{where}: {kind.value} differ between {givers} {first.giver!r} and {other.giver!r}"
                f"{_only_order(first, other)}:\n{difference(first, other)}"
            )


def require_names_of_study(wanted: DataNames, found: DataNames, study: str, where: str) -> None:
    """Require that the data at ``where`` name alike what the study names; what it does not name is not compared.

    Raises: ConfigurationError with the difference and what to do
    """
    for kind in NamesKind:
        theirs, ours = Named(f"study {study}", wanted.of(kind)), Named(where, found.of(kind))
        if theirs.names and not ours.names:
            raise ConfigurationError(
                f"study {study!r} says what {_WHAT[kind]} are called, {where} does not: give {kind.value} beside X and "
                "y, so that they can be compared (docs/joining.md), and start again"
            )
        if theirs.names and ours.compared != theirs.compared:
            raise ConfigurationError(
                f"study {study!r}: its {kind.value} are not those of {where}{_only_order(theirs, ours)}:\n"
                f"{difference(theirs, ours)}\n{_MEND[kind]}, and start again; if the study is wrong, another "
                "one is needed"
            )


def difference(one: Named, other: Named) -> str:
    """A unified diff of the names, cut after some lines; where two look alike, letters beyond ASCII by number."""
    ours, theirs = one.compared, other.compared
    if {lookalike(name) for name in set(ours) - set(theirs)} & {lookalike(name) for name in set(theirs) - set(ours)}:
        ours, theirs = (tuple(ascii(name)[1:-1] for name in names) for names in (ours, theirs))
    lines = list(difflib.unified_diff(ours, theirs, one.giver, other.giver, lineterm="", n=1))
    cut = lines[:_MOST_LINES]
    return "\n".join(cut if len(cut) == len(lines) else [*cut, f"... and {len(lines) - len(cut)} lines more"])


def _only_order(one: Named, other: Named) -> str:
    return ", the same names in another order" if sorted(one.compared) == sorted(other.compared) else ""


Targets = NDArray[Any]
"""One row an example, in the form of the task."""
TIME, EVENT = 0, 1
_LARGEST_COUNT: Final = 2**24
"""Beyond it float32 no longer tells neighbouring whole numbers apart."""
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


def checked_targets(y: NDArray[Any], task: TaskSpec, outputs: int, where: str) -> Targets:
    """Targets as the task's loss and metrics take them; ``where`` begins every error.

    Raises: ConfigurationError for another type, shape or range, naming the first row that is wrong
    """
    if y.dtype.kind not in "iufb":
        raise ConfigurationError(f"{where}: y has type {y.dtype}, expected numbers")
    _refuse(~np.isfinite(y.astype(np.float64)), "NaN or infinity", "leave those examples out", where)
    match task.kind:
        case TaskKind.CLASSES:
            return _classes(y, outputs, where)
        case TaskKind.SURVIVAL:
            return _survival(y, where)
        case TaskKind.OWN:
            return y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64)
    flat = _flat(y, outputs, "label" if task.kind is TaskKind.MULTI_LABEL else "output", where)
    if task.kind is TaskKind.MULTI_LABEL:
        wrong = (flat != 0) & (flat != 1)
        _refuse(wrong, "something else than 0 and 1", "give 1 for a label that holds, else 0", where)
    elif task.kind is TaskKind.COUNTS:
        wrong = (flat < 0) | (flat != np.floor(flat)) | (flat > _LARGEST_COUNT)
        whole = f"no count, a whole number from 0 to {_LARGEST_COUNT}"
        _refuse(wrong, whole, "count again, or take 'regression'", where)
    else:
        _refuse(~np.isfinite(flat), "numbers beyond float32", "bring the target to another unit", where)
    return flat


def no_targets(task: TaskSpec, outputs: int) -> Targets:
    """Return targets of no example, in the task's form."""
    if task.kind is TaskKind.CLASSES:
        return np.zeros(0, np.int64)
    return np.zeros((0, 2 if task.kind is TaskKind.SURVIVAL else outputs), np.float32)


def _classes(y: NDArray[Any], classes: int, where: str) -> Targets:
    found = f"shape {list(y.shape)}, expected one label for each row of X"
    if y.dtype.kind not in "iub":
        found = f"type {y.dtype}, expected int64, the classes"
    if y.ndim != 1 or y.dtype.kind not in "iub":
        raise ConfigurationError(
            f"{where}: y has {found}; a study that predicts numbers says so: [task] kind = 'regression'"
        )
    labels: NDArray[np.int64] = y.astype(np.int64, copy=False)
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ConfigurationError(
            f"{where}: y lies in {labels.min()}..{labels.max()}, the model's classes are 0..{classes - 1}"
        )
    return labels


def _survival(y: NDArray[Any], where: str) -> Targets:
    if y.ndim != 2 or y.shape[1] != 2:
        raise ConfigurationError(f"{where}: y has shape {list(y.shape)}, expected np.column_stack([time, event])")
    with np.errstate(over="ignore"):
        both: NDArray[np.float32] = y.astype(np.float32)
    time, event = both[:, TIME], both[:, EVENT]
    _refuse(~((time > 0) & np.isfinite(time)), "a time that is not above 0", "time counts from the start", where)
    _refuse((event != 0) & (event != 1), "an event other than 0 and 1", "give 1 where it was seen, else 0", where)
    return both


def _flat(y: NDArray[Any], outputs: int, what: str, where: str) -> NDArray[np.float32]:
    """float32[n, outputs]. Raises: ConfigurationError for targets of another size"""
    if prod(y.shape[1:]) != outputs:
        raise ConfigurationError(
            f"{where}: the targets of one example have shape {list(y.shape[1:])}, the model has {outputs} outputs: one "
            f"number for each {what}, or another model.outputs"
        )
    with np.errstate(over="ignore"):
        return y.reshape(len(y), outputs).astype(np.float32)


def _refuse(wrong: NDArray[np.bool_], found: str, advice: str, where: str) -> None:
    rows = np.flatnonzero(wrong.any(axis=tuple(range(1, wrong.ndim))))
    if len(rows):
        raise ConfigurationError(f"{where}: y holds {found} in {len(rows)} rows, the first is row {rows[0]}; {advice}")


def names_of(spec: ModelSpec) -> DataNames:
    """Return the study's names of columns and classes."""
    return DataNames(spec.feature_names, spec.class_names)


def remarks(study: Study, data: LocalData) -> tuple[str, ...]:
    """Return remarks that do not stop this site, and that a person should know before round 1.

    Whether another site has examples of a class is nobody's to know before class counts are summed.
    """
    found: list[str] = []
    spec, named = study.model, names_of(study.model)
    # a single output, a log hazard for example, cannot be taken for another one
    nameable = {NamesKind.FEATURES: len(spec.inputs) == 1, NamesKind.CLASSES: spec.classes > 1}
    silent = [kind.value for kind in NamesKind if not named.of(kind) and nameable[kind]]
    if silent:
        found.append(
            f"the study gives no {' and no '.join(silent)}: nothing checks that this site's data mean the same as the "
            "others'; compare with the requester"
        )
    if study.task.kind is TaskKind.SURVIVAL and not data.train.y[:, EVENT].any():
        found.append(
            "no training example here has an event: the site's updates are zero, and only its test part says something"
        )
    if study.task.kind is TaskKind.CLASSES:
        called = spec.class_names or data.names.classes or range(spec.classes)
        counts = np.bincount(data.train.y, minlength=spec.classes)
        missing = [name for name, count in zip(called, counts, strict=True) if count == 0]
        if missing:
            found.append(
                f"no training example here of classes {missing}, of {spec.classes}: right if this site sees none, "
                "wrong if its labels are numbered otherwise"
            )
    return tuple(found)


TRANSFORMATION_FILE: Final = "transformation.json"


class _Kept(Frozen, extra="ignore"):
    table: TableSchema


def require_made_by_schema(study: Study, folder: Path) -> None:
    """The folder was made by the study's schema; of a study without one nothing is asked.

    Raises: ConfigurationError with the difference and what to do
    """
    require_folder_of_schema(study.data_schema, folder, f"study {study.name!r}")


def require_folder_of_schema(wanted: TableSchema | None, folder: Path, of: str) -> None:
    """The folder was made by the schema ``of`` a study or a case; without a schema nothing is asked.

    Raises: ConfigurationError with the difference and what to do
    """
    if wanted is None:
        return
    kept = _schema_of(folder, of)
    if kept.digest() == wanted.digest():
        return
    between = difference(Named(of, _lines(wanted)), Named(str(folder), _lines(kept)))
    raise ConfigurationError(
        f"{of}: its schema is not the one that {folder} was made by:\n{between}\nprepare the data again with this "
        "study's file (moiety data prepare), and start again"
    )


def _schema_of(folder: Path, of: str) -> TableSchema:
    path = folder / TRANSFORMATION_FILE
    try:
        return _Kept.model_validate_json(path.read_bytes()).table
    except OSError:
        raise ConfigurationError(
            f"{of} has a schema and {path} is missing, so nothing says how these data were made: make them "
            "with 'moiety data prepare', and start again"
        ) from None
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: not of this version ({error.error_count()} fields are wrong): prepare the data again"
        ) from None


def _lines(schema: TableSchema) -> tuple[str, ...]:
    """A line for every column and for every other part."""
    parts = json.loads(schema.canonical())
    columns = [f"column {json.dumps(column, ensure_ascii=False)}" for column in parts.pop("columns")]
    others = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(parts.items()))
    return (*others, *columns)
