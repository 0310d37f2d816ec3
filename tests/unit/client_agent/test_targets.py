"""Targets of every task: what is taken, in which form, and which row is said to be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.learning.data import Examples, LocalData, load_folder, save_folder
from client_agent.tasks.targets import checked_targets, no_targets
from protocol.errors import ConfigurationError
from protocol.messages.control import TaskKind, TaskSpec

TAKEN: list[tuple[TaskKind, int, Any, np.dtype[Any], list[int]]] = [
    (TaskKind.CLASSES, 3, np.array([0, 2, 1], np.uint8), np.dtype(np.int64), [3]),
    (TaskKind.CLASSES, 2, np.array([True, False]), np.dtype(np.int64), [2]),
    (TaskKind.MULTI_LABEL, 2, np.array([[0, 1], [1, 1]]), np.dtype(np.float32), [2, 2]),
    (TaskKind.REGRESSION, 1, np.array([1.5, -2.0, 1e6]), np.dtype(np.float32), [3, 1]),
    (TaskKind.REGRESSION, 4, np.ones((3, 2, 2), np.float16), np.dtype(np.float32), [3, 4]),
    (TaskKind.COUNTS, 1, np.array([0, 7], np.int16), np.dtype(np.float32), [2, 1]),
    (TaskKind.SURVIVAL, 1, np.array([[12.5, 1], [3, 0]]), np.dtype(np.float32), [2, 2]),
    (TaskKind.OWN, 2, np.arange(6).reshape(2, 3), np.dtype(np.int64), [2, 3]),
    (TaskKind.OWN, 2, np.ones(2, np.float64), np.dtype(np.float32), [2]),
]


@pytest.mark.parametrize(("kind", "outputs", "y", "dtype", "shape"), TAKEN)
def test_targets_are_taken_in_the_tasks_form(
    kind: TaskKind, outputs: int, y: Any, dtype: np.dtype[Any], shape: list[int]
) -> None:
    found = checked_targets(y, TaskSpec(kind=kind), outputs, "here")
    assert (found.dtype, list(found.shape)) == (dtype, shape)
    np.testing.assert_array_equal(found.reshape(-1), y.reshape(-1))
    none = no_targets(TaskSpec(kind=kind), outputs)
    assert len(none) == 0
    assert kind is TaskKind.OWN or (none.dtype, none.shape[1:]) == (dtype, found.shape[1:])


@pytest.mark.parametrize(
    ("kind", "outputs", "y", "said"),
    [
        (TaskKind.CLASSES, 2, np.array([0, 2]), r"y lies in 0\.\.2, the model's classes are 0\.\.1"),
        (TaskKind.CLASSES, 2, np.array([0.0, 1.0]), r"type float64, expected int64.*\[task\] kind = 'regression'"),
        (TaskKind.CLASSES, 2, np.array([[0], [1]]), "one label for each row"),
        (TaskKind.MULTI_LABEL, 2, np.array([[0, 1], [2, 1]]), "else than 0 and 1 in 1 rows, the first is row 1"),
        (
            TaskKind.MULTI_LABEL,
            3,
            np.array([[0, 1]]),
            r"have shape \[2\], the model has 3 outputs: one number",
        ),
        (TaskKind.REGRESSION, 1, np.array([1.0, np.nan, np.inf]), "NaN or infinity in 2 rows, the first is row 1"),
        (TaskKind.REGRESSION, 1, np.array([1.0, 1e300]), "beyond float32 in 1 rows, the first is row 1"),
        (TaskKind.REGRESSION, 2, np.array([1.0, 2.0]), r"have shape \[\], the model has 2 outputs"),
        (TaskKind.COUNTS, 1, np.array([1, -1]), "no count, .* in 1 rows, the first is row 1"),
        (TaskKind.COUNTS, 1, np.array([0.5]), "no count"),
        (TaskKind.SURVIVAL, 1, np.array([3.0, 4.0]), r"expected np\.column_stack\(\[time, event\]\)"),
        (TaskKind.SURVIVAL, 1, np.array([[3.0, 1], [0, 1]]), "time that is not above 0 in 1 rows, the first is row 1"),
        (TaskKind.SURVIVAL, 1, np.array([[3.0, 2]]), "event other than 0 and 1 in 1 rows"),
        (TaskKind.OWN, 1, np.array(["a"]), "expected numbers"),
    ],
)
def test_what_no_model_could_learn_is_refused_by_row(kind: TaskKind, outputs: int, y: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        checked_targets(y, TaskSpec(kind=kind), outputs, "here")
    assert caught.value.detail.startswith("here: ")
    assert "1e+300" not in caught.value.detail


def test_a_folder_holds_the_targets_of_its_task(tmp_path: Path) -> None:
    survival = TaskSpec(kind=TaskKind.SURVIVAL)
    part = Examples(np.ones((3, 2), np.float32), np.array([[5.0, 1], [7, 0], [9, 1]], np.float32))
    save_folder(tmp_path, LocalData(part, part))
    np.testing.assert_array_equal(load_folder(tmp_path, (2,), 1, survival).test.y, part.y)
    with pytest.raises(ConfigurationError, match=r"train\.npz: the targets of one example have shape \[2\]"):
        load_folder(tmp_path, (2,), 1, TaskSpec(kind=TaskKind.COUNTS))
