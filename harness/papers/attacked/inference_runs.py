"""The runs behind the privacy page's parts about shipped studies: studies watched over seeds and requesters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.adversaries.inferring.lines import InferenceLine
from harness.adversaries.inferring.watched_run import WatchedRun
from harness.datasets.registry import load_data
from harness.simulate.case import Case, read_case
from harness.simulate.case_run import request_for, requesters_of
from harness.simulate.store import append_line, read_lines

LINES: Final = Path("inference") / "lines.jsonl"


@dataclass(frozen=True)
class Inferred:
    """A case with the variants that are watched; ``title`` is how the page calls it."""

    case: str
    title: str
    variants: tuple[str, ...]
    seeds: tuple[int, ...]

    def read(self, studies: Path) -> Case:
        """Raises: ConfigurationError"""
        return read_case(studies / f"{self.case}.toml")

    def runs(self, studies: Path, data: Path | None) -> Iterator[WatchedRun]:
        """Seeds outermost; every requester that the data set allows. Raises: ConfigurationError"""
        case = self.read(studies)
        requesters = requesters_of(case, load_data(request_for(case, data, None, self.seeds[0])))
        for seed in self.seeds:
            for requester in requesters:
                yield from (WatchedRun(case, variant, requester, seed, data) for variant in self.variants)


_TEN: Final = tuple(range(10))
INFERRED: Final = (
    Inferred("breast_cancer", "breast cancer, 5 sites, linear", ("fedavg", "weight_erosion"), _TEN),
    Inferred("heart_disease", "heart disease, 4 hospitals, linear", ("fedavg", "weight_erosion"), _TEN),
    Inferred("poisoning", "digits, 10 sites, linear", ("fedavg", "weight_erosion", "mallows"), _TEN),
    Inferred("digits", "digits, 10 sites, network", ("fedavg", "weight_erosion"), (0, 1, 2)),
)


def run_missing(studies: Path, out: Path, data: Path | None, tell: Callable[[str], None]) -> None:
    """Every run that is not there yet; one process. Raises: ConfigurationError"""
    run_missing_of(INFERRED, studies, out / LINES, data, tell)


def run_missing_of(
    chosen: Sequence[Inferred], studies: Path, path: Path, data: Path | None, tell: Callable[[str], None]
) -> None:
    """Those of these cases that ``path`` has no line of; one process. Raises: ConfigurationError"""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {line.key for line in recorded_in(path)}
    for inferred in chosen:
        for run in inferred.runs(studies, data):
            key = (run.case.name, run.variant, run.requester or "", run.seed)
            if key not in done:
                for line in tuple(run.lines()):
                    append_line(path, line)
                tell(f"{', '.join(map(str, key))}")


def recorded(out: Path) -> tuple[InferenceLine, ...]:
    """All lines that are there."""
    return recorded_in(out / LINES)


def recorded_in(path: Path) -> tuple[InferenceLine, ...]:
    """All lines of one file."""
    return read_lines(path, InferenceLine)
