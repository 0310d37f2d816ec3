"""The demo's results, and ``summary.json`` made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from pydantic_core import to_json

from client_agent.learning.scores import MetricName, value_of
from harness.datasets.site_data import SplitRow
from harness.engine.history import RoundKind, RunHistory, alpha_series, distance_series, mean_and_error
from harness.federation.federated_run import FederatedRun, Traffic
from host.frozen import Frozen
from host.output_files import rewrite
from protocol.messages.control import RuleName, Study


@dataclass(frozen=True)
class RuleResult:
    """One rule on one data set: the run over processes, its plain twin, and more seeds in one process."""

    study: Study
    federated: FederatedRun
    plain: RunHistory
    further: tuple[RunHistory, ...]

    @property
    def rule(self) -> RuleName:
        return self.study.rule.name

    @property
    def accuracies(self) -> tuple[float, ...]:
        """The requester's test accuracy, the processes' run first, then one a further seed."""
        return tuple(history.test_accuracy for history in (self.federated.history, *self.further))

    def scores(self, name: MetricName) -> tuple[float, ...]:
        """The requester's metric after the last round, one per seed; nothing where a seed has none."""
        runs = (self.federated.history, *self.further)
        found = [value_of(history.rounds[-1].test_scores, name) for history in runs]
        known = tuple(value for value in found if value is not None)
        return known if len(known) == len(found) else ()

    def mean_score(self, name: MetricName) -> float | None:
        """The mean of :meth:`scores`; None where a seed has none."""
        return mean(found) if (found := self.scores(name)) else None

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(history.seed for history in (self.federated.history, *self.further))

    @property
    def difference_to_plain(self) -> float:
        """Largest coordinate difference of the final models."""
        return float(np.max(np.abs(self.federated.history.final_model - self.plain.final_model)))

    @property
    def weights_equal_plain(self) -> bool:
        ours, theirs = self.federated.history.rounds, self.plain.rounds
        return [record.handed_out for record in ours] == [record.handed_out for record in theirs]

    @property
    def distance_error(self) -> float | None:
        """Largest relative difference between a distance the secure run opened and its plain twin's; None without."""
        errors = [
            abs(mine / other - 1)
            for site, theirs in distance_series(self.plain).items()
            for mine, other in zip(distance_series(self.federated.history)[site], theirs, strict=False)
            if mine is not None and other is not None and other > 0
        ]
        return max(errors, default=None)


@dataclass(frozen=True)
class StudyResult:
    """One data set: three rules; traffic and processes are those of the first one."""

    key: str
    title: str
    why_this_split: str
    class_names: tuple[str, ...]
    split: tuple[SplitRow, ...]
    rules: tuple[RuleResult, ...]
    traffic: Traffic
    processes: Mapping[str, int]
    seeded: bool

    @property
    def first(self) -> RuleResult:
        """The rule that the report looks at more closely."""
        return self.rules[0]

    def of(self, rule: RuleName) -> RuleResult:
        return next(result for result in self.rules if result.rule is rule)


@dataclass(frozen=True)
class DemoResult:
    studies: tuple[StudyResult, ...]
    versions: Mapping[str, str]
    seconds: float


class Accuracy(Frozen):
    """Mean and standard error of the requester's test accuracy over seeds."""

    mean: float
    standard_error: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: tuple[float, ...]) -> Accuracy:
        middle, error = mean_and_error(values)
        return cls(mean=middle, standard_error=error, values=values)


def summarise(result: DemoResult) -> dict[str, Any]:
    """``summary.json``: the figures a program reads."""
    studies = {study.key: _study_summary(study, result.versions) for study in result.studies}
    return {"studies": studies, "seconds": result.seconds}


def write_summary(result: DemoResult, path: Path) -> None:
    rewrite(path, summary_json(result, indent=2) + "\n")


def summary_json(result: DemoResult, indent: int | None = None) -> str:
    return to_json(summarise(result), indent=indent, inf_nan_mode="null").decode()


def shared_round_seconds(study: StudyResult) -> tuple[float, ...]:
    """Seconds of every round that had contributors, at the requester, over all rules."""
    return tuple(
        seconds
        for result in study.rules
        for record, seconds in zip(result.federated.history.rounds, result.federated.round_seconds, strict=True)
        if record.kind is not RoundKind.ALONE
    )


def _study_summary(study: StudyResult, versions: Mapping[str, str]) -> dict[str, Any]:
    first, traffic = study.first, study.traffic
    shared = shared_round_seconds(study)
    return {
        "title": study.title,
        "rule_accuracy": {result.rule.value: Accuracy.of(result.accuracies) for result in study.rules},
        "alpha": alpha_series(first.federated.history),
        "distance": distance_series(first.federated.history),
        "max_abs_difference_to_plain": max(result.difference_to_plain for result in study.rules),
        "max_relative_distance_error": first.distance_error,
        "parameters": first.study.parameters.dimension,
        "exact_distances": first.study.parameters.exact_distances,
        "bytes_up_per_parameter": traffic.up_per_parameter,
        "bytes_down_per_parameter": traffic.down_per_parameter,
        "body_bytes_up_per_parameter": traffic.up_body_per_parameter,
        "body_bytes_down_per_parameter": traffic.down_body_per_parameter,
        "bytes_between_servers_per_contributor_round": traffic.between_servers_per_contributor_round,
        "seconds_per_round": mean(shared),
        "seconds_lock_to_release": traffic.lock_to_release_s,
        "correlation_source": first.study.correlation_source,
        "process_ids": study.processes,
        "tls_version": ", ".join(traffic.tls_versions),
        "seeds": first.seeds,
        "versions": versions,
        "rules": {result.rule.value: _rule_summary(result) for result in study.rules},
    }


def _rule_summary(result: RuleResult) -> dict[str, Any]:
    history = result.federated.history
    return {
        "end": history.end.value,
        "reason": history.reason,
        "rounds": len(history.rounds),
        "released_rounds": history.shared_rounds,
        "seconds": result.federated.seconds,
        "max_abs_difference_to_plain": result.difference_to_plain,
        "weights_equal_plain": result.weights_equal_plain,
        "final_models_identical_at_all_sites": result.federated.final_models_identical,
        "clipped_share": mean(record.clipped_share for record in history.rounds),
        "accuracy_by_round": tuple(record.test_accuracy for record in history.rounds),
        "mean_log_loss": result.mean_score(MetricName.LOG_LOSS),
        "mean_auroc": result.mean_score(MetricName.AUROC),
    }
