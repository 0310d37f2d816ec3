"""One run of a case from its data to its line, going on from a checkpoint where there is one."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from client_agent.learning.scores import FOLLOWED, MetricName
from client_agent.learning.study_file import StudyTable
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation, check_federation
from harness.datasets.transforms import pooled
from harness.engine.algorithms import BaselineTable
from harness.engine.baseline_rounds import SitesState
from harness.engine.history import RoundRecord, RunEnd, RunHistory
from harness.engine.loop import run_protected, run_rounds
from harness.engine.protected_sum import SourceName
from harness.engine.run_state import Conditions, ErosionApplies, Reached, RunState
from harness.engine.training import ON_CPU, Computing, one_thread
from harness.simulate.case import UNTUNED, Case, Settings, Variant
from harness.simulate.run_line import SMALL_MODEL, RunKey, RunLine, of_rounds
from harness.simulate.store import Checkpoint, code_digest
from harness.simulate.study_files import ChosenRule, own_metrics, package_of, simulated_study
from harness.versions import versions
from host.extensions import Kind, LoadedPlugin, is_brought, load_again
from protocol.errors import ConfigurationError, ProtocolViolation, UnusableUpdate
from protocol.messages.control import Study
from protocol.messages.purpose import PROTECTION_PLANS

FINE_TUNING: Final = "the requester goes on alone from here, as the variant says"


class Protection(StrEnum):
    """The protection of rounds: none, shares at two servers, or ciphertexts at one."""

    PLAIN = "plain"
    SECURE = "secure"
    CKKS = "ckks"

    def of(self, table: StudyTable) -> StudyTable:
        """The study as it is run under this protection; a plain run is the twin of what the file says."""
        if self is Protection.PLAIN:
            return table
        protection = next(one for one, plan in PROTECTION_PLANS.items() if plan.name == self)
        return table.model_copy(update={"protection": protection})


@dataclass(frozen=True)
class PlannedRun:
    """Everything that a process needs to do a run; ``study`` is the variant's with its ``settings``.

    ``partial`` is the folder of checkpoints, None to keep none: a killed run goes on from its last round, or from one
    that ended less than ``checkpoint_every_s`` before. ``plugins`` are the files of others that it needs.
    """

    case: Case
    key: RunKey
    study: StudyTable
    data: DataRequest
    protection: Protection
    settings: Settings = field(default_factory=lambda: UNTUNED)
    correlation_source: SourceName | None = None
    partial: Path | None = None
    checkpoint_every_s: float = 1.0
    computing: Computing = ON_CPU
    plugins: tuple[LoadedPlugin, ...] = ()
    bootstrap: int = 0
    followed: frozenset[MetricName] = FOLLOWED

    @property
    def variant(self) -> Variant:
        return self.case.variant(self.key.variant)

    @property
    def packaged(self) -> ChosenRule | None:
        return self.variant.chosen_rule(self.settings)

    @property
    def baseline(self) -> BaselineTable | None:
        return self.variant.baseline_with(self.settings, self.case.source)


OnRound = Callable[[int], None]


def execute(planned: PlannedRun, on_round: OnRound = lambda done: None) -> RunLine:
    """Do the run with one thread; ``on_round`` is called with the number of rounds done, the checkpoint's first.

    A run whose model has diverged (an update or a server optimiser's step that is no number) ends as ``failed``, with
    the rounds before that.

    Raises: ConfigurationError for data that do not fit the study, before round 1
    """
    load_again(planned.plugins)
    with one_thread():
        return _execute(planned, on_round)


def require_plain_for_same_round(table: StudyTable, protection: Protection, source: str) -> ErosionApplies:
    """When erosion applies. Raises: ConfigurationError for the same round in a protected run"""
    if table.rule.erosion_applies == "same_round" and protection is not Protection.PLAIN:
        raise ConfigurationError(
            f"{source}: key 'rule.erosion_applies': found 'same_round', which exists in plain simulation only, since "
            "sites scale before they share; use 'next_round', or --protection plain; --only leaves a variant out"
        )
    return table.rule.erosion_applies


def _execute(planned: PlannedRun, on_round: OnRound) -> RunLine:
    variant, source = planned.variant.table, planned.case.source
    erosion = require_plain_for_same_round(planned.study, planned.protection, source)
    federation = _loaded(planned.data)
    check_federation(federation)
    data_digest = digest_of(federation)
    federation = pooled(federation) if variant.pooled else federation
    own_model = planned.variant.chosen_model
    study = simulated_study(planned.protection.of(planned.study), source, federation, planned.key.seed, own_model)
    checkpoint = _checkpoint(planned, data_digest)
    latest, before_s = checkpoint.load() if checkpoint else (None, 0.0)
    about = _about(planned, erosion, data_digest)
    begun = time.monotonic() - before_s
    on_round(len(latest.records) if latest else 0)

    def after_round(progress: Reached[Any]) -> None:
        nonlocal latest
        latest = progress
        if checkpoint:
            checkpoint.save(progress, time.monotonic() - begun)
        on_round(len(progress.records))

    def rounds(study: Study, resume: Reached[Any] | None) -> RunHistory:
        conditions = _conditions(planned, study, federation, erosion)
        source = planned.correlation_source
        return run_under(planned.protection, study, federation, conditions, source, resume, after_round)

    records: tuple[RoundRecord, ...]
    try:
        if variant.alone_after is None:
            history = rounds(study, latest)
        else:
            history = rounds(study.model_copy(update={"rounds": variant.alone_after}), latest)
            if history.end is not RunEnd.LOCAL_OPTIMUM and latest is not None:
                alone = replace(latest.state, alone_because=latest.state.alone_because or FINE_TUNING)
                history = rounds(study, Reached(alone, latest.records))
    except (UnusableUpdate, ProtocolViolation) as diverged:
        records = latest.records if latest else ()
        sites = tuple(value.site for value in records[-1].alphas) if records else ()
        ending: dict[str, Any] = {"end": "failed", "reason": diverged.detail, "final_model": None}
    else:
        records, sites, model = history.rounds, history.contributors, history.final_model
        kept = tuple(map(float, model)) if model.size <= SMALL_MODEL else None
        ending = {"end": history.end.value, "reason": history.reason, "final_model": kept}
        ending["final_scores"] = history.final_scores
    series = of_rounds(records, sites, study.parameters.weight_grid)
    return RunLine(**about, **series, **ending, seconds=time.monotonic() - begun)


@lru_cache(maxsize=1)
def _loaded(request: DataRequest) -> Federation:
    """Runs that differ in their variant alone follow each other, and have the same data. Raises: ConfigurationError"""
    return load_data(request)


def forget_data() -> None:
    """Before the runs of a case: files that its data are from may have changed since those of another one."""
    _loaded.cache_clear()


def run_under(
    protection: Protection,
    study: Study,
    federation: Federation,
    conditions: Conditions,
    correlation_source: SourceName | None = None,
    resume: Reached[Any] | None = None,
    after_round: Callable[[Reached[Any]], None] = lambda progress: None,
) -> RunHistory:
    """A whole run. Raises: as those of harness.engine"""
    if protection is Protection.PLAIN:
        return run_rounds(study, federation.sites, conditions=conditions, resume=resume, after_round=after_round)
    return run_protected(
        study,
        federation.sites,
        correlation_source=correlation_source,
        conditions=conditions,
        resume=resume,
        after_round=after_round,
    )


def _conditions(planned: PlannedRun, study: Study, federation: Federation, erosion: ErosionApplies) -> Conditions:
    table, policy, seed = planned.case.table, planned.variant.policy.policy(), planned.key.seed
    packaged, own_model = planned.packaged, planned.variant.chosen_model
    return Conditions(
        erosion,
        policy,
        table.attendance.attendance(federation.names_of_sites, study.rounds, seed),
        planned.computing,
        None if packaged is None else packaged.rule_of(study),
        None if own_model is None else own_model.build(planned.study.model, seed),
        planned.baseline,
        followed=planned.followed | {planned.case.judged_by},
        bootstrap=planned.bootstrap,
        own_metrics=own_metrics(table.metrics),
        finish=planned.study.finish,
        works_out_isolation=policy.least_isolation > 0,
    )


def digest_of(federation: Federation) -> str:
    """SHA-256 over every site's name and examples, in order: the same split of the same data."""
    found = hashlib.sha256()
    for site in federation.sites:
        found.update(site.name.encode())
        for part in (site.train, site.validation, site.test):
            found.update(f"{part.X.shape}".encode())
            found.update(part.X.tobytes())
            found.update(part.y.tobytes())
    return found.hexdigest()


def _checkpoint(planned: PlannedRun, data_digest: str) -> Checkpoint[Any] | None:
    if planned.partial is None:
        return None
    what = (planned.variant.digest, data_digest, code_digest(), planned.protection, planned.correlation_source)
    identity = " ".join(map(str, what))
    if planned.computing != ON_CPU:
        identity += f" {planned.computing}"
    kind: type[Any] = RunState if planned.variant.table.baseline is None else SitesState
    return Checkpoint(planned.partial, str(planned.key), identity, kind, planned.checkpoint_every_s)


def _about(planned: PlannedRun, erosion: ErosionApplies, data_digest: str) -> dict[str, Any]:
    packages = versions()
    variant, packaged, data = planned.variant, planned.packaged, planned.data.data
    rule = planned.study.rule.name.value if packaged is None else packaged.name
    brought = [] if packaged is None else [(Kind.RULE, packaged.name)]
    brought += [(Kind.MODEL, variant.chosen_model.name)] if variant.chosen_model else []
    brought += [(Kind.DATASET, data)] if is_brought(data) else []
    brought += [(Kind.METRIC, name) for name in planned.case.table.metrics]
    packages |= dict(package_of(kind, name) for kind, name in brought)
    return {
        "case": planned.case.name,
        "variant": planned.key.variant,
        "requester": planned.key.requester,
        "seed": planned.key.seed,
        "rule": rule if variant.table.baseline is None else variant.table.baseline.name,
        "protection": planned.protection.value,
        "erosion_applies": erosion,
        "study_digest": variant.digest,
        "data_digest": data_digest,
        "settings": planned.settings,
        "versions": packages,
        "computed_on": str(planned.computing),
        "code_digest": code_digest(),
        "judged_by": planned.case.judged_by,
    }
