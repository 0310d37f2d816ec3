"""A study's task: what fits together, and that studies without one keep their bytes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protocol.messages.control import LossName, ModelSpec, RankingSpec, RuleName, Study, TaskKind, TaskSpec
from protocol.messages.model import Buffers
from tests.unit.parties import study

ROSTER = "0" * 64


def test_a_study_of_classes_has_the_bytes_of_one_without_a_task() -> None:
    plain = study(ROSTER)
    said = plain.model_copy(update={"task": TaskSpec(kind=TaskKind.CLASSES)})
    assert said.canonical() == plain.canonical()
    assert b'"task"' not in plain.canonical()
    assert Study.parse(plain.canonical()).task.kind is TaskKind.CLASSES


def test_a_task_is_part_of_the_bytes_and_its_defaults_are_not() -> None:
    assert TaskSpec(kind=TaskKind.SURVIVAL).canonical() == b'{"kind":"survival"}'
    assert TaskSpec(kind=TaskKind.REGRESSION).chosen_loss is LossName.SQUARED
    one = study(ROSTER).model_copy(update={"task": TaskSpec(kind=TaskKind.COUNTS)})
    assert Study.parse(one.canonical()) == one
    assert one.digest() != study(ROSTER).digest()


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"kind": TaskKind.COUNTS, "loss": LossName.COX}, "task 'counts' has no loss 'cox': take 'poisson'"),
        ({"kind": TaskKind.REGRESSION, "huber_delta": 2.0}, "huber_delta belongs to loss 'huber'"),
        ({"ties": "breslow"}, "ties belong to loss 'cox'"),
    ],
)
def test_what_does_not_belong_to_the_task_is_refused(task: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TaskSpec(**task)


@pytest.mark.parametrize(
    ("kind", "classes", "changed", "said"),
    [
        (TaskKind.CLASSES, 1, {}, "task 'classes' takes a model with one output per class"),
        (TaskKind.SURVIVAL, 2, {}, "a model with one output, the log hazard, found 2: set model.outputs to 1"),
        (TaskKind.OWN, 2, {}, "set model.kind to 'plugin'"),
        (TaskKind.REGRESSION, 2, {"training": {"class_weights": "inverse_frequency"}}, "class_weights weigh classes"),
        (TaskKind.REGRESSION, 2, {"rule": {"name": RuleName.WFEDAVG}}, "rule 'wfedavg' counts classes"),
        (TaskKind.REGRESSION, 2, {"ranking": RankingSpec()}, "ranking fits a model to classes"),
    ],
)
def test_a_study_of_another_task_asks_nothing_of_classes(
    kind: TaskKind, classes: int, changed: dict[str, Any], said: str
) -> None:
    plain = study(ROSTER)
    parts: dict[str, Any] = {
        "task": TaskSpec(kind=kind),
        "model": plain.model.model_copy(update={"classes": classes, "inputs": (2,)}),
        "training": plain.training.model_copy(update=changed.get("training", {})),
        "rule": plain.rule.model_copy(update=changed.get("rule", {})),
        "ranking": changed.get("ranking"),
    }
    if parts["rule"].name.self_weighted:
        dimension = plain.parameters.dimension + 1
        parts["parameters"] = plain.parameters.model_copy(update={"dimension": dimension})
    with pytest.raises(ValidationError, match=said):
        Study(**{**dict(plain), **parts})


def test_a_model_without_outputs_learns_nothing() -> None:
    with pytest.raises(ValueError, match="at least one output, found 0"):
        TaskSpec(kind=TaskKind.REGRESSION).require_outputs(0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"kind": "library"}, "kind 'library' belong together"), ({"buffers": Buffers.SHARED}, "buffers = 'local'")],
)
def test_a_model_that_a_study_cannot_have(changed: dict[str, Any], said: str) -> None:
    plain = study(ROSTER)
    rule = plain.rule.model_copy(update={"name": RuleName.FEDADAM, "server_learning_rate": 0.1})
    with pytest.raises(ValidationError, match=said):
        Study(**{**dict(plain), "rule": rule, "model": ModelSpec(**{**dict(plain.model), **changed})})
