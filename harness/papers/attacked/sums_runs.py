"""The attacked runs behind the page on sums: studies as they were, as they are, and what each remedy does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from harness.adversaries.attack_line import AttackLine
from harness.adversaries.attacked_study import AttackedRun, Setting
from harness.datasets.registry import load_data
from harness.simulate.case import Case, read_case
from harness.simulate.case_run import request_for, requesters_of
from harness.simulate.store import append_line, read_lines

LINES: Final = Path("privacy") / "attacks.jsonl"
NOW: Final = Setting("now")
NO_LIMIT: Final = 0.0
LIMIT: Final = 0.5
_THREE: Final = (0, 1, 2)


def _gradient(batch: int, rate: float = 0.3) -> dict[str, Any]:
    fresh = {"update": "gradient", "batch_size": batch, "batches": "shuffled", "server_learning_rate": rate}
    return {"training": fresh}


_FULL: Final = 1_000_000
_FINE: Final = {"parameters": {"weight_grid": 1024}}
_SLOW: Final = {"rule": {"distance_penalty": 0.01, "size_penalty": 0.0}}
_SMOOTH: Final = {**_gradient(_FULL, 0.1), **_SLOW, **_FINE, "rounds": 16, "list_every": 1}


@dataclass(frozen=True)
class Attacked:
    """A case with one variant and the settings that it is attacked under; ``title`` is how the page calls it."""

    key: str
    title: str
    case: str
    variant: str
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    sites: int | None = None
    rounds: int | None = None
    requesters: int | None = None

    def runs(self, studies: Path, data: Path | None) -> list[AttackedRun]:
        """Every run, seeds outermost. Raises: ConfigurationError"""
        case = self._case(studies)
        found = requesters_of(case, load_data(request_for(case, data, None, case.table.seeds[0])))[: self.requesters]
        return [
            AttackedRun(case, self.variant, setting, requester, seed, data, self.rounds)
            for seed in self.seeds
            for requester in found
            for setting in self.settings
        ]

    def data(self, studies: Path) -> str:
        """The name of its data set."""
        return read_case(studies / f"{self.case}.toml").table.data

    def _case(self, studies: Path) -> Case:
        case = read_case(studies / f"{self.case}.toml")
        sites = case.table.sites if self.sites is None else self.sites
        return replace(case, name=self.key, table=case.table.model_copy(update={"sites": sites}))


_BEFORE_LINEAR: Final = Setting(
    "before",
    {"rounds": 30, "list_every": 1, "parameters": {"least_contributors": 3}, **_gradient(32)},
    least_isolation=NO_LIMIT,
)
_BEFORE_DIGITS: Final = Setting(
    "before", {"list_every": 1, "parameters": {"least_contributors": 3}}, least_isolation=NO_LIMIT
)
_AS_EVER: Final = Setting("before", least_isolation=NO_LIMIT)
_DEMO_DIGITS: Final = Setting("now", {"list_every": 5, "parameters": {"least_contributors": 4}})
SHIPPED: Final = (
    Attacked(
        "breast-cancer", "breast cancer (demo), Weight Erosion", "breast_cancer", "weight_erosion",
        (_BEFORE_LINEAR, NOW), (0, 1, 2, 3, 4),
    ),
    Attacked(
        "breast-cancer-fedavg", "breast cancer (demo), FedAvg", "breast_cancer", "fedavg",
        (_BEFORE_LINEAR, NOW), (0, 1, 2, 3, 4),
    ),
    Attacked(
        "digits-demo", "digits, 5 sites (demo), Weight Erosion", "digits", "weight_erosion",
        (_BEFORE_DIGITS, _DEMO_DIGITS), (0, 1), sites=5,
    ),
    Attacked("digits", "digits, 10 sites, Weight Erosion", "digits", "weight_erosion", (_BEFORE_DIGITS, NOW), (0,)),
    Attacked("heart-disease", "heart disease, Weight Erosion", "heart_disease", "weight_erosion", (_AS_EVER,), _THREE),
    Attacked("heart-disease-fedavg", "heart disease, FedAvg", "heart_disease", "fedavg", (_AS_EVER,), _THREE),
    Attacked(
        "titanic-strict", "Titanic by age, Weight Erosion", "titanic_age_strict", "weight_erosion", (_AS_EVER,), _THREE
    ),
    Attacked("titanic-strict-fedavg", "Titanic by age, FedAvg", "titanic_age_strict", "fedavg", (_AS_EVER,), _THREE),
    Attacked(
        "titanic-some", "Titanic, two alike, Weight Erosion", "titanic_age_some", "weight_erosion", (_AS_EVER,), _THREE
    ),
    Attacked(
        "har-fedavg", "HAR, 8 sites, FedAvg (15 rounds)", "har_strategies_random", "fedavg", (_AS_EVER, NOW), (0,),
        rounds=15,
    ),
    Attacked(
        "har-wfedavg", "HAR, 8 sites, WFedAvg (15 rounds)", "har_strategies_majority", "wfedavg", (_AS_EVER, NOW), (0,),
        rounds=15,
    ),
    Attacked(
        "mnist-b-10", "MNIST B, 10 sites, Weight Erosion (2 rounds)", "mnist_b_10", "weight_erosion", (_AS_EVER,), (0,),
        rounds=2,
    ),
)  # fmt: skip
"""Every shipped study; those that repeat a paper have no setting "now": they are simulations only, and stay."""

_TEN: Final = {**_SLOW, **_FINE, "rounds": 10, "list_every": 1}


def _limited(name: str, changes: dict[str, Any]) -> Setting:
    return Setting(name, changes, least_isolation=LIMIT)


_REMEDIES: Final = (
    Setting("full batches", _SMOOTH, least_isolation=NO_LIMIT),
    Setting("full batches, list kept 5 rounds", {**_SMOOTH, "list_every": 5}, least_isolation=NO_LIMIT),
    Setting("full batches, list always kept", {**_SMOOTH, "list_every": 100}, least_isolation=NO_LIMIT),
    Setting("fresh batches of 32", {**_SMOOTH, **_gradient(32, 0.1)}, least_isolation=NO_LIMIT),
    Setting("fresh batches of 8", {**_SMOOTH, **_gradient(8, 0.1)}, least_isolation=NO_LIMIT),
    Setting(
        "an epoch of local SGD, batches of 8",
        {
            **_SMOOTH,
            "training": {
                "update": "local_sgd", "batches": "shuffled", "batch_size": 8, "epochs": 1,
                "local_learning_rate": 0.02, "server_learning_rate": 0.02,
            },
        },
        least_isolation=NO_LIMIT,
    ),
    Setting("noise of 0.1 C", _SMOOTH, 0.1, NO_LIMIT),
    Setting("noise of 0.3 C", _SMOOTH, 0.3, NO_LIMIT),
    _limited("limit 0.5, full batches", _SMOOTH),
    _limited("limit 0.5, fresh batches of 16, 10 rounds, list kept 5", {**_TEN, **_gradient(16, 0.3), "list_every": 5}),
    Setting("fresh batches of 16, 10 rounds", {**_TEN, **_gradient(16, 0.3)}, least_isolation=NO_LIMIT),
)  # fmt: skip


def _remedies(contributors: int) -> tuple[Setting, ...]:
    """All of them needed in every sum, as a site's limit asks for."""
    needed = {"parameters": {**_FINE["parameters"], "least_contributors": contributors}}
    return tuple(replace(one, changes={**one.changes, **needed}) for one in _REMEDIES)


