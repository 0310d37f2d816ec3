"""Predictions for new rows: a table through the study's schema and the kept transformation, or ready features."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.data.findings import Findings
from client_agent.data.rows import read_rows
from client_agent.data.site_table import PLAIN, POINTED, SiteTable, read_site_table
from client_agent.data.source import open_table, text_columns
from client_agent.data.transformation import transform_file
from client_agent.learning.data import no_targets
from client_agent.learning.metrics import Predicted
from client_agent.model.card import survival
from client_agent.model.export import Exported
from host.output_files import write_new
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnSpec, ColumnType, TableSchema, TaskKind
from protocol.text import NamesKind, comparable

Features = NDArray[np.float32]
Kept = Mapping[str, Sequence[str]]
"""Columns of the input by name, each with one text a row."""
NOTHING_KEPT: Final[Kept] = {}
_READY: Final = "X"


def features_of(model: Exported, path: Path, site: Path | None, keep: Collection[str] = ()) -> Features:
    """The model's inputs, one row an example, at least one; a table without a schema may have columns to ``keep``.

    With a schema ``path`` is a CSV or Parquet table of raw values, written as the table that this site's data were
    made from unless ``site`` says otherwise. Without one it is an .npz with X, or a table whose columns are the
    features, which ``site`` says how to read. Raises: ConfigurationError
    """
    written = _site_table(model, site)
    if model.transformation is not None:
        X = transform_file(path, model.transformation, written)
    elif path.suffix != ".npz":
        X = _ready_table(model, path, written or PLAIN, keep)
    elif site is None:
        X = _npz(model, path)
    else:
        raise ConfigurationError("--site is for tables, which an .npz file is not")
    if X.shape[:1] == (0,):
        raise ConfigurationError(f"{path}: no row, so there is nothing to predict")
    return X


def kept_columns(model: Exported, path: Path, site: Path | None, keep: Sequence[str], rows: int) -> Kept:
    """Columns of the input by name, as text, to go with the predictions: a patient's id for example.

    Raises: ConfigurationError for a name that the input does not have exactly once
    """
    names = tuple(dict.fromkeys(keep))
    if not names:
        return {}
    if path.suffix == ".npz":
        found = _kept_arrays(path, names)
    else:
        given = model.transformation
        written = _site_table(model, site) or (PLAIN if given is None else given.reading)
        found = text_columns(path, written, names, header=given is None or given.table.header)
    for name, values in found.items():
        if len(values) != rows:
            raise ConfigurationError(f"{path}: --keep {name}: {len(values)} values for {rows} rows")
    return found


def _kept_arrays(path: Path, names: tuple[str, ...]) -> Kept:
    with np.load(path, allow_pickle=False) as archive:
        lacking = [name for name in names if name not in archive.files or archive[name].ndim != 1]
        if lacking:
            raise ConfigurationError(f"{path}: --keep {lacking[0]}: no such array with one value a row")
        return {name: [str(value) for value in archive[name].tolist()] for name in names}


def _site_table(model: Exported, path: Path | None) -> SiteTable | None:
    return None if path is None else read_site_table(path, model.study.data_schema)


def write_predictions(model: Exported, X: Features, path: Path, kept: Kept = NOTHING_KEPT) -> int:
    """A CSV with one line an example: what was kept of the input, then probabilities and the likeliest class, numbers,
    rates, or the log hazard and survival at the horizons that the model was exported with.

    Returns: the number of lines below the first. Raises: ConfigurationError, StorageFull; then no file is there
    """
    first, lines = _predicted(model, X, kept)
    text = io.StringIO(newline="")
    csv.writer(text).writerows([first, *lines])
    write_new((path, text.getvalue(), 0o600))
    return len(lines)


def _predicted(model: Exported, X: Features, kept: Kept) -> tuple[list[str], list[list[str]]]:
    task, outputs = model.study.task, model.outputs(X)
    values = Predicted(task, outputs, no_targets(task, model.study.model.classes)).values
    names = _columns(model)
    if task.kind is TaskKind.SURVIVAL:
        values = np.column_stack([values, survival(model.card.baseline, values[:, 0])])
    lines = [[repr(float(value)) for value in row] for row in values]
    if task.kind is TaskKind.CLASSES:
        names = [*names, "prediction"]
        for line, place in zip(lines, values.argmax(axis=1), strict=True):
            line.append(_classes(model)[int(place)])
    twice = [name for name in kept if name in names]
    if twice:
        raise ConfigurationError(f"--keep {twice[0]}: a column of the predictions has that name: rename the input's")
    rows = zip(*kept.values(), strict=True) if kept else [()] * len(lines)
    return [*kept, *names], [[*own, *line] for own, line in zip(rows, lines, strict=True)]


def _columns(model: Exported) -> list[str]:
    match model.study.task.kind:
        case TaskKind.CLASSES | TaskKind.MULTI_LABEL:
            return [f"probability of {name}" for name in _classes(model)]
        case TaskKind.COUNTS:
            return _numbered(model, "rate")
        case TaskKind.SURVIVAL:
            return ["log hazard", *(f"survival at {one.time:g}" for one in model.card.baseline)]
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


def _ready_table(model: Exported, path: Path, site: SiteTable, keep: Collection[str]) -> Features:
    findings = Findings()
    table = open_table(path, site, findings, header=True)
    kept = set(map(comparable, keep)) - set(map(comparable, model.study.model.feature_names))
    names = tuple(name for name in table.names or () if name not in kept)
    _require_names(model, names, path)
    places = tuple(map(str, range(len(names))))
    if (
        names != places
        and not model.study.model.feature_names
        and any(re.match(POINTED.pattern, name) for name in names)
    ):
        raise ConfigurationError(f"{path}: its first line holds numbers: it must name the columns")
    numbers = tuple(ColumnSpec.model_construct(name=name, type=ColumnType.NUMBER) for name in names)
    schema = TableSchema.model_construct(columns=numbers)
    rows = read_rows(schema, table, site, findings)
    found = "; ".join(finding.text for finding in findings)
    if found:
        raise ConfigurationError(f"{path}: no prediction for these rows, as this study has no [schema]: {found}")
    with np.errstate(over="ignore"):  # what is beyond float32 is no finite input, which the model refuses
        return np.column_stack(rows.columns).astype(np.float32)


def _require_names(model: Exported, found: tuple[str, ...], path: Path) -> None:
    wanted, found = (tuple(map(comparable, names)) for names in (model.study.model.feature_names, found))
    if wanted and found != wanted:
        lacking = [name for name in wanted if name not in found]
        more = [name for name in found if name not in wanted]
        raise ConfigurationError(
            f"{path}: its columns are not the model's, in the model's order: missing are {lacking[:10]}, not known "
            f"{more[:10]}"
        )
