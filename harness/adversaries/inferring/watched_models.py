"""What everybody in a study has after every round: the model that sites trained on, and the opened average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from client_agent.learning.flat_vector import Vector
from harness.adversaries.inferring.membership import Opened
from harness.adversaries.recording import Recorder
from harness.datasets.site_data import SiteData
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import Conditions, Progress
from harness.engine.updates import PlainSum
from protocol.first_model import first_model
from protocol.wire.messages import Study


@dataclass(frozen=True, eq=False)
class Watched:
    """A finished study with its released rounds. ``models`` are those that rounds began with and the last one, one more
    than there were rounds, whatever their kind.
    """

    study: Study
    history: RunHistory
    rounds: tuple[Opened, ...] = field(repr=False)
    models: tuple[Vector, ...] = field(repr=False)


def watched(study: Study, sites: Sequence[SiteData], conditions: Conditions) -> Watched:
    """Run it plainly, which opens what a protected run opens but for its rounding. Raises: ConfigurationError"""
    recorder, models = Recorder(PlainSum()), [first_model(study)]
    dimension = study.parameters.dimension

    def keep(progress: Progress) -> None:
        models.append(progress.state.vector[:dimension].copy())

    history = run_rounds(study, sites, recorder, conditions, protection="plain", after_round=keep)
    opened = tuple(Opened(models[one.round - 1], one.total / sum(one.weights.values())) for one in recorder.sums)
    return Watched(study, history, opened, tuple(models))