LINEAR: Final = (
    Attacked("remedies-breast-cancer", "breast cancer", "breast_cancer", "weight_erosion", _remedies(4), _THREE),
    Attacked(
        "remedies-heart-disease", "heart disease", "heart_disease", "weight_erosion", _remedies(3), _THREE, requesters=1
    ),
    Attacked(
        "remedies-titanic", "Titanic by age", "titanic_age_strict", "weight_erosion", _remedies(3), _THREE, requesters=1
    ),
)
"""What each remedy does to linear models that make the attack easy: Weight Erosion's lists over slow full batches."""


def run_missing(studies: Path, runs: Path, data: Path | None, tell: Callable[[str], None]) -> None:
    """Every attacked run that is not there yet. Raises: ConfigurationError"""
    path = runs / LINES
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {line.key for line in recorded(runs)}
    for attacked in (*LINEAR, *SHIPPED):
        for one in attacked.runs(studies, data):
            key = (one.case.name, one.variant, one.setting.name, one.requester, one.seed)
            if key not in done:
                line = one.line()
                append_line(path, line)
                tell(f"{', '.join(map(str, key))}: {len(line.rounds)} sums, {line.seconds:.0f} s")


def recorded(runs: Path) -> tuple[AttackLine, ...]:
    """All lines that are there."""
    return read_lines(runs / LINES, AttackLine)


def of(lines: Sequence[AttackLine], key: str, setting: str) -> tuple[AttackLine, ...]:
    """One study's lines under one setting."""
    return tuple(line for line in lines if (line.study, line.setting) == (key, setting))
