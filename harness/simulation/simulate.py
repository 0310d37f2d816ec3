"""``moiety simulate``: a study file run over several seeds in one process, plain, secure or under CKKS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

import torch
from pydantic import BaseModel, ConfigDict

from client_agent.learning.study_file import StudyTable, checked_study_table
from harness.datasets.breast_cancer import breast_cancer_five_hospitals
from harness.datasets.digits import digits_sites
from harness.datasets.site_data import Federation
from harness.datasets.site_folders import load_site_folders
from harness.demo.results import Accuracy
from harness.engine.correlations import SourceName
from harness.engine.history import RunHistory, Series, alpha_series, distance_series
from harness.engine.loop import run_plain
from harness.engine.protected import run_protected
from harness.engine.run_state import ErosionApplies
from harness.federation.measurements import versions
from harness.simulation.files.study_files import read_study_file
from harness.simulation.packaged import refuse_package
from harness.simulation.run_one import Protection, require_plain_for_same_round, simulated_study
from protocol.errors import ConfigurationError
from protocol.wire.messages import RuleName

BUILT_IN: Final[dict[str, Callable[[int], Federation]]] = {
    "breast_cancer": breast_cancer_five_hospitals,
    "digits": digits_sites,
}


@dataclass(frozen=True)
class SimulationOptions:
    """``data`` is a built-in data set, or a folder with one folder per site (train.npz, test.npz), requester named."""

    study_file: Path
    data: str
    requester: str | None
    seeds: tuple[int, ...]
    protection: Protection
    correlation_source: SourceName | None = None


class SeedResult(BaseModel):
    """One run; lists have one entry per round."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seed: int
    end: str
    reason: str
    released_rounds: int
    test_accuracy: float
    accuracy_by_round: tuple[float | None, ...]
    alpha: dict[str, tuple[float | None, ...]]
    distance: dict[str, tuple[float | None, ...]]
    clipped_share: float


class SimulationResult(BaseModel):
    """``simulation.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str
    rule: RuleName
    protection: Protection
    erosion_applies: str
    data: str
    accuracy: Accuracy
    runs: tuple[SeedResult, ...]
    versions: dict[str, str]


def run_simulation(
    options: SimulationOptions, show: Callable[[RunHistory], None] = lambda history: None
) -> SimulationResult:
    """Every seed's run; ``show`` is called after each.

    Raises: ConfigurationError for a wrong file, data that does not fit the model, or ``same_round`` with protection
    """
    file = read_study_file(options.study_file)
    refuse_package(file.tables, file.source)
    source, table = file.source, checked_study_table(file.tables, file.source)
    erosion = require_plain_for_same_round(table, options.protection, source)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        histories = [_run(options, table, source, seed, erosion, show) for seed in options.seeds]
    finally:
        torch.set_num_threads(threads)
    return SimulationResult(
        study=table.name,
        rule=table.rule.name,
        protection=options.protection,
        erosion_applies=erosion,
        data=options.data,
        accuracy=Accuracy.of(tuple(history.test_accuracy for history in histories)),
        runs=tuple(_seed_result(history) for history in histories),
        versions={one.name: one.version for one in versions()},
    )


def _run(
    options: SimulationOptions,
    table: StudyTable,
    source: str,
    seed: int,
    erosion: ErosionApplies,
    show: Callable[[RunHistory], None],
) -> RunHistory:
    federation = _federation(options, table, seed)
    study = simulated_study(options.protection.of(table), source, federation, seed)
    if options.protection is Protection.PLAIN:
        history = run_plain(study, federation.sites, erosion_applies=erosion)
    else:
        history = run_protected(study, federation.sites, correlation_source=options.correlation_source)
    show(history)
    return history


def _federation(options: SimulationOptions, table: StudyTable, seed: int) -> Federation:
    if options.data in BUILT_IN:
        return BUILT_IN[options.data](seed)
    folder = Path(options.data)
    if not folder.is_dir():
        raise ConfigurationError(
            f"--data: found {options.data!r}; give {' or '.join(BUILT_IN)}, or a folder that holds one folder per site"
        )
    return load_site_folders(folder, options.requester, table.model.inputs, table.model.width, table.task)


def _seed_result(history: RunHistory) -> SeedResult:
    return SeedResult(
        seed=history.seed,
        end=history.end.value,
        reason=history.reason,
        released_rounds=history.shared_rounds,
        test_accuracy=history.test_accuracy,
        accuracy_by_round=tuple(
            None if math.isnan(record.test_accuracy) else record.test_accuracy for record in history.rounds
        ),
        alpha=_by_site(alpha_series(history)),
        distance=_by_site(distance_series(history)),
        clipped_share=mean(record.clipped_share for record in history.rounds),
    )


def _by_site(series: Sequence[Series]) -> dict[str, tuple[float | None, ...]]:
    return {one.site: one.values for one in series}
