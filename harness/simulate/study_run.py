"""``moiety simulate``: a study file run over several seeds in one process, plain, secure or under CKKS."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Final

from client_agent.learning.flat_vector import load_personal, load_vector
from client_agent.learning.plugin import Plugin, load_plugin, study_model, study_plugin
from client_agent.learning.scores import METRICS, FinalScores, Score, value_of
from client_agent.learning.study_file import StudyTable, checked_study_table
from client_agent.model.export import export
from client_agent.model.site_model import HeldModel
from client_agent.site.events import RoundEnd, RoundRecord
from client_agent.site.journal import SiteState
from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.datasets.site_data import Federation
from harness.datasets.site_folders import load_by_plugin, load_site_folders
from harness.demo.results import Accuracy
from harness.engine.history import RoundKind, RunEnd, RunHistory, alpha_series, distance_series
from harness.engine.protected_sum import SourceName
from harness.engine.run_state import Conditions
from harness.engine.training import one_thread, own_sources
from harness.simulate.options import StudyOptions
from harness.simulate.run_line import finite
from harness.simulate.run_one import Protection, require_plain_for_same_round, run_under
from harness.simulate.study_files import parse_seeds, read_study_file, refuse_package, simulated_study
from harness.versions import versions
from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.messages.control import EndCause, RuleName, Signed, Study, StudyEnd, StudyEndState

_ENDS: Final = {
    RunEnd.COMPLETED: (StudyEndState.COMPLETED, EndCause.ALL_ROUNDS_DONE),
    RunEnd.LOCAL_OPTIMUM: (StudyEndState.COMPLETED, EndCause.LOCAL_OPTIMUM),
    RunEnd.LOCAL_ONLY: (StudyEndState.LOCAL_ONLY, EndCause.POLICY),
}
_STEPS: Final = {RoundKind.RELEASED: RoundEnd.RELEASED, RoundKind.ALONE: RoundEnd.ALONE}
_MOST_CHARACTERS: Final = 500


def save_model(study: Study, history: RunHistory, data: Path, plugin: Path | None, out: Path, *, examples: int) -> None:
    """Write the folder, as the requester would; its card says that the model is simulated.

    ``data`` is the requester's folder, which has the transformation of rows where the study has a schema; ``examples``
    are in its test part.

    Raises: ConfigurationError when ``out`` is there already
    """
    network = study_model(study, study_plugin(study, plugin), own_sources())
    load_vector(network, history.final_model)
    load_personal(network, history.personal)
    records = _records(history)
    state, cause = _ENDS[history.end]
    end = StudyEnd(study_digest=study.digest(), state=state, cause=cause, reason=history.reason[:_MOST_CHARACTERS])
    site = SiteState(study_digest=study.digest(), training_seed=0, ended_by=Signed[StudyEnd](message=end))
    version = len(records)
    last = FinalScores(examples=examples, samples=0, scores=history.rounds[-1].test_scores)
    scores = history.final_scores or last
    held = HeldModel(study, site, version, history.final_model, network.eval(), records, scores, simulated=True)
    export(held, data, out, is_requester=True, plugin=plugin)


def _records(history: RunHistory) -> tuple[RoundRecord, ...]:
    stepped = [record for record in history.rounds if record.kind in _STEPS]
    return tuple(
        RoundRecord(
            time_s=0,
            study=history.study,
            site=history.requester,
            round=record.round,
            state=_STEPS[record.kind],
            model_version=version,
            took_part=record.took_part,
            alphas=record.alphas,
        )
        for version, record in enumerate(stepped, start=1)
    )


BUILT_IN: Final[dict[str, Callable[[int], Federation]]] = {
    "breast_cancer": breast_cancer_five_hospitals,
    "digits": digits_sites,
}


class SeedResult(Frozen):
    """One run; lists have one entry per round."""

    seed: int
    end: str
    reason: str
    released_rounds: int
    test_accuracy: float | None
    accuracy_by_round: tuple[float | None, ...]
    scores_by_round: tuple[tuple[Score, ...], ...] = ()
    final_scores: FinalScores | None = None
    alpha: dict[str, tuple[float | None, ...]]
    distance: dict[str, tuple[float | None, ...]]
    clipped_share: float


class SimulationResult(Frozen):
    """``simulation.json``. ``accuracy`` is that of the ``metric`` after the last round of every run."""

    study: str
    rule: RuleName
    protection: Protection
    erosion_applies: str
    data: str
    accuracy: Accuracy
    runs: tuple[SeedResult, ...]
    versions: dict[str, str]
    metric: str = "accuracy"


def run_simulation(
    asked: StudyOptions,
    show: Callable[[RunHistory], None] = lambda history: None,
    correlation_source: SourceName | None = None,
) -> SimulationResult:
    """Every seed's run, the study's own or 0 where none is asked for; ``show`` is called after each.

    With ``site_plugin``, the Python file that sites would have, each site's folder is what its ``data(path)`` reads.
    Raises: ConfigurationError for a wrong file, data that does not fit the model, or ``same_round`` with protection
    """
    if asked.save_model is not None and asked.save_model.exists():
        raise ConfigurationError(f"--save-model: {asked.save_model} exists; name a new folder")
    file, protection = read_study_file(asked.study_file), Protection(asked.protection)
    refuse_package(file.tables, file.source)
    source, table = file.source, checked_study_table(file.tables, file.source)
    data, seeds = asked.data or "breast_cancer", parse_seeds(asked.seeds) if asked.seeds else (table.seed or 0,)
    plugin = None if asked.site_plugin is None else load_plugin(asked.site_plugin)
    erosion = require_plain_for_same_round(table, protection, source)
    conditions = Conditions(erosion, plugin=plugin, finish=table.finish)
    histories = []
    with one_thread():
        for seed in seeds:
            federation = _federation(asked, data, table, seed, plugin)
            study = simulated_study(protection.of(table), source, federation, seed, site_plugin=asked.site_plugin)
            history = run_under(protection, study, federation, conditions, correlation_source)
            if asked.save_model is not None:
                folder = asked.save_model if len(seeds) == 1 else asked.save_model / f"seed-{seed}"
                own, examples = Path(data) / history.requester, len(federation.requester.test)
                save_model(study, history, own, asked.site_plugin, folder, examples=examples)
            histories.append(history)
            show(history)
    metric = _metric_of(histories[-1], table)
    return SimulationResult(
        study=table.name,
        rule=table.rule.name,
        protection=protection,
        erosion_applies=erosion,
        data=data,
        accuracy=Accuracy.of(tuple(_last(history, metric) for history in histories)),
        runs=tuple(_seed_result(history) for history in histories),
        versions=versions(),
        metric=metric,
    )


def _metric_of(history: RunHistory, table: StudyTable) -> str:
    """The task's first metric, the plug-in's first where the task has none, or the loss."""
    own = [score.name for score in history.rounds[-1].test_scores]
    return next((name.value for name in METRICS[table.task.kind]), own[0] if own else "loss")


def _last(history: RunHistory, metric: str) -> float:
    last = history.rounds[-1]
    value = last.test_loss if metric == "loss" else value_of(last.test_scores, metric)
    return math.nan if value is None else value


def _federation(asked: StudyOptions, data: str, table: StudyTable, seed: int, plugin: Plugin | None) -> Federation:
    if data in BUILT_IN:
        if table.data_schema is not None:
            raise ConfigurationError(
                f"{asked.study_file}: the study has a [schema], which {data} does not follow: give --data "
                "FOLDER, with one folder per site from 'moiety data prepare'"
            )
        return BUILT_IN[data](seed)
    folder = Path(data)
    if not folder.is_dir():
        raise ConfigurationError(
            f"--data: found {data!r}; give {' or '.join(BUILT_IN)}, or a folder that holds one folder per site"
        )
    if plugin is not None:
        return load_by_plugin(folder, asked.requester, table, plugin)
    about = table.model.inputs, table.model.width, table.task, table.data_schema
    return load_site_folders(folder, asked.requester, *about)


def _seed_result(history: RunHistory) -> SeedResult:
    return SeedResult(
        seed=history.seed,
        end=history.end.value,
        reason=history.reason,
        released_rounds=history.shared_rounds,
        test_accuracy=finite(history.test_accuracy),
        accuracy_by_round=tuple(finite(record.test_accuracy) for record in history.rounds),
        scores_by_round=tuple(record.test_scores for record in history.rounds),
        final_scores=history.final_scores,
        alpha=alpha_series(history),
        distance=distance_series(history),
        clipped_share=mean(record.clipped_share for record in history.rounds),
    )
