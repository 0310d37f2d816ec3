"""The falsified studies behind the page on the leak: every question, with and without the clause, with canaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from harness.adversaries.falsifying.leak_line import LeakLine
from harness.adversaries.falsifying.leak_run import ROUNDS, LeakRun, plans
from harness.adversaries.falsifying.leaked import Asked
from harness.adversaries.falsifying.questions import Question
from harness.simulate.store import append_line, read_lines

LINES: Final = Path("leak") / "falsified.jsonl"
SEEDS: Final = tuple(range(40))
LENGTHS: Final = (10, ROUNDS, 100)
CANARIES: Final = (0.0, 1 / 30, 0.1)


def asked() -> list[Asked]:
    """Everything that the page shows, once."""
    found = [Asked(question, clause) for question in Question for clause in (True, False)]
    found += [Asked(question, rounds=rounds) for question in Question for rounds in LENGTHS]
    found += [Asked(question, canaries=share) for question in Question for share in CANARIES]
    return list(dict.fromkeys(found))


def runs() -> Iterator[LeakRun]:
    """Every run, seeds innermost."""
    for one in asked():
        for failures in plans(one.rounds):
            for seed in SEEDS:
                yield LeakRun(one.question, one.clause, failures, seed, one.canaries, one.rounds)


def run_missing(out: Path, tell: Callable[[str], None]) -> None:
    """Every study that is not there yet; one process."""
    path = out / LINES
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {line.key for line in recorded(out)}
    for one in runs():
        if one.key not in done:
            line = one.line()
            append_line(path, line)
            tell(f"{' '.join(map(str, line.key))}: {line.bits:.2f} bits")


def recorded(out: Path) -> tuple[LeakLine, ...]:
    """All lines that are there."""
    return read_lines(out / LINES, LeakLine)
