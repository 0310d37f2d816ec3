"""The attacked averages behind the privacy page: data sets and models by numbers of sites and batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from harness.adversaries.inverting.inverted_run import InvertedRun
from harness.adversaries.inverting.lines import InversionLine
from harness.adversaries.inverting.targets import TARGETS
from harness.simulate.store import append_line, read_lines

LINES: Final = Path("privacy") / "records.jsonl"
SITES: Final = (1, 2, 4, 8)
BATCHES: Final = (1, 8, 32)
SEEDS: Final = (0, 1, 2, 3, 4)


def runs(folder: Path | None) -> Iterator[InvertedRun]:
    """Every run, seeds innermost."""
    for target in TARGETS:
        for sites in SITES:
            for batch in BATCHES:
                yield from (InvertedRun(target, sites, batch, seed, folder) for seed in SEEDS)


def run_missing(out: Path, data: Path | None, tell: Callable[[str], None]) -> None:
    """Every average that was not attacked yet; one process. Raises: ConfigurationError"""
    path = out / LINES
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {line.key for line in recorded(out)}
    for one in runs(data):
        if one.key not in done:
            line = one.line()
            append_line(path, line)
            tell(f"{' '.join(map(str, line.key))}: {line.seconds:.1f} s")


def recorded(out: Path) -> tuple[InversionLine, ...]:
    """All lines that are there."""
    return read_lines(out / LINES, InversionLine)
