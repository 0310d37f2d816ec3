"""What the published Titanic FedAvg did, and how near a run with the same mistake comes to its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

from harness.datasets.titanic import SITES
from harness.papers.page import Page
from harness.papers.published import titanic_curve
from harness.simulate.charts import Spread, number, of_variant
from harness.simulate.run_line import RunLine, Values

VARIANT = "fedavg_as_published"


def write(page: Page, lines: Mapping[str, Sequence[RunLine]], data: Path | None) -> None:
    """A table of both splits; nothing where no run has the mistake."""
    rows = [
        _row(of_split, split, user, data)
        for split, of_split in lines.items()
        for user, name in enumerate(SITES[split])
        if of_variant(of_split, VARIANT, name)
    ]
    if not rows:
        return
    page.heading("The published FedAvg")
    page.text(
        "The report's code adds two sites' gradients by Python's `sum(a, b)` where `a + b` was meant: b plus the rows "
        "of a, so that every feature gets the sum of a over all features. Over four sites, no gradient but the last "
        "site's is left, and the requester's row sums count 81 times; its rate, 0.07 where the other rules have 3, was "
        "tuned for that. `fedavg_as_published` repeats it at that rate."
    )
    page.text(
        "Where it ends is mostly chance: after round 30 its accuracy still depends on the initial model and the half "
        "more than on training, and every published number lies in the range of ours. (The .298 of over-35 is 96 of "
        "161 test rows right and a last batch, of one row, wrong: .593 pooled.) What tells the mistake from a right "
        "average is how the curve jumps from round to round, and for whom. The table has the mean size of that change "
        "over rounds 2 to 30: large for the same requesters in the report and here, but for up-to-35-a, and about the "
        "same for all under a right average. For over-35 in AGE_STRICT the one-row batch halves it in the published "
        "measure."
    )
    page.table(
        (
            "requester",
            "published, round 30",
            "row sums, mean (lowest to highest)",
            "published, jump",
            "row sums, jump",
            "FedAvg, jump",
        ),
        rows,
    )


def _row(lines: Sequence[RunLine], split: str, user: int, data: Path | None) -> tuple[str, ...]:
    name = SITES[split][user]
    runs = of_variant(lines, VARIANT, name)
    last = [run.last_accuracy for run in runs]
    published = titanic_curve(data, split, user, "global_fedavg")
    right = of_variant(lines, "fedavg", name)
    return (
        f"{split}, {name}",
        "no data" if published is None else number(published.means[-1]),
        f"{number(mean(last))} ({number(min(last))} to {number(max(last))})",
        "no data" if published is None else number(_jump(published.means)),
        str(Spread.of(_jump(run.test_accuracy) for run in runs)),
        str(Spread.of(_jump(run.test_accuracy) for run in right)) if right else "not run",
    )


def _jump(accuracies: Values | Sequence[float]) -> float:
    """Mean size of the change from a round to the next."""
    known = [value for value in accuracies if value is not None]
    return mean(abs(after - before) for before, after in pairwise(known))
