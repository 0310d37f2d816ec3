"""One run of a case from its data to its line, going on from a checkpoint where there is one."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from harness.engine.all_sites import SitesState
from harness.engine.history import RoundRecord, RunEnd, RunHistory
from harness.engine.loop import Reached, run_protected, run_rounds
from harness.engine.protected_sum import SourceName
from harness.engine.run_state import Conditions, ErosionApplies, RunState
from harness.engine.training import ON_CPU, Computing, Progress, one_thread
from harness.engine.updates import PlainSum, RowSums
from harness.simulate.case import ALL_THERE, AttendanceTable, PublishedMistake, Setting
from harness.simulate.run_line import SMALL_MODEL, RunKey, RunLine, of_rounds
from harness.simulate.store import Checkpoint, code_digest
from harness.simulate.study_files import ChosenModel, ChosenRule, own_metrics, package_of, simulated_study
from harness.versions import versions
from host.extensions import Kind, LoadedPlugin, is_brought, load_again
from protocol.errors import ConfigurationError, ProtocolViolation, UnusableUpdate
from protocol.messages.control import Study
from protocol.messages.purpose import PROTECTION_PLANS
from protocol.policy.site_policy import SitePolicy

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
    """Everything that a process needs to do a run; ``partial`` is the folder of checkpoints, None to keep none.

    A killed run goes on from its last round, or from one that ended less than ``checkpoint_every_s`` before.
    """

    source: str
    case: str
    key: RunKey
    study: StudyTable
    data: DataRequest
    policy: SitePolicy
    protection: Protection
    study_digest: str
    settings: tuple[Setting, ...] = ()
    correlation_source: SourceName | None = None
    partial: Path | None = None
    checkpoint_every_s: float = 1.0
    alone_after: int | None = None
    published_mistake: PublishedMistake | None = None
    computing: Computing = ON_CPU
    packaged: ChosenRule | None = None
    attendance: AttendanceTable = ALL_THERE
    pooled: bool = False
    own_model: ChosenModel | None = None
    plugins: tuple[LoadedPlugin, ...] = ()
    baseline: BaselineTable | None = None
    judged_by: MetricName = MetricName.ACCURACY
    bootstrap: int = 0
    metrics: tuple[str, ...] = ()
    followed: frozenset[MetricName] = FOLLOWED


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
    erosion = require_plain_for_same_round(planned.study, planned.protection, planned.source)
    federation = _loaded(planned.data)
    check_federation(federation, planned.study.rule, planned.study.parameters.least_contributors)
    data_digest = digest_of(federation)
    federation = pooled(federation) if planned.pooled else federation
    study = simulated_study(
        planned.protection.of(planned.study), planned.source, federation, planned.key.seed, planned.own_model
    )
    checkpoint = _checkpoint(planned, data_digest)
    resume, before_s = checkpoint.load() if checkpoint else (None, 0.0)
    about, grid = _about(planned, erosion, data_digest), study.parameters.weight_grid
    begun = time.monotonic()
    latest = [resume] if resume else []
    on_round(len(resume.records) if resume else 0)

    def after_round(progress: Reached) -> None:
        latest[:] = [progress]
        if checkpoint:
            checkpoint.save(progress, before_s + time.monotonic() - begun)
        on_round(len(progress.records))

    try:
        history = _history(planned, study, federation, erosion, resume, after_round)
    except (UnusableUpdate, ProtocolViolation) as diverged:
        records = latest[0].records if latest else ()
        sites = tuple(value.site for value in records[-1].alphas) if records else ()
        end = {"end": "failed", "reason": diverged.detail, "final_model": None}
        return RunLine(**about, **of_rounds(records, sites, grid), **end, seconds=before_s + time.monotonic() - begun)
    small = history.final_model.size <= SMALL_MODEL
    return RunLine(
        **about,
        **of_rounds(history.rounds, history.contributors, grid),
        end=history.end.value,
        reason=history.reason,
        seconds=before_s + time.monotonic() - begun,
        final_model=tuple(float(value) for value in history.final_model) if small else None,
        final_scores=history.final_scores,
    )


@lru_cache(maxsize=1)
def _loaded(request: DataRequest) -> Federation:
    """Runs that differ in their variant alone follow each other, and have the same data. Raises: ConfigurationError"""
    return load_data(request)


def forget_data() -> None:
    """Before the runs of a case: files that its data are from may have changed since those of another one."""
    _loaded.cache_clear()


def _history(
    planned: PlannedRun,
    study: Study,
    federation: Federation,
    erosion: ErosionApplies,
    resume: Reached | None,
    after_round: Callable[[Reached], None],
) -> RunHistory:
    """The whole run; with ``alone_after``, a shorter shared run, from whose end the requester goes on alone."""
    if planned.alone_after is None:
        return _rounds(planned, study, federation, erosion, resume, after_round)
    latest = [resume]

    def remember(progress: Reached) -> None:
        latest[:] = [progress]
        after_round(progress)

    shared = study.model_copy(update={"rounds": planned.alone_after})
    history = _rounds(planned, shared, federation, erosion, resume, remember)
    (reached,) = latest
    if history.end is RunEnd.LOCAL_OPTIMUM or reached is None:
        return history
    alone = replace(reached.state, alone_because=reached.state.alone_because or FINE_TUNING)
    return _rounds(planned, study, federation, erosion, Progress(alone, reached.records), after_round)


def _rounds(
    planned: PlannedRun,
    study: Study,
    federation: Federation,
    erosion: ErosionApplies,
    resume: Reached | None,
    after_round: Callable[[Reached], None],
) -> RunHistory:
    conditions = _conditions(planned, study, federation, erosion)
    if planned.protection is Protection.PLAIN:
        return run_rounds(
            study,
            federation.sites,
            PlainSum() if planned.published_mistake is None else RowSums.of(study),
            conditions,
            protection="plain",
            resume=resume,
            after_round=after_round,
        )
    for own in (planned.packaged, planned.own_model):
        if own is not None:
            raise ConfigurationError(f"{planned.source}: {own.name!r} runs in plain simulation only")
    return run_protected(
        study,
        federation.sites,
        correlation_source=planned.correlation_source,
        conditions=conditions,
        resume=resume,
        after_round=after_round,
    )


def _conditions(planned: PlannedRun, study: Study, federation: Federation, erosion: ErosionApplies) -> Conditions:
    return Conditions(
        erosion,
        planned.policy,
        planned.attendance.attendance(federation.names_of_sites, study.rounds, planned.key.seed),
        planned.computing,
        None if planned.packaged is None else planned.packaged.rule_of(study),
        None if planned.own_model is None else planned.own_model.build(planned.study.model, planned.key.seed),
        planned.baseline,
        followed=planned.followed | {planned.judged_by},
        bootstrap=planned.bootstrap,
        own_metrics=own_metrics(planned.metrics),
        finish=planned.study.finish,
        works_out_isolation=planned.policy.least_isolation > 0,
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


def _checkpoint(planned: PlannedRun, data_digest: str) -> Checkpoint[Any, RoundRecord] | None:
    if planned.partial is None:
        return None
    what = (planned.study_digest, data_digest, code_digest(), planned.protection, planned.correlation_source)
    identity = " ".join(map(str, what))
    if planned.computing != ON_CPU:
        identity += f" {planned.computing}"
    kinds = (RunState if planned.baseline is None else SitesState, RoundRecord)
    return Checkpoint(planned.partial, str(planned.key), identity, kinds, planned.checkpoint_every_s)


def _about(planned: PlannedRun, erosion: ErosionApplies, data_digest: str) -> dict[str, Any]:
    """The fields of a line that no round decides."""
    packages = {one.name: one.version for one in versions()}
    rule = planned.study.rule.name.value
    if planned.packaged is not None:
        package, version = planned.packaged.package
        packages[package] = version
        rule = planned.packaged.name
    if planned.baseline is not None:
        rule = planned.baseline.name
    brought = [(Kind.MODEL, planned.own_model.name)] if planned.own_model else []
    brought += [(Kind.DATASET, planned.data.data)] if is_brought(planned.data.data) else []
    brought += [(Kind.METRIC, name) for name in planned.metrics]
    packages |= dict(package_of(kind, name) for kind, name in brought)
    return {
        "case": planned.case,
        "variant": planned.key.variant,
        "requester": planned.key.requester,
        "seed": planned.key.seed,
        "rule": rule,
        "protection": planned.protection.value,
        "erosion_applies": erosion,
        "study_digest": planned.study_digest,
        "data_digest": data_digest,
        "settings": {setting.key: setting.value for setting in planned.settings},
        "versions": packages,
        "computed_on": str(planned.computing),
        "code_digest": code_digest(),
        "judged_by": planned.judged_by,
    }
