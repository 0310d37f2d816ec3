"""Check the targets of examples for a study's task: any numbers go in, checked ones of one form come out.

    classes                  any whole numbers [n]                           -> int64[n], 0 to classes - 1
    multi_label              0 or 1, [n, labels]                             -> float32[n, labels]
    regression               finite numbers [n], or [n, ...]                 -> float32[n, outputs]
    counts                   whole numbers from 0, [n], or [n, ...]          -> float32[n, outputs]
    survival                 [n, 2]: time above 0, event 1 or 0 (censored)   -> float32[n, 2]
    own                      finite numbers of any shape [n, ...]            -> as they are

Everything that is wrong about them is said by row, never by value.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.messages.control import TaskKind, TaskSpec

Targets = NDArray[Any]
"""One row an example, of the form above."""
TIME, EVENT = 0, 1
_LARGEST_COUNT: Final = 2**24
"""Beyond it float32 no longer tells neighbouring whole numbers apart."""


def checked_targets(y: NDArray[Any], task: TaskSpec, outputs: int, where: str) -> Targets:
    """Targets as the task's loss and metrics take them; ``where`` begins every error.

    Raises: ConfigurationError for another type, shape or range, naming the first row that is wrong
    """
    if y.dtype.kind not in "iufb":
        raise ConfigurationError(f"{where}: y has type {y.dtype}, expected numbers")
    _refuse(~np.isfinite(y.astype(np.float64)), "NaN or infinity", "leave those examples out", where)
    return _CHECKS[task.kind](y, outputs, where)


def no_targets(task: TaskSpec, outputs: int) -> Targets:
    """Return targets of no example, in the task's form."""
    if task.kind is TaskKind.CLASSES:
        return np.zeros(0, np.int64)
    return np.zeros((0, 2 if task.kind is TaskKind.SURVIVAL else outputs), np.float32)


def _classes(y: NDArray[Any], classes: int, where: str) -> Targets:
    if y.ndim != 1:
        raise ConfigurationError(
            f"{where}: y has shape {list(y.shape)}, expected one label for each row of X; a study that predicts "
            "numbers says so: [task] kind = 'regression'"
        )
    if y.dtype.kind not in "iub":
        raise ConfigurationError(
            f"{where}: y has type {y.dtype}, expected int64, the classes; a study that predicts numbers says so: "
            "[task] kind = 'regression'"
        )
    labels: NDArray[np.int64] = y.astype(np.int64, copy=False)
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ConfigurationError(
            f"{where}: y lies in {labels.min()}..{labels.max()}, the model's classes are 0..{classes - 1}"
        )
    return labels


def _multi_label(y: NDArray[Any], labels: int, where: str) -> Targets:
    flat = _flat(y, labels, "label", where)
    _refuse((flat != 0) & (flat != 1), "something else than 0 and 1", "give 1 for a label that holds, else 0", where)
    return flat


def _numbers(y: NDArray[Any], outputs: int, where: str) -> Targets:
    flat = _flat(y, outputs, "output", where)
    _refuse(~np.isfinite(flat), "numbers beyond float32", "bring the target to another unit", where)
    return flat


def _counts(y: NDArray[Any], outputs: int, where: str) -> Targets:
    flat = _flat(y, outputs, "output", where)
    wrong = (flat < 0) | (flat != np.floor(flat)) | (flat > _LARGEST_COUNT)
    _refuse(wrong, f"no count, a whole number from 0 to {_LARGEST_COUNT}", "count again, or take 'regression'", where)
    return flat


def _survival(y: NDArray[Any], outputs: int, where: str) -> Targets:
    if y.ndim != 2 or y.shape[1] != 2:
        raise ConfigurationError(f"{where}: y has shape {list(y.shape)}, expected np.column_stack([time, event])")
    with np.errstate(over="ignore"):
        both: NDArray[np.float32] = y.astype(np.float32)
    time, event = both[:, TIME], both[:, EVENT]
    _refuse(~((time > 0) & np.isfinite(time)), "a time that is not above 0", "time counts from the start", where)
    _refuse((event != 0) & (event != 1), "an event other than 0 and 1", "give 1 where it was seen, else 0", where)
    return both


def _own(y: NDArray[Any], outputs: int, where: str) -> Targets:
    return y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64)


_CHECKS: Final[dict[TaskKind, Callable[[NDArray[Any], int, str], Targets]]] = {
    TaskKind.CLASSES: _classes,
    TaskKind.MULTI_LABEL: _multi_label,
    TaskKind.REGRESSION: _numbers,
    TaskKind.COUNTS: _counts,
    TaskKind.SURVIVAL: _survival,
    TaskKind.OWN: _own,
}


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
