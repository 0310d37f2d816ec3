"""The studies behind the privacy page's part about membership in models of several sizes, under several rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from harness.adversaries.inferring.memorised_lines import MemorisedLine
from harness.adversaries.inferring.memorised_run import MemorisedRun
from harness.simulate.case import read_case
from harness.simulate.store import append_line, read_lines

LINES: Final = Path("privacy") / "memorised.jsonl"
CASE: Final = "memorising"


def run_missing(studies: Path, out: Path, data: Path | None, tell: Callable[[str], None]) -> None:
    """Every study that is not there yet, seeds outermost; one process. Raises: ConfigurationError"""
    path = out / LINES
    path.parent.mkdir(parents=True, exist_ok=True)
    case, done = read_case(studies / f"{CASE}.toml"), {line.key for line in recorded(out)}
    for seed in case.table.seeds:
        for one in (MemorisedRun(case, variant, seed, data) for variant in case.names):
            if one.key not in done:
                line = one.line()
                append_line(path, line)
                tell(f"{' '.join(map(str, line.key))}: {line.seconds:.1f} s")


def recorded(out: Path) -> tuple[MemorisedLine, ...]:
    """All lines that are there."""
    return read_lines(out / LINES, MemorisedLine)
