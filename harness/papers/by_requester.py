"""Tables of a case in which every site is the requester in turn: a row a requester, a column a variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from harness.papers.page import Page
from harness.simulation.drawing.charts import Panel
from harness.simulation.drawing.spread import Curve, Spread, curve, of_variant
from harness.simulation.runs import RunLine

Lines = Sequence[RunLine]


def requesters(lines: Lines) -> tuple[str, ...]:
    """In the order of their names."""
    return tuple(sorted({line.requester for line in lines}))


def accuracy(lines: Lines, variant: str, requester: str | None = None) -> Spread | None:
    """Test accuracy after the last round over seeds; over requesters too where none is given."""
    runs = of_variant(lines, variant, requester)
    return Spread.of(run.last_accuracy for run in runs) if runs else None


def over_requesters(lines: Lines, variant: str) -> Spread | None:
    """Mean over requesters, the standard error over seeds: every seed's mean over requesters is one value.

    Seeds that lack a requester are left out.
    """
    found = requesters(lines)
    by_seed = [
        [run.last_accuracy for run in of_variant(lines, variant) if run.seed == seed]
        for seed in sorted({line.seed for line in lines})
    ]
    values = [mean(accuracies) for accuracies in by_seed if len(accuracies) == len(found)]
    return Spread.of(values) if values else None


def accuracy_table(
    page: Page,
    lines: Lines,
    variants: Mapping[str, str],
    published: Callable[[str], Sequence[str]] | None = None,
    published_columns: Sequence[str] = (),
) -> None:
    """``variants`` maps a variant to its column; ``published`` gives a requester's quoted cells. Best one in bold."""
    rows = []
    for requester in requesters(lines):
        cells = [accuracy(lines, variant, requester) for variant in variants]
        quoted = published(requester) if published else ()
        rows.append((requester, *_shown(cells), *quoted))
    means = [over_requesters(lines, variant) for variant in variants]
    rows.append(("mean", *_shown(means), *("" for _ in published_columns)))
    page.table(("requester", *variants.values(), *published_columns), rows)


def gains(lines: Lines, variant: str, baseline: str) -> tuple[tuple[str, Spread], ...]:
    """Per requester, the variant's accuracy less the baseline's with the same seed: paired, so the split cancels."""
    found = []
    for requester in requesters(lines):
        base = {run.seed: run.last_accuracy for run in of_variant(lines, baseline, requester)}
        apart = [
            run.last_accuracy - base[run.seed] for run in of_variant(lines, variant, requester) if run.seed in base
        ]
        if apart:
            found.append((requester, Spread.of(apart)))
    return tuple(found)


def accuracy_panels(lines: Lines, variants: Mapping[str, str]) -> tuple[Panel, ...]:
    """Accuracy over rounds, one panel a requester."""
    return tuple(
        Panel(
            requester,
            tuple(
                curve(title, [run.test_accuracy for run in runs])
                for variant, title in variants.items()
                if (runs := of_variant(lines, variant, requester))
            ),
        )
        for requester in requesters(lines)
    )


def weight_curves(lines: Lines, variant: str, requester: str) -> tuple[Curve, ...]:
    """Every contributor's weight over rounds, mean over seeds."""
    runs = of_variant(lines, variant, requester)
    sites = sorted({site for run in runs for site in run.alpha})
    return tuple(curve(site, [run.alpha[site] for run in runs if site in run.alpha]) for site in sites)


def signed(spread: Spread) -> str:
    """+.012 ± .003, bold where it is further than two standard errors from nothing."""
    error = "" if spread.error is None else f" ± {spread.error:.3f}"
    text = f"{spread.mean:+.3f}{error}"
    return f"**{text}**" if spread.error is not None and abs(spread.mean) > 2 * spread.error else text


def _shown(cells: Sequence[Spread | None]) -> tuple[str, ...]:
    best = max((cell.mean for cell in cells if cell is not None), default=None)
    return tuple("not run" if cell is None else f"**{cell}**" if cell.mean == best else str(cell) for cell in cells)
