"""Studies for tests that need one of a certain model and nothing else."""

from __future__ import annotations

from math import prod
from typing import Any

from protocol.messages.control import ModelSpec, RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters


def study_of(model: ModelSpec, **changes: Any) -> Study:
    """A study of this model under FedAvg, with the usual values but for ``changes``."""
    dimension = sum(prod(layer.shape) for layer in model.layers)
    fields: dict[str, Any] = {
        "name": "unit",
        "roster_digest": "ab" * 32,
        "parameters": StudyParameters(dimension=dimension, clip_norm=4.0, least_contributors=3),
        "rule": RuleSpec(name=RuleName.FEDAVG),
        "model": model,
        "training": TrainingSpec(),
        "rounds": 5,
    }
    return Study(**(fields | changes))
