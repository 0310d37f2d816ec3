"""A study run in this process and then attacked with what its parties have."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from client_agent.learning.study_file import StudyTable, checked_study_table
from harness.adversaries.attack_line import AttackLine, PartyErrors
from harness.adversaries.reconstruction import Prior, Reconstruction
from harness.adversaries.recording import OpenedSum, Recorder
from harness.datasets.registry import load_data
from harness.datasets.site_data import Federation
from harness.engine.history import RunHistory, isolation_series
from harness.engine.loop import run_rounds
from harness.engine.run_state import Conditions
from harness.engine.training import one_thread
from harness.engine.updates import Counted, PlainSum, RoundInputs, Summed, Summing
from harness.simulate.brought import refuse_package
from harness.simulate.case import Case, Variant
from harness.simulate.case_run import request_for
from harness.simulate.run_line import Values
from harness.simulate.study_files import simulated_study
from harness.versions import versions
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import Announcement

_DIGITS: Final = 4


@dataclass(frozen=True)
class Setting:
    """What is changed about a study before it is run: keys of its tables, and noise at every contributor.

    ``noise`` is the expected length of the Gaussian noise that a contributor adds to its update, as a part of the clip
    norm C. ``least_isolation`` replaces what the sites' policy demands.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    least_isolation: float | None = None

    def policy(self, stated: SitePolicy) -> SitePolicy:
        """The sites' policy in this run."""
        if self.least_isolation is None:
            return stated
        return stated.model_copy(update={"least_isolation": self.least_isolation})

    def of(self, variant: Variant, source: str) -> StudyTable:
        """The variant's study with the changes. Raises: ConfigurationError"""
        tables = dict(variant.tables)
        for key, value in self.changes.items():
            tables[key] = {**tables.get(key, {}), **value} if isinstance(value, Mapping) else value
        refuse_package(tables, f"{source}: variant {variant.name!r}")
        return checked_study_table(tables, f"{source}: variant {variant.name!r}, setting {self.name!r}")


AS_IT_IS: Final = Setting("as_it_is")


@dataclass(frozen=True)
class AttackedRun:
    """One study to run and attack; ``rounds`` replaces the study's number where they take long."""

    case: Case
    variant: str
    setting: Setting
    requester: str
    seed: int
    data: Path | None = None
    rounds: int | None = None

    def line(self) -> AttackLine:
        """Run and attack. Raises: ConfigurationError for data or settings that do not fit"""
        begun = time.monotonic()
        with one_thread():
            history, sums, dimension, noise = self._run()
        return AttackLine(
            study=self.case.name,
            variant=self.variant,
            setting=self.setting.name,
            requester=history.requester,
            seed=self.seed,
            rule=history.rule.value,
            end=history.end.value,
            reason=history.reason,
            ended_by=history.ended_by,
            parameters=dimension,
            test_accuracy=history.test_accuracy,
            rounds=tuple(one.round for one in sums),
            lists=len({tuple(sorted(one.weights.items())) for one in sums}),
            weight={site: _rounded([one.weights.get(site) for one in sums]) for site in history.contributors},
            isolation={one.site: _rounded(one.values) for one in isolation_series(history)},
            attacks=attacks_on(sums, noise),
            seconds=round(time.monotonic() - begun, 3),
            versions={one.name: one.version for one in versions()},
        )

    def _run(self) -> tuple[RunHistory, tuple[OpenedSum, ...], int, float]:
        federation: Federation = load_data(request_for(self.case, self.data, self.requester, self.seed))
        table = self.setting.of(self.case.variant(self.variant), self.case.source)
        study = simulated_study(table, self.case.source, federation, self.seed)
        if self.rounds is not None:
            study = study.model_copy(update={"rounds": min(self.rounds, study.rounds)})
        summing: Summing = PlainSum()
        if self.setting.noise:
            summing = Noisy(summing, self.setting.noise, self.seed)
        recorder = Recorder(summing)
        history = run_rounds(study, federation.sites, recorder, Conditions(policy=self._policy()), protection="plain")
        noise = (self.setting.noise * study.parameters.clip_norm) ** 2
        return history, tuple(recorder.sums), study.parameters.dimension, noise

    def _policy(self) -> SitePolicy:
        return self.setting.policy(self.case.table.policy.policy())


class Noisy:
    """Every contributor adds Gaussian noise to its update before it shares it; recorded updates are those without."""

    def __init__(self, inner: Summing, length: float, seed: int) -> None:
        self._inner = inner
        self._length = length
        self._random = np.random.default_rng(seed)

    def updates(self, inputs: RoundInputs) -> Summed:
        """The sum of noisy updates."""
        deviation = self._length * inputs.clip_norm / np.sqrt(inputs.own.values.size)
        noisy = {
            site: replace(update, values=update.values + self._random.normal(0, deviation, update.values.size))
            for site, update in inputs.updates.items()
        }
        return self._inner.updates(replace(inputs, updates=noisy))

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        """Class counts as they are."""
        return self._inner.counts(announcement, counts)


def attacks_on(sums: Sequence[OpenedSum], noise: float = 0.0) -> tuple[PartyErrors, ...]:
    """The requester, every contributor, and the requester with each contributor, with every prior.

    ``noise`` is the expected squared length of what every site adds to its update.
    """
    if not sums:
        return ()
    requester = sums[0].requester
    others = tuple(dict.fromkeys(site for one in sums for site in one.weights if site != requester))
    parties = [(requester,), *((site,) for site in others), *((requester, site) for site in others)]
    return tuple(
        PartyErrors(party=party, prior=prior, errors=_errors(sums, Reconstruction(party, prior, noise)))
        for party in parties
        for prior in Prior
        if len(party) == 1 or prior is not Prior.AVERAGE
    )


def _errors(sums: Sequence[OpenedSum], attack: Reconstruction) -> dict[str, Values]:
    return {site: _rounded(errors) for site, errors in attack.errors(sums).items()}


def _rounded(values: Sequence[float | None]) -> Values:
    return tuple(None if value is None else float(f"{value:.{_DIGITS}g}") for value in values)
