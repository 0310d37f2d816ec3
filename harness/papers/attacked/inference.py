"""The inference page: who was trained on, and which classes a site has, from what everybody in a study has anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.adversaries.inferring.class_mix import guessed
from harness.adversaries.inferring.lines import InferenceLine, Told
from harness.papers.attacked.inference_runs import INFERRED, Inferred, recorded, run_missing
from harness.papers.making import Making
from harness.papers.page import Page
from harness.simulation.drawing.spread import Spread

_INTRODUCTION: Final = (
    "[What sums give away](privacy.md) is about updates. This page is about two questions that a data protection "
    "officer asks instead: can somebody tell **that a patient's record was trained on**, and what do weights and "
    "distances tell **about a site's patients as a whole**? The attacker is the requester, which has the model after "
    "every round, every opened average, its own data and a model trained on them alone, and under Weight Erosion the "
    "distances; a listed site has all of that but the distances."
)
_MEMBERSHIP: Final = (
    "Members are up to 60 records that a contributor trained on, others up to 60 of the same contributor's test part. "
    "The figures are the mean over contributors, requesters and seeds, with the standard error over contributors' "
    "runs: the area under the ROC curve (0.5 is chance) and, after it, the share of members found when one of a "
    "hundred others is taken for one (0.01 is chance; with so few others that is: when none is).\n\n"
    "- `loss`: a record with a small loss was trained on (Yeom et al. 2018).\n"
    "- `reference`: a smaller loss than under the requester's own model, which never saw it (Watson et al. 2022).\n"
    "- `averages`: how much of the record's gradient is in the opened averages, over all rounds (Nasr et al. 2019)."
)
_CLASSES: Final = (
    "How far a site's class shares are from the requester's (half the sum of absolute differences: 0 alike, 1 nothing "
    "in common), guessed from one number of that site by a line that was fitted to the other seeds' federations, of "
    "which the guesser knows everything. *Explained*: the part of the variance that the guesses explain (0: no better "
    "than guessing the mean, below 0: worse). *Ranked*: Spearman's correlation of the number with the truth."
)
_LESSONS: Final = (
    "**Read with care.** Linear models and small networks over few rounds memorise little, so that membership is near "
    "chance here says nothing about large networks trained to the end; whoever needs a bound needs differential "
    "privacy, which is not built. Distances and weights are another matter: where sites differ by class mix, a "
    "distance is nearly that difference, and the requester reads it without attacking anything. Listed sites see the "
    "weights that follow from it. What a distance means otherwise, it means too: a site with other devices, other "
    "patients or wrong labels is as far away."
)


@dataclass(frozen=True)
class InferencePage:
    """Runs, infers and writes; see :class:`harness.papers.build.PageSpec`."""

    name: str
    title: str
    studies: Path

    def run_missing(self, making: Making) -> None:
        """Every run that is not there yet; one process. Raises: ConfigurationError"""
        for one in INFERRED:
            making.get_data(one.read(self.studies).table.data)
        run_missing(self.studies, making.runs, making.data, making.tell)

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """The page from the recorded lines. Returns the file."""
        page = Page(out / f"{self.name}.md", self.title)
        write(page, recorded(runs), self.studies)
        page.write()
        return page.path


def write(page: Page, lines: Sequence[InferenceLine], studies: Path) -> None:
    """Everything; what was not run is named."""
    page.text(_INTRODUCTION)
    if not lines:
        page.text("**Not run yet:** 0 runs.")
        return
    shown = [(one, variant, _of(lines, one, variant, studies)) for one in INFERRED for variant in one.variants]
    page.heading("Was this patient trained on?")
    page.text(_MEMBERSHIP)
    page.table(
        ("study", "rule", "rounds", "loss", "reference", "averages"),
        [(one.title, variant, *_membership(found)) for one, variant, found in shown],
    )
    page.heading("Which patients does that site have?")
    page.text(_CLASSES)
    page.table(
        ("study", "rule", "sites", "from distances: explained", "ranked", "from weights: explained", "ranked"),
        [(one.title, variant, *_class_mix(found)) for one, variant, found in shown],
    )
    page.text(_LESSONS)
    page.heading("How this page was made")
    seeds = sorted({line.seed for line in lines})
    page.text(
        "```sh\nmoiety results --only inference\n```\n\n"
        f"{len({line.key for line in lines})} studies, seeds {', '.join(map(str, seeds)) or 'none'}."
    )


def _of(lines: Sequence[InferenceLine], one: Inferred, variant: str, studies: Path) -> list[InferenceLine]:
    name = one.read(studies).name
    return [line for line in lines if (line.study, line.variant) == (name, variant)]


def _membership(lines: Sequence[InferenceLine]) -> tuple[str, ...]:
    if not lines:
        return ("not run", "", "", "")
    rounds = f"{sum(line.released for line in lines) / len(lines):.0f}"
    return (
        rounds,
        _told(lines, lambda line: line.by_loss),
        _told(lines, lambda line: line.by_reference),
        _told(lines, lambda line: line.by_averages),
    )


def _told(lines: Sequence[InferenceLine], of: Callable[[InferenceLine], Told | None]) -> str:
    found = [told for line in lines if (told := of(line)) is not None]
    if not found:
        return "nothing opened"
    return f"{Spread.of(one.auc for one in found)}, {Spread.of(one.at_one_percent for one in found)}"


def _class_mix(lines: Sequence[InferenceLine]) -> tuple[str, ...]:
    if not lines:
        return ("not run", "", "", "", "")
    cells = [str(len(lines))]
    for number in ("distance", "weight"):
        found = guessed(lines, number)
        cells += ["nothing to see", ""] if found is None else [f"{found.explained:.2f}", f"{found.ranked:+.2f}"]
    return tuple(cells)
