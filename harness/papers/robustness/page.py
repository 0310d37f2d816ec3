"""The robustness page: what sites that poison or lie can do, and how well opened distances locate an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Final

from harness.adversaries.gaining.lies import Lie
from harness.adversaries.gaining.lying_line import LyingLine
from harness.adversaries.locating.locating_line import Located, LocatingLine
from harness.adversaries.poisoning.lines import PoisonedLine
from harness.papers.making import Making
from harness.papers.page import Page
from harness.papers.robustness import poisoning, poisoning_runs
from harness.papers.robustness.runs import (
    FINISHED,
    FINISHED_LIES,
    FINISHED_RULES,
    LOCATING,
    LYING,
    RULES,
    Locating,
    Lying,
    data_of,
    locating_lines,
    lying_lines,
)
from harness.papers.robustness.texts import DISTANCES, DISTANCES_SAY, INTRODUCTION, LIARS, LIES_SAY, POISONS_SAY
from harness.simulate.case import read_case
from harness.simulate.charts import Spread

_NAMES: Final = {
    "fedavg": "FedAvg",
    "multi_krum": "multi-Krum",
    "weight_erosion": "Weight Erosion",
    "mallows": "Mallows, plug-in",
    "mallows_raw": "Mallows, raw",
    "mallows_policy": "Mallows, plug-in, default policy",
}


@dataclass(frozen=True)
class RobustnessPage:
    """Runs, attacks and writes; see :class:`harness.papers.build.PageSpec`."""

    name: str
    title: str
    studies: Path

    def run_missing(self, making: Making) -> None:
        """Every attacked run that is not there yet; one process. Raises: ConfigurationError"""
        for data in sorted(set(data_of(self.studies))):
            making.get_data(data)
        for one in (*LYING, *LOCATING):
            one.run_missing(self.studies, making.runs, making.data, making.tell)
        poisoning_runs.run_missing(self.studies, making.runs, making.tell)

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """The page from the recorded lines. Returns the file."""
        page = Page(out / f"{self.name}.md", self.title)
        names = {one.case: read_case(self.studies / f"{one.case}.toml").name for one in LYING}
        found = Found(poisoning_runs.recorded(runs), lying_lines(runs), locating_lines(runs))
        write(page, found, names, self.studies)
        page.write()
        return page.path


@dataclass(frozen=True)
class Found:
    """Everything that has run."""

    poisoned: Sequence[PoisonedLine]
    lies: Sequence[LyingLine]
    located: Sequence[LocatingLine]


def write(page: Page, found: Found, names: dict[str, str], studies: Path) -> None:
    """Everything; what has not run is named."""
    page.text(INTRODUCTION)
    poisoning.write(page, found.poisoned, studies)
    if found.poisoned:
        page.text(POISONS_SAY)
    page.heading("Sites that lie to gain weight")
    page.text(LIARS)
    for lying in LYING:
        _lying(page, lying, [line for line in found.lies if line.study == names[lying.case]])
    if found.lies:
        page.text(LIES_SAY)
    page.heading("What distances tell a requester with accomplices")
    page.text(DISTANCES)
    _located(page, found.located)
    if found.located:
        page.text(DISTANCES_SAY)
    page.heading("How this page was made")
    _made(page, found)


def _made(page: Page, found: Found) -> None:
    everything: list[LyingLine | LocatingLine] = [*found.lies, *found.located]
    versions = sorted({f"{name} {version}" for line in everything for name, version in line.versions.items()})
    hours = sum(line.seconds for line in everything) / 3600
    page.text(
        "```sh\nmoiety results --only robustness --data DATA\n```\n\n"
        f"{poisoning.made(found.poisoned)}; {len(found.lies)} runs with and without liars, {len(found.located)} with "
        f"located updates, {hours:.1f} hours of one core. {', '.join(versions)}."
    )


def _lying(page: Page, lying: Lying, lines: Sequence[LyingLine]) -> None:
    page.text(f"**{lying.title}**")
    if not lines:
        page.text("**Not run yet:** 0 runs.")
        return
    plain = [line for line in lines if line.setting != FINISHED.name]
    page.text("The liars' share of a sum:")
    _by_rule(page, lying, plain, lambda found: f"{mean(line.weight for line in found):.2f}", honest=True)
    page.text("How far the model was moved, against the way that it went:")
    _by_rule(page, lying, plain, lambda found: f"{median(line.moved / line.path for line in found):.2f}")
    page.text("What it cost in log-loss:")
    _by_rule(page, lying, plain, lambda found: _cost(Spread.of(line.harm for line in found)))
    alone = [line for line in plain if line.variant == "local"]
    honest = Spread.of(line.log_loss for line in alone) if alone else None
    rules = [(rule, [one.log_loss for one in plain if (one.variant, one.lie) == (rule, None)]) for rule in RULES]
    shown = ", ".join(f"{_NAMES[rule]} {Spread.of(values)}" for rule, values in rules if values)
    page.text(f"Log-loss with honest sites: {shown}; training alone {honest or 'not run'}.")
    _finished(page, [line for line in lines if line.setting == FINISHED.name])


def _finished(page: Page, lines: Sequence[LyingLine]) -> None:
    """Log-loss of the requester's own model in the end."""
    if not lines:
        page.text("With a local finish: not run yet.")
        return
    page.text("Log-loss after a local finish, a fifth of the requester's examples held out for it:")
    columns: tuple[Lie | None, ...] = (None, *FINISHED_LIES)
    rows = []
    for rule in FINISHED_RULES:
        found = [[line.log_loss for line in lines if (line.variant, line.lie) == (rule, lie)] for lie in columns]
        rows.append([_NAMES[rule], *(str(Spread.of(one)) if one else "-" for one in found)])
    page.table(["rule", *("honest" if lie is None else lie.value for lie in columns)], rows)


