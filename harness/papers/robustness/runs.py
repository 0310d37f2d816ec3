"""The attacked runs behind the robustness page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.adversaries.attacked_study import AS_IT_IS, Setting
from harness.adversaries.gaining.lies import Lie
from harness.adversaries.gaining.lying_line import LyingLine
from harness.adversaries.gaining.lying_run import LyingRun
from harness.adversaries.locating.locating_line import LocatingLine
from harness.adversaries.locating.locating_run import LocatingRun
from harness.datasets.registry import load_data
from harness.simulate.case import Case, read_case
from harness.simulate.case_run import request_for, requesters_of
from harness.simulate.store import append_line, read_lines

LIES: Final = Path("robustness") / "lies.jsonl"
DISTANCES: Final = Path("robustness") / "distances.jsonl"
SEEDS: Final = (0, 1, 2, 3, 4)
RULES: Final = ("fedavg", "multi_krum", "weight_erosion", "mallows", "mallows_raw", "mallows_policy")
FINISHED_RULES: Final = ("fedavg", "mallows", "mallows_raw")
FINISHED_LIES: Final = (Lie.REPLAY, Lie.ORACLE)
ALONE: Final = "local"
FINISHED: Final = Setting("finished", {"finish": {"held_out": 0.2}})
_SINGLE: Final = tuple(lie for lie in Lie if lie is not Lie.OPPOSED)


@dataclass(frozen=True)
class Lying:
    """A case in which ``liars`` contributors lie; ``lies`` are those that so many can tell."""

    case: str
    title: str
    liars: int
    lies: tuple[Lie, ...]

    def run_missing(self, studies: Path, runs: Path, data: Path | None, tell: Callable[[str], None]) -> None:
        """Raises: ConfigurationError"""
        case, known = read_case(studies / f"{self.case}.toml"), {_key(line) for line in lying_lines(runs)}
        for seed in SEEDS:
            for requester in _requesters(case, data):
                for setting, variant, lies in self._asked():
                    if {(case.name, setting.name, variant, requester, seed, lie) for lie in (None, *lies)} <= known:
                        continue
                    tell(f"{case.name}, {setting.name}, {variant}, requester {requester}, seed {seed}")
                    run = LyingRun(case, variant, setting, requester, seed, lies, self.liars, data)
                    for line in run.lines():
                        if _key(line) not in known:
                            _keep(runs / LIES, line)

    def _asked(self) -> Iterator[tuple[Setting, str, tuple[Lie, ...]]]:
        """Training alone, every rule with every lie, and some with a local finish behind them."""
        yield AS_IT_IS, ALONE, ()
        for variant in RULES:
            yield AS_IT_IS, variant, self.lies
        for variant in FINISHED_RULES:
            yield FINISHED, variant, FINISHED_LIES


@dataclass(frozen=True)
class Locating:
    """A case whose updates are located; every ``every``-th round is measured."""

    key: str
    title: str
    case: str
    setting: Setting
    colluders: tuple[int, ...]
    every: int = 1

    def run_missing(self, studies: Path, runs: Path, data: Path | None, tell: Callable[[str], None]) -> None:
        """Raises: ConfigurationError"""
        case = read_case(studies / f"{self.case}.toml")
        known = {(line.setting, line.seed) for line in locating_lines(runs)}
        for seed in (seed for seed in SEEDS if (self.key, seed) not in known):
            tell(f"distances: {self.title}, seed {seed}")
            setting = Setting(self.key, self.setting.changes, least_isolation=0.0)
            requester = _requesters(case, data)[0]
            run = LocatingRun(case, "fedavg", setting, requester, seed, self.colluders, self.every, data)
            _keep(runs / DISTANCES, run.line())


_FRESH: Final = Setting("fresh", {"training": {"batch_size": 8, "batches": "shuffled"}})
_EPOCH: Final = Setting("epoch", {"rounds": 15, "parameters": {"least_contributors": 3}})
LYING: Final = (
    Lying("lies_heart", "Heart disease: one of four hospitals lies", 1, _SINGLE),
    Lying("lies_alike", "Digits, ten sites that are alike: two lie", 2, tuple(Lie)),
    Lying("lies_digits", "Digits, ten sites that see other digits: two lie", 2, tuple(Lie)),
)
LOCATING: Final = (
    Locating("heart-full", "heart disease, full batches, 30 rounds", "lies_heart", AS_IT_IS, (0, 1, 2)),
    Locating("heart-tenth", "the same, every tenth round", "lies_heart", AS_IT_IS, (0, 1, 2), every=10),
    Locating("heart-fresh", "heart disease, fresh batches of 8, 30 rounds", "lies_heart", _FRESH, (0, 1, 2)),
    Locating("digits-full", "digits, full batches, 30 rounds", "lies_digits", AS_IT_IS, (0, 1, 4)),
    Locating("digits-network", "digits, a network, an epoch, 15 rounds", "digits", _EPOCH, (0, 1, 4)),
)


def lying_lines(runs: Path) -> tuple[LyingLine, ...]:
    """What was run so far."""
    return tuple(read_lines(runs / LIES, LyingLine))


def locating_lines(runs: Path) -> tuple[LocatingLine, ...]:
    """What was run so far."""
    return tuple(read_lines(runs / DISTANCES, LocatingLine))


def data_of(studies: Path) -> Iterator[str]:
    """The names of the data sets."""
    for one in (*LYING, *LOCATING):
        yield read_case(studies / f"{one.case}.toml").table.data


def _requesters(case: Case, data: Path | None) -> tuple[str, ...]:
    return tuple(requesters_of(case, load_data(request_for(case, data, None, case.table.seeds[0]))))


def _key(line: LyingLine) -> tuple[str, str, str, str, int, Lie | None]:
    return (line.study, line.setting, line.variant, line.requester, line.seed, line.lie)


def _keep(path: Path, line: LyingLine | LocatingLine) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, line)
