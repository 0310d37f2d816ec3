"""A study over a random half of every hospital's patients: who of all of them was trained on?

The data set's own split is put together again, and every seed draws another half, so that the same record is inside in
some runs and outside in others. Its features are as the first seed's split scales them, in every run. The attacker has
every model and every opened average, as the requester and every listed site have.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, load_vector
from client_agent.learning.models import build_model
from client_agent.learning.private.drawn_rows import drawing_probability, steps_of
from client_agent.learning.study_file import checked_study_table
from client_agent.site.budget.accounting import Steps, epsilon_of
from harness.adversaries.inferring.lines import Told
from harness.adversaries.inferring.membership import Scores, by_averages, by_loss, told
from harness.adversaries.inferring.memorised_lines import MemorisedKey, MemorisedLine
from harness.adversaries.inferring.watched_models import Watched, watched
from harness.datasets.registry import load_data
from harness.datasets.site_data import Federation, SiteData, parts_of, split_random
from harness.engine.run_state import Conditions
from harness.engine.training import one_thread
from harness.simulate.case import Case
from harness.simulate.case_run import request_for
from harness.simulate.study_files import simulated_study
from harness.versions import versions
from protocol.wire.messages import Study

DELTA: Final = 1e-3
_DIGITS: Final = 5
_SURE: Final = 1e-6
"""Confidences are read no closer to 0 and 1 than float32 can tell."""


@dataclass(frozen=True, eq=False)
class Halved:
    """A federation whose sites train on half of their records; ``records`` are all contributors', ``members`` says who
    of them is trained on, bool[n].
    """

    federation: Federation
    records: Examples
    members: NDArray[np.bool_]


def halved(federation: Federation, seed: int) -> Halved:
    """Every site's records are cut into two halves, each class by itself; the other half is the test part."""
    sites, inside = [], []
    draw = split_random("halves", seed)
    for site in federation.sites:
        whole = _whole(site)
        train, test = parts_of(np.asarray(whole.y), (0.5, 0.5), draw)
        parts = [Examples(whole.X[rows], whole.y[rows]) for rows in (train, test)]
        sites.append(replace(site, train=parts[0], validation=_part(whole, 0), test=parts[1]))
        inside.append(np.isin(np.arange(len(whole)), train))
    records = [_whole(site) for site in federation.contributors]
    everybody = Examples(np.concatenate([one.X for one in records]), np.concatenate([one.y for one in records]))
    return Halved(replace(federation, sites=tuple(sites)), everybody, np.concatenate(inside[1:]))


@dataclass(frozen=True)
class MemorisedRun:
    """One study to run and look at."""

    case: Case
    variant: str
    seed: int
    data: Path | None = None
    rounds: int | None = None

    @property
    def key(self) -> MemorisedKey:
        """As the line's that comes of it."""
        return (self.case.name, self.variant, self.seed)

    def line(self) -> MemorisedLine:
        """Raises: ConfigurationError for data or settings that do not fit"""
        with one_thread():
            return self._line(time.monotonic())

    def _line(self, begun: float) -> MemorisedLine:
        half = halved(load_data(request_for(self.case, self.data, None, self.case.table.seeds[0])), self.seed)
        study = self._study(half.federation)
        conditions = Conditions(policy=self.case.table.policy.policy(), works_out_isolation=False)
        seen = watched(study, half.federation.sites, conditions)
        model, last = build_model(study.model, 0), seen.models[-1]
        right, confidence = _answers(model, last, half.records)
        inside = half.members
        return MemorisedLine(
            study=self.case.name,
            variant=self.variant,
            rule=seen.history.rule.value,
            seed=self.seed,
            end=seen.history.end.value,
            parameters=study.parameters.dimension,
            released=seen.history.shared_rounds,
            known=_rounded(right[inside].mean()),
            unknown=_rounded(right[~inside].mean()),
            rounds=tuple(one.round for one in seen.history.rounds if one.kind.value == "released"),
            by_loss=tuple(_told(by_loss(model, one, half.records), inside) for one in seen.models[1:]),
            by_average=tuple(_told(by_averages(model, [one], half.records), inside) for one in seen.rounds),
            by_averages=_by_all(model, seen, half),
            members=tuple(bool(one) for one in inside),
            confidence=tuple(_rounded(one) for one in confidence),
            epsilon=_epsilons(study, half.federation.contributors),
            seconds=round(time.monotonic() - begun, 3),
            versions={one.name: one.version for one in versions()},
        )

    def _study(self, federation: Federation) -> Study:
        tables = dict(self.case.variant(self.variant).tables)
        table = checked_study_table(tables, f"{self.case.source}: variant {self.variant!r}")
        study = simulated_study(table, self.case.source, federation, self.seed)
        return study if self.rounds is None else study.model_copy(update={"rounds": self.rounds})


def _epsilons(study: Study, sites: Sequence[SiteData]) -> dict[str, float]:
    """What the study's noise guarantees each site's records at DELTA over all of its rounds."""
    if study.privacy is None:
        return {}
    batch, noise = study.training.batch_size, study.privacy.noise_multiplier
    counts = {site.name: len(site.train) for site in sites}
    spent = {
        name: Steps(drawing_probability(count, batch), noise, study.rounds * steps_of(count, study.training))
        for name, count in counts.items()
    }
    return {name: _rounded(epsilon_of([steps], DELTA)) for name, steps in spent.items()}


def _by_all(model: torch.nn.Module, seen: Watched, half: Halved) -> Told | None:
    return _told(by_averages(model, seen.rounds, half.records), half.members) if seen.rounds else None


def _told(scores: Scores, inside: NDArray[np.bool_]) -> Told:
    return told(scores[inside], scores[~inside])


def _answers(model: torch.nn.Module, vector: Vector, data: Examples) -> tuple[NDArray[np.bool_], Scores]:
    """Which records the model has right, and log p / (1 - p) of their classes."""
    load_vector(model, vector)
    model.eval()
    y = torch.from_numpy(np.asarray(data.y))
    with torch.no_grad():
        shares = torch.softmax(model(torch.from_numpy(data.X)).double(), dim=1)
    p = shares.gather(1, y[:, None])[:, 0].clamp(_SURE, 1 - _SURE).numpy()
    return (shares.argmax(dim=1) == y).numpy(), np.asarray(np.log(p / (1 - p)))


def _whole(site: SiteData) -> Examples:
    """All records of a site, in the order of its parts."""
    parts = (site.train, site.validation, site.test)
    return Examples(np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts]))


def _part(data: Examples, number: int) -> Examples:
    return Examples(data.X[:number], data.y[:number])


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
