"""Predictions for new rows: a table through the study's schema and the kept transformation, or ready features."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from client_agent.product.exported import Exported
from client_agent.scoring.predicted import Predicted
from client_agent.tasks.targets import no_targets
from host.placed_files import write_new
from protocol.errors import ConfigurationError
from protocol.wire.messages import TaskKind
from protocol.wire.names import NamesKind

if TYPE_CHECKING:
    from client_agent.data.site_table import SiteTable

Features = NDArray[np.float32]
_READY: Final = "X"


def features_of(model: Exported, path: Path, site: Path | None) -> Features:
    """The model's inputs, one row an example.

    With a schema ``path`` is a CSV or Parquet table of raw values, and ``site`` says how it is written here; without
    one it is an .npz with X, or a CSV whose columns are the features. Raises: ConfigurationError
    """
    if model.transformation is not None:
        from client_agent.data.transformation import transform_file

        return transform_file(path, model.transformation, _site_table(model, site))
    if site is not None:
        raise ConfigurationError("--site is for tables of studies with a [schema], which this one has not")
    return _npz(model, path) if path.suffix == ".npz" else _ready_csv(model, path)


def _site_table(model: Exported, path: Path | None) -> SiteTable:
    from client_agent.data.site_table import PLAIN, read_site_table

    schema = model.study.data_schema
    return PLAIN if path is None or schema is None else read_site_table(path, schema)


def write_predictions(model: Exported, X: Features, path: Path) -> int:
    """A CSV with one line an example: probabilities and the likeliest class, numbers, rates, or the log hazard.

    Returns: the number of lines below the first. Raises: ConfigurationError, StorageFull; then no file is there
    """
    task, outputs = model.study.task, model.outputs(X)
    values = Predicted(task, outputs, no_targets(task, model.study.model.classes)).values
    names = _columns(model)
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow([*names, "prediction"] if task.kind is TaskKind.CLASSES else names)
    for row in values:
        likeliest = [_classes(model)[int(row.argmax())]] if task.kind is TaskKind.CLASSES else []
        writer.writerow([*(repr(float(value)) for value in row), *likeliest])
    write_new((path, lines.getvalue(), 0o600))
    return len(values)


def _columns(model: Exported) -> list[str]:
    match model.study.task.kind:
        case TaskKind.CLASSES | TaskKind.MULTI_LABEL:
            return [f"probability of {name}" for name in _classes(model)]
        case TaskKind.COUNTS:
            return _numbered(model, "rate")
        case TaskKind.SURVIVAL:
            return ["log hazard"]
        case _:
            return _numbered(model, "output")


def _classes(model: Exported) -> tuple[str, ...]:
    spec = model.study.model
    return spec.class_names or tuple(str(number) for number in range(spec.classes))


def _numbered(model: Exported, what: str) -> list[str]:
    outputs = model.study.model.classes
    return [what] if outputs == 1 else [f"{what} {number}" for number in range(1, outputs + 1)]


def _npz(model: Exported, path: Path) -> Features:
    try:
        with np.load(path, allow_pickle=False) as archive:
            X = np.asarray(archive[_READY])
            key = NamesKind.FEATURES.value
            names = tuple(str(name) for name in archive[key]) if key in archive.files else ()
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{path}: no .npz file with an array X: {error}") from None
    _require_names(model, names or model.study.model.feature_names, path)
    return X


def _ready_csv(model: Exported, path: Path) -> Features:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"{path}: no CSV file with a line of names: {error}") from None
    _require_names(model, tuple(header), path)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ConfigurationError(f"{path}: line {number} has {len(row)} fields, the first has {len(header)}")
    try:
        X = np.array(rows, dtype=np.float32).reshape(len(rows), len(header))
    except ValueError:
        raise ConfigurationError(
            f"{path}: something is no number, and this study has no [schema] that would say what it means"
        ) from None
    return X


def _require_names(model: Exported, found: tuple[str, ...], path: Path) -> None:
    wanted = model.study.model.feature_names
    if wanted and found != wanted:
        lacking = [name for name in wanted if name not in found]
        more = [name for name in found if name not in wanted]
        raise ConfigurationError(
            f"{path}: its columns are not the model's, in the model's order: missing are {lacking[:10]}, not known "
            f"{more[:10]}"
        )
