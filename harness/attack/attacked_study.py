"""A case's study as an experiment attacks it: set up, run in this process, and its opened sums recorded.

Every experiment over a whole study takes an :class:`AttackedStudy`, runs it inside :func:`timed`, and gives a
:class:`Line` of JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, SupportsFloat, TypeVar

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.study_file import StudyTable, checked_study_table
from harness.datasets.registry import load_data
from harness.datasets.site_data import Federation
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import AfterRound, Conditions
from harness.engine.training import one_thread
from harness.engine.updates import PlainSum, RoundInputs, Summed, Summing
from harness.simulate.case import Case, Variant
from harness.simulate.case_run import request_for
from harness.simulate.study_files import refuse_package, simulated_study
from harness.versions import versions
from host.frozen import Frozen
from protocol.messages.control import Study
from protocol.policy.site_policy import SitePolicy

Reals = NDArray[np.float64]


class Line(Frozen):
    """An experiment's findings, as a line of JSON."""


L = TypeVar("L", bound=Line)


@dataclass(frozen=True)
class Setting:
    """Changes to a study before it is run: keys of its tables; ``least_isolation`` replaces what sites demand."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    least_isolation: float | None = None

    def of(self, variant: Variant, source: str) -> StudyTable:
        """The variant's study with the changes. Raises: ConfigurationError"""
        tables = dict(variant.tables)
        for key, value in self.changes.items():
            tables[key] = {**tables.get(key, {}), **value} if isinstance(value, Mapping) else value
        refuse_package(tables, f"{source}: variant {variant.name!r}")
        return checked_study_table(tables, f"{source}: variant {variant.name!r}, setting {self.name!r}")


AS_IT_IS: Final = Setting("as_it_is")


@dataclass(frozen=True)
class AttackedStudy:
    """One variant of a case under one seed; ``rounds`` is the most that are run, where a study takes long."""

    case: Case
    variant: str
    seed: int
    requester: str | None = None
    setting: Setting = AS_IT_IS
    data: Path | None = None
    rounds: int | None = None

    @property
    def table(self) -> StudyTable:
        """The study file's tables under the setting. Raises: ConfigurationError"""
        return self.setting.of(self.case.variant(self.variant), self.case.source)

    @property
    def policy(self) -> SitePolicy:
        stated, least = self.case.table.policy.policy(), self.setting.least_isolation
        return stated if least is None else stated.model_copy(update={"least_isolation": least})

    def federation(self) -> Federation:
        """The sites with their data. Raises: ConfigurationError for data that are missing or do not fit"""
        return load_data(request_for(self.case, self.data, self.requester, self.seed))

    def study(self, federation: Federation, table: StudyTable | None = None) -> Study:
        """The study for these sites, from ``table`` where it is not the usual one. Raises: ConfigurationError"""
        study = simulated_study(table or self.table, self.case.source, federation, self.seed)
        if self.rounds is None:
            return study
        return study.model_copy(update={"rounds": min(self.rounds, study.rounds)})

    def run(
        self,
        study: Study,
        federation: Federation,
        summing: Summing,
        *,
        after_round: AfterRound = lambda progress: None,
        **conditions: Any,  # noqa: ANN401  # fields of Conditions
    ) -> RunHistory:
        """Run it under the sites' policy and further :class:`Conditions`. Raises: ConfigurationError"""
        under = Conditions(policy=self.policy, **conditions)
        return run_rounds(study, federation.sites, summing, under, protection="plain", after_round=after_round)

    def contributors_in_turn(self, federation: Federation) -> tuple[str, ...]:
        """All contributors; the seed says who is first."""
        names = federation.names_of_sites[1:]
        return tuple(names[(self.seed + place) % len(names)] for place in range(len(names)))


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Compute with one thread of torch, so that sums have one order; gives the seconds since the beginning."""
    begun = time.monotonic()
    with one_thread():
        yield lambda: round(time.monotonic() - begun, 3)


def program_versions() -> dict[str, str]:
    return versions()


def line_of(kind: type[L], of: AttackedStudy, history: RunHistory, **found: Any) -> L:  # noqa: ANN401 - its fields
    """A line of this kind: as much as it has fields for of what every study has, and what was found."""
    facts = {
        "study": of.case.name,
        "variant": of.variant,
        "setting": of.setting.name,
        "requester": history.requester,
        "seed": of.seed,
        "sites": len(history.contributors) + 1,
        "rule": history.rule.value,
        "end": history.end.value,
        "released": history.shared_rounds,
        "versions": program_versions(),
    }
    return kind(**{name: fact for name, fact in facts.items() if name in kind.model_fields}, **found)


def rounded(value: SupportsFloat, digits: int) -> float:
    """To significant digits, as lines keep figures."""
    return float(f"{float(value):.{digits}g}")


def length_of(vector: NDArray[np.floating[Any]]) -> float:
    return float(np.linalg.norm(vector))


def relative_error(estimate: NDArray[np.floating[Any]], truth: NDArray[np.floating[Any]]) -> float:
    return length_of(estimate - truth) / length_of(truth)


# --- opened sums ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """One released round of updates: what every listed site has after it, and what the simulation alone knows.

    ``weights`` are the weights of the sites in the sum, the requester's 1 among them; where sites weigh themselves
    they are those, which an attacker would have to guess. ``total`` is the opened sum, float64[D]. ``updates`` are the
    true ones, float32[D], and whatever a site was kept out of the sum for, they are there for sites in the sum only.
    """

    round: int
    requester: str
    weights: Mapping[str, float]
    total: NDArray[np.float64] = field(repr=False)
    updates: Mapping[str, NDArray[np.float32]] = field(repr=False)


class Recorder(PlainSum):
    """Keeps every released round in ``sums``; without it a run keeps no update."""

    def __init__(self) -> None:
        self.sums: list[OpenedSum] = []

    def updates(self, inputs: RoundInputs) -> Summed:
        summed = super().updates(inputs)
        if summed.average is not None and summed.judgement is not None:
            grid, took_part = inputs.weight_list.grid, summed.judgement.measured.took_part
            weights, updates = {inputs.requester: inputs.own.weight(1.0)}, {inputs.requester: inputs.own}
            for listed, update in inputs.contributed:
                if listed.site in took_part:
                    weights[listed.site] = update.weight(listed.numerator / grid)
                    updates[listed.site] = update
            total = np.asarray(summed.average, np.float64) * summed.sum_of_weights
            truth = {site: update.values.astype(np.float32) for site, update in updates.items()}
            self.sums.append(OpenedSum(inputs.announcement.round, inputs.requester, weights, total, truth))
        return summed
