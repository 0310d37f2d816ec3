"""Studies and records of rounds for tests that need one and nothing else."""

from __future__ import annotations

from math import prod
from typing import Any

from client_agent.site.events import RoundEnd, RoundRecord
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


def round_record(number: int, state: RoundEnd = RoundEnd.RELEASED, **changes: Any) -> RoundRecord:
    """A site's record of a round, with the usual values but for ``changes``."""
    fields = {"time_s": 0, "study": "unit", "site": "c1", "round": number, "state": state, "model_version": number}
    return RoundRecord(**(fields | changes))
