"""The privacy page: what everybody can still infer, in plain words and figures first, then part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.adversaries.inverting.targets import TARGETS
from harness.papers.attacked import (
    bound_cost,
    differenced,
    differenced_runs,
    inference,
    inference_runs,
    memorised,
    memorised_runs,
    records,
    records_runs,
    sums_runs,
)
from harness.papers.attacked.plain_words import Measured, write_plain_words
from harness.papers.making import Making
from harness.papers.page import Page
from harness.simulation.case import read_case
from harness.simulation.runs import RunLine

_MEMBERSHIP: Final = "Was this patient trained on?"
_NOT_MEASURED: Final = (
    "- **Attackers that write.** A site that poisons or lies is on [robustness](robustness.md); a requester that "
    "chooses what it asks, a server that falsifies ([what it learns](leak.md)), a network that meddles are attacks "
    "that anybody can run: `moiety attack --list`, and [the threat model](../threat_model.md) says what holds.\n"
    "- **Large networks.** Nothing here is larger than 11,000 parameters but MNIST's networks in the part on records. "
    "A network that is trained to the end on few patients knows them better than the largest one here.\n"
    "- **Noise against these attacks, beyond small networks.** Noise on records was held against inversion for the "
    "MLPs of heart disease and digits, against membership for the small network of heart disease and for [a linear "
    "model of digits](differential_privacy.md); not for the large network, convolutions or MNIST.\n"
    "- **Several studies over the same patients** add up for models and averages as rounds do; sites' memory of sums "
    "goes over studies, that of what a model tells does not."
)


@dataclass(frozen=True)
class PrivacyPage:
    """Runs, attacks and writes; see :class:`harness.papers.build.PageSpec`."""

    name: str
    title: str
    studies: Path

    def run_missing(self, making: Making) -> None:
        """Every run that is not there yet; one process. Raises: ConfigurationError"""
        for name in sorted(self._data()):
            making.get_data(name)
        records_runs.run_missing(making.runs, making.data, making.tell)
        memorised_runs.run_missing(self.studies, making.runs, making.data, making.tell)
        inference_runs.run_missing(self.studies, making.runs, making.data, making.tell)
        differenced_runs.run_missing(self.studies, making.runs, making.data, making.tell)
        sums_runs.run_missing(self.studies, making.runs, making.data, making.tell)

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """The page from the recorded lines. Returns the file."""
        page = Page(out / f"{self.name}.md", self.title)
        write(page, recorded(runs), self.studies, bound_cost.recorded(runs))
        page.write()
        return page.path

    def _data(self) -> set[str]:
        cases = [memorised_runs.CASE, *(one.case for one in differenced_runs.DIFFERENCED)]
        cases += [one.case for one in (*inference_runs.INFERRED, *sums_runs.SHIPPED, *sums_runs.LINEAR)]
        return {read_case(self.studies / f"{case}.toml").table.data for case in cases} | {
            target.data for target in TARGETS
        }


def recorded(runs: Path) -> Measured:
    """All lines that are there."""
    return Measured(
        records_runs.recorded(runs),
        memorised_runs.recorded(runs),
        inference_runs.recorded(runs),
        differenced_runs.recorded(runs),
        sums_runs.recorded(runs),
    )


def write(page: Page, measured: Measured, studies: Path, noised: Mapping[str, Sequence[RunLine]]) -> None:
    """Everything; what was not run is named. ``noised`` are the runs of the page on noise, by case."""
    write_plain_words(page, measured, studies)
    records.write(page, measured.records)
    page.heading(_MEMBERSHIP)
    inference.membership(page, measured.inferred, studies)
    memorised.write(page, measured.memorised)
    inference.class_mix(page, measured.inferred, studies)
    differenced.write(page, measured.differenced, measured.attacked, studies)
    bound_cost.write(page, noised)
    page.heading("What is not measured here")
    page.text(_NOT_MEASURED)
    page.heading("How this page was made")
    _made(page, measured)


def _made(page: Page, measured: Measured) -> None:
    seconds = sum(
        sum(line.seconds for line in lines)
        for lines in (measured.records, measured.memorised, measured.differenced, measured.attacked)
    ) + sum(line.seconds for line in measured.inferred)
    found = [line.versions for lines in (measured.records, measured.memorised, measured.attacked) for line in lines]
    versions = sorted({f"{name} {version}" for one in found for name, version in one.items()})
    page.text(
        "```sh\n"
        "moiety results --only differential_privacy,sums,privacy --data DATA\n"
        "```\n\n"
        f"{len(measured.records)} averages that were inverted, {len(measured.memorised)} studies over halves of their "
        f"patients, {len({line.key for line in measured.inferred})} of the shipped studies, "
        f"{len(measured.differenced)} of two sums, {len(measured.attacked)} of many; {seconds / 3600:.1f} hours of one "
        f"core. Every line is in `results-out/privacy` and `results-out/inference`. {', '.join(versions)}."
    )
