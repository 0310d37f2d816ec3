"""``--track``: finished runs in TensorBoard and MLflow, each an extra.

Every run is written once, with its numbers per round, under a name that says which it is. A run that a tracker has
already is not written again, so a simulation may be repeated or go on.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from harness.simulate.run_line import RunLine
from protocol.errors import ConfigurationError

_BY_SITE: Final = ("alpha", "distance")


class TrackerName(StrEnum):
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


class Tracker(Protocol):
    def log(self, line: RunLine) -> None: ...


@dataclass(frozen=True)
class Point:
    """One number after a round, counted from 1."""

    name: str
    round: int
    value: float


def tracker_of(name: str, folder: Path) -> Tracker:
    """A tracker that writes below ``folder``; MLflow where MLFLOW_TRACKING_URI says, if it is set.

    Raises: ConfigurationError for an unknown name, or a package that is not installed
    """
    if name not in list(TrackerName):
        raise ConfigurationError(f"--track: found {name!r}, allowed are {', '.join(TrackerName)}")
    if name == TrackerName.TENSORBOARD:
        return TensorBoard(folder / "tensorboard", _module("torch.utils.tensorboard", "tensorboard", "tensorboard"))
    return MlFlow(folder / "mlflow.db", _module("mlflow", "mlflow", "mlflow-skinny"))


def log_all(trackers: Sequence[Tracker], lines: Sequence[RunLine]) -> None:
    """Every run with every tracker. Raises: ConfigurationError when one fails, such as for a server that is away"""
    for tracker in trackers:
        try:
            for line in lines:
                tracker.log(line)
        except Exception as error:  # whatever another program raises
            raise ConfigurationError(
                f"--track: {type(tracker).__name__}: {type(error).__name__}: {error}; the runs are done and kept: give "
                "the same command again"
            ) from error


def points_of(line: RunLine) -> Iterator[Point]:
    """A run's numbers: its own, and every site's weight and distance."""
    series = {name.replace(":", "."): values for name, values in line.by_round().items()}
    series |= {f"{name}/{site}": values for name in _BY_SITE for site, values in getattr(line, name).items()}
    for name, values in series.items():
        yield from (Point(name, number, value) for number, value in enumerate(values, 1) if value is not None)


@dataclass(frozen=True)
class TensorBoard:
    """A folder per run."""

    folder: Path
    module: Any

    def log(self, line: RunLine) -> None:
        run = self.folder / _name(line)
        if run.exists():
            return
        with self.module.SummaryWriter(str(run)) as writer:
            for point in points_of(line):
                writer.add_scalar(point.name, point.value, point.round)
            writer.add_text("run", line.model_dump_json(include=set(_ABOUT)))


@dataclass(frozen=True)
class MlFlow:
    """An experiment a case, a run a run; what it was are its parameters."""

    database: Path
    module: Any

    def log(self, line: RunLine) -> None:
        mlflow = self.module
        own = not os.environ.get("MLFLOW_TRACKING_URI")
        client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{os.path.realpath(self.database)}" if own else None)
        known = client.get_experiment_by_name(line.case)
        files = str(Path(os.path.realpath(self.database.parent)) / "mlflow_files") if own else None
        experiment = known.experiment_id if known else client.create_experiment(line.case, artifact_location=files)
        same = f"tags.moiety_run = '{_name(line)}' and tags.code_digest = '{line.code_digest}'"
        if client.search_runs([experiment], same):
            return
        tags = {"moiety_run": _name(line), "code_digest": line.code_digest}
        run = client.create_run(experiment, tags=tags, run_name=_name(line)).info.run_id
        for key, value in line.model_dump(include=set(_ABOUT)).items():
            client.log_param(run, key, value)
        for point in points_of(line):
            client.log_metric(run, point.name, point.value, step=point.round)
        client.set_terminated(run, "FAILED" if line.end == "failed" else "FINISHED")


_ABOUT: Final = (
    "case", "variant", "requester", "seed", "rule", "protection", "settings", "end", "reason", "study_digest",
    "data_digest", "code_digest",
)  # fmt: skip


def _name(line: RunLine) -> str:
    return f"{line.protection}-{line.key}-{line.study_digest[:12]}"


def _module(module: str, name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigurationError(
            f"--track {name} needs a package that is not installed; install it with: pip install {package}"
        ) from None
