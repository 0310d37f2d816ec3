"""A study run in this process, and what is inferred about every contributor from what its parties have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector
from client_agent.learning.models import build_model
from client_agent.learning.study_file import checked_study_table
from harness.adversaries.inferring.lines import InferenceLine
from harness.adversaries.inferring.membership import by_averages, by_loss, by_reference, told
from harness.adversaries.inferring.watched_models import Watched, watched
from harness.datasets.registry import load_data
from harness.datasets.site_data import Federation, SiteData
from harness.engine.history import RunHistory, alpha_series, distance_series
from harness.engine.run_state import Conditions
from harness.engine.training import one_thread
from harness.simulate.case import Case
from harness.simulate.case_run import request_for
from harness.simulate.study_files import simulated_study
from protocol.wire.messages import RuleName, RuleSpec

_MANY: Final = 60
"""Records of each kind that are looked at: gradients of single records are what takes long."""
_DIGITS: Final = 5


@dataclass(frozen=True)
class WatchedRun:
    """One study to run and look at."""

    case: Case
    variant: str
    requester: str | None
    seed: int
    data: Path | None = None

    def lines(self) -> Iterator[InferenceLine]:
        """One for every contributor. Raises: ConfigurationError for data or settings that do not fit"""
        with one_thread():
            yield from self._lines()

    def _lines(self) -> Iterator[InferenceLine]:
        federation = load_data(request_for(self.case, self.data, self.requester, self.seed))
        seen = self._watched(federation, alone=False)
        reference = self._watched(federation, alone=True).history.final_model
        for site in federation.sites[1:]:
            yield self._line(federation, site, seen, reference)

    def _watched(self, federation: Federation, *, alone: bool) -> Watched:
        tables = dict(self.case.variant(self.variant).tables)
        table = checked_study_table(tables, f"{self.case.source}: variant {self.variant!r}")
        if alone:
            table = table.model_copy(update={"rule": RuleSpec(name=RuleName.LOCAL), "privacy": None})
        study = simulated_study(table, self.case.source, federation, self.seed)
        policy = self.case.table.policy.policy()
        conditions = Conditions(policy=policy, works_out_isolation=policy.least_isolation > 0)
        return watched(study, federation.sites, conditions)

    def _line(self, federation: Federation, site: SiteData, seen: Watched, reference: Vector) -> InferenceLine:
        begun, history, model = time.monotonic(), seen.history, build_model(seen.study.model, 0)
        inside, outside = _some(site.train), _some(site.test)
        last = history.final_model
        averages = None
        if seen.rounds:
            averages = told(*(by_averages(model, seen.rounds, data) for data in (inside, outside)))
        return InferenceLine(
            study=self.case.name,
            variant=self.variant,
            rule=history.rule.value,
            requester=history.requester,
            site=site.name,
            seed=self.seed,
            sites=len(federation.sites),
            members=len(inside),
            others=len(outside),
            released=history.shared_rounds,
            by_loss=told(*(by_loss(model, last, data) for data in (inside, outside))),
            by_reference=told(*(by_reference(model, last, reference, data) for data in (inside, outside))),
            by_averages=averages,
            apart=_rounded(_apart(federation, site)),
            distance=_distance(history, site.name),
            weight=_weight(history, site.name),
            seconds=round(time.monotonic() - begun, 3),
        )


def _some(data: Examples) -> Examples:
    return Examples(data.X[:_MANY], data.y[:_MANY])


def _apart(federation: Federation, site: SiteData) -> float:
    """Half the absolute difference of two sites' class shares: what would have to move to make them equal."""
    classes = len(federation.class_names)

    def shares(one: SiteData) -> NDArray[np.float64]:
        return np.bincount(one.train.y, minlength=classes) / len(one.train)

    return float(np.abs(shares(site) - shares(federation.requester)).sum() / 2)


def _distance(history: RunHistory, site: str) -> float | None:
    """The mean over rounds, in the requester's own norms, so that falling gradients do not hide it."""
    series = next(one.values for one in distance_series(history) if one.site == site)
    norms = [record.requester_norm for record in history.rounds]
    found = [value / norm for value, norm in zip(series, norms, strict=True) if value is not None and norm > 0]
    return _rounded(float(np.mean(found))) if found else None


def _weight(history: RunHistory, site: str) -> float | None:
    series = next(one.values for one in alpha_series(history) if one.site == site)
    found = [value for value in series if value is not None]
    return _rounded(found[-1]) if found else None


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def with_sites(case: Case, sites: int | None) -> Case:
    """The case over another number of sites, where its data set allows that."""
    table = case.table if sites is None else case.table.model_copy(update={"sites": sites})
    return replace(case, table=table)