def _by_rule(
    page: Page,
    lying: Lying,
    lines: Sequence[LyingLine],
    cell: Callable[[Sequence[LyingLine]], str],
    *,
    honest: bool = False,
) -> None:
    columns: tuple[Lie | None, ...] = ((None,) if honest else ()) + lying.lies
    rows = []
    for rule in RULES:
        found = [[line for line in lines if (line.variant, line.lie) == (rule, lie)] for lie in columns]
        rows.append([_NAMES[rule], *(cell(one) if one else "-" for one in found)])
    page.table(["rule", *("honest" if lie is None else lie.value for lie in columns)], rows)


def _cost(spread: Spread) -> str:
    error = "" if spread.error is None else f" ± {spread.error:.2g}"
    return f"{spread.mean:+.2g}{error}"


def _located(page: Page, lines: Sequence[LocatingLine]) -> None:
    rows = []
    for one in LOCATING:
        found = [line for line in lines if line.setting == one.key]
        rows += _rows(one, found) if found else [[f"{one.title}: not run yet", *["-"] * 9]]
    columns = ["updates", "D", "accomplices", "measured rounds", "one round", "with the sum", "all rounds", "true", "x"]
    page.table([*columns, "formula"], rows)


def _rows(one: Locating, lines: Sequence[LocatingLine]) -> list[list[str]]:
    kinds = [(located.colluders, located.points) for located in lines[0].located]
    rows = []
    for kind in kinds:
        found = [located for line in lines for located in line.located if (located.colluders, located.points) == kind]

        def middle(of: Callable[[Located], float], among: Sequence[Located] = found) -> str:
            return f"{median(of(located) for located in among):.3f}"

        how = "" if not kind[0] else f" ({kind[1].value})"
        errors = [middle(lambda x: x.single), middle(lambda x: x.summed), middle(lambda x: x.together)]
        errors += [middle(lambda x: x.true), middle(lambda x: x.offset), middle(lambda x: x.expected)]
        rows.append([one.title, f"{lines[0].parameters:,}", f"{kind[0]}{how}", str(found[0].rounds), *errors])
    return rows
