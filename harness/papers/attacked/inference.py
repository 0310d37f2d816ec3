"""The privacy page's parts about shipped studies: who was trained on, and which classes a site has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from harness.adversaries.inferring.class_mix import guessed
from harness.adversaries.inferring.lines import InferenceLine, Told
from harness.papers.attacked.inference_runs import INFERRED, Inferred
from harness.papers.page import Page
from harness.simulate.charts import Spread

_MEMBERSHIP: Final = (
    "**In the studies that are shipped.** The attacker has the model after every round, every opened average, its own "
    "data and a model trained on them alone. Members are up to 60 records that a contributor trained on, others up to "
    "60 of the same contributor's test part. The figures are the mean over contributors, requesters and seeds, with "
    "the standard error over contributors' runs: the area under the ROC curve (0.5 is chance) and, after it, the "
    "share of members found when one of a hundred others is taken for one (0.01 is chance; with so few others that "
    "is: when none is).\n\n"
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
_READ_WITH_CARE: Final = (
    "Where sites differ by class mix, a distance is nearly that difference, and the requester reads it without "
    "attacking anything. Listed sites see the weights that follow from it. What a distance means otherwise, it means "
    "too: a site with other devices, other patients or wrong labels is as far away."
)


def membership(page: Page, lines: Sequence[InferenceLine], studies: Path) -> None:
    """A table of the shipped studies; what was not run is named."""
    page.text(_MEMBERSHIP)
    page.table(
        ("study", "rule", "rounds", "loss", "reference", "averages"),
        [(one.title, variant, *_membership(found)) for one, variant, found in _shown(lines, studies)],
    )


def class_mix(page: Page, lines: Sequence[InferenceLine], studies: Path) -> None:
    """A table of the shipped studies; what was not run is named."""
    page.heading("Which patients does that site have?")
    page.text(_CLASSES)
    page.table(
        ("study", "rule", "sites", "from distances: explained", "ranked", "from weights: explained", "ranked"),
        [(one.title, variant, *_class_mix(found)) for one, variant, found in _shown(lines, studies)],
    )
    if lines:
        page.text(_READ_WITH_CARE)


def _shown(lines: Sequence[InferenceLine], studies: Path) -> list[tuple[Inferred, str, list[InferenceLine]]]:
    return [(one, variant, _of(lines, one, variant, studies)) for one in INFERRED for variant in one.variants]


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
