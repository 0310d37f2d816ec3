"""The studies behind the privacy page's part about two sums that differ by one site: rules by batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.adversaries.attacked_study import Setting
from harness.adversaries.differencing.differenced_run import DifferencedRun
from harness.adversaries.differencing.lines import DifferencedLine
from harness.datasets.registry import load_data
from harness.simulate.case import read_case
from harness.simulate.case_run import request_for, requesters_of
from harness.simulate.store import append_line, read_lines

LINES: Final = Path("privacy") / "differencing.jsonl"
SEEDS: Final = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Differenced:
    """A case with its rules; ``least`` contributors are enough for a sum, one fewer than there are."""

    case: str
    title: str
    rules: tuple[str, ...]
    least: int

    def runs(self, studies: Path, data: Path | None) -> Iterator[DifferencedRun]:
        """Every run. Raises: ConfigurationError"""
        case = read_case(studies / f"{self.case}.toml")
        requester = requesters_of(case, load_data(request_for(case, data, None, case.table.seeds[0])))[0]
        for seed in SEEDS:
            for rule in self.rules:
                for name, training in BATCHES.items():
                    changes = {"training": training, "parameters": {"least_contributors": self.least}}
                    setting = Setting(name, changes, least_isolation=0.0)
                    yield DifferencedRun(case, rule, setting, requester, seed, data)


def _gradient(batch: int) -> dict[str, Any]:
    return {"update": "gradient", "batch_size": batch, "batches": "shuffled", "server_learning_rate": 0.1}


BATCHES: Final[dict[str, dict[str, Any]]] = {
    "batches of 8": _gradient(8),
    "batches of 32": _gradient(32),
    "full batches": _gradient(1_000_000),
    "an epoch": {
        "update": "local_sgd",
        "batch_size": 8,
        "batches": "shuffled",
        "epochs": 1,
        "local_learning_rate": 0.02,
        "server_learning_rate": 0.02,
    },
}
# Mallows averaging gives so few of the sites that differ any weight that without one of them there is no second sum.
DIFFERENCED: Final = (
    Differenced(
        "heart_disease",
        "heart disease, 4 hospitals, linear",
        ("fedavg", "fedavg_by_samples", "weight_erosion", "multi_krum"),
        2,
    ),
    Differenced("poisoning", "digits, 10 sites that differ", ("fedavg", "weight_erosion", "multi_krum"), 3),
    Differenced("poisoning_alike", "digits, 10 sites that are alike", ("fedavg", "weight_erosion", "mallows"), 3),
)


def run_missing(studies: Path, out: Path, data: Path | None, tell: Callable[[str], None]) -> None:
    """Every run that is not there yet; one process. Raises: ConfigurationError"""
    path = out / LINES
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {line.key for line in recorded(out)}
    for differenced in DIFFERENCED:
        for one in differenced.runs(studies, data):
            if one.key not in done:
                line = one.line()
                append_line(path, line)
                tell(f"{' '.join(map(str, line.key))}: predicted {line.predicted:.3f}, achieved {line.achieved:.3f}")


def recorded(out: Path) -> tuple[DifferencedLine, ...]:
    """All lines that are there."""
    return read_lines(out / LINES, DifferencedLine)
