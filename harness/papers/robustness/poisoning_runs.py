"""The runs behind the poisoning page: every rule, poison and number of poisoners, over seeds; some of them secure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from harness.adversaries.poisoning.lines import PoisonedLine
from harness.adversaries.poisoning.poisoned_run import Poisoned
from harness.adversaries.poisoning.poisons import Poison
from harness.simulate.case import Case, read_case
from harness.simulate.store import append_line, read_lines

LINES: Final = Path("poisoning") / "lines.jsonl"
CASES: Final = {"poisoning": "sites that differ", "poisoning_alike": "sites that are alike"}
"""By file, how the page calls them."""
POISONERS: Final = (1, 2, 4)
"""Of ten sites: 10, 20 and 40 %."""
ALONE: Final = "local"
"""The variant in which nobody else has a part."""
CHECKED: Final = (("fedavg", Poison.SCALED), ("multi_krum", Poison.SIGN_FLIP), ("weight_erosion", Poison.MIN_MAX))
"""Run under the protocol as well, with two poisoners and the first seed."""
_CHECKED_POISONERS: Final = 2


def runs(case: Case, poisoners: Sequence[int] = POISONERS) -> Iterator[Poisoned]:
    """Every run, seeds outermost, honest ones first."""
    for seed in case.table.seeds:
        for variant in case.names:
            yield Poisoned(case, variant, seed, 0, None)
            for number in poisoners if variant != ALONE else ():
                yield from (Poisoned(case, variant, seed, number, poison) for poison in Poison)
    seed = case.table.seeds[0]
    for variant, poison in CHECKED:
        yield Poisoned(case, variant, seed, _CHECKED_POISONERS, poison, secure=True)


def run_missing(studies: Path, out: Path, tell: Callable[[str], None]) -> None:
    """Every run that is not there yet; one process. Raises: ConfigurationError"""
    path = out / LINES
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {line.key for line in recorded(out)}
    for case in CASES:
        for one in runs(read_case(studies / f"{case}.toml")):
            if one.key not in done:
                line = one.line()
                append_line(path, line)
                tell(f"{' '.join(map(str, line.key))}: accuracy {line.accuracy:.3f}, {line.seconds:.1f} s")


def recorded(out: Path) -> tuple[PoisonedLine, ...]:
    """All lines that are there."""
    return read_lines(out / LINES, PoisonedLine)
