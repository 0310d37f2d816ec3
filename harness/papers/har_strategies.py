"""The HAR strategies page: four splits, five strategies (Cerasti et al. 2023), and what protection costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.engine.history import RoundKind
from harness.papers.page import Page
from harness.simulate.charts import Curve, Panel, Spread, curve, curves_chart, heatmap_chart, of_variant
from harness.simulate.run_line import RunLine, Values
from protocol.ckks.ciphertext import Kind, body_bytes
from protocol.ckks.parameters import CkksParameters

SPLITS: Final = ("random", "majority_even", "majority", "pick_two")
STRATEGIES: Final = {
    "fedavg": "FedAvg",
    "wfedavg": "WFedAvg",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
}
ADAPTIVE: Final = ("fedadagrad", "fedadam", "fedyogi")
TUNED: Final = {f"{name}_tuned": f"{title}, tuned" for name, title in STRATEGIES.items()}
ACTIVITIES: Final = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
PROTECTIONS: Final = {"": "none", "_secure": "shares", "_ckks": "CKKS"}
DIMENSION: Final = 561 * 64 + 64 + 64 * 6 + 6
CLOSE: Final = 0.01
"""A strategy has arrived when it is this close to the best mean accuracy of any."""


def write(page: Page, runs: Mapping[str, Sequence[RunLine]], data: Path | None) -> None:
    """``runs`` maps ``har_strategies_<split>`` (and the same with ``_secure``, ``_ckks``) to its lines."""
    page.text(
        "10,299 windows of 30 people's movements over eight sites: at random; one majority activity per site, sites of "
        "one size (majority_even) and of several (majority); two activities per site (pick_two). Tested on the nine "
        "official test people. Mean ± standard error over seeds. The paper gives its results in words: FedAvg and "
        "WFedAvg alike, FedYogi a little later, FedAdam and FedAdagrad worse unless tuned, homomorphic encryption "
        "slower. Tuned: the best of six settings for every strategy, chosen on validation rows of the training people "
        "over two seeds that are not the results'. A tuned row can be the worse one: the people tested on are others."
    )
    found = {split: tuple(runs.get(f"har_strategies_{split}", ())) for split in SPLITS}
    missing = [split for split, lines in found.items() if not lines]
    if missing:
        page.text(f"**Not run yet:** {', '.join(missing)}.")
    done = {split: lines for split, lines in found.items() if lines}
    if not done:
        return
    strategies = _strategies(done)
    page.heading("Accuracy after the last round")
    page.table(("strategy", *done), [(title, *_cells(done, name)) for name, title in strategies.items()])
    page.text("\n".join(_against_fedavg(done)))
    page.heading("How soon")
    page.text(f"The first round in which the mean accuracy is within {CLOSE:g} of the split's best last round.")
    page.table(("strategy", *done), [(title, *_rounds_needed(done, name)) for name, title in strategies.items()])
    panels = [Panel(split, _curves(lines, ""), _curves(lines, "_tuned"), "tuned") for split, lines in done.items()]
    page.figure("accuracy", curves_chart(panels, "accuracy"), "Accuracy over rounds; solid untuned, dashed tuned.")
    page.heading("By activity")
    for split, lines in done.items():
        table, names = _by_class(lines, strategies)
        page.figure(
            f"{split}_classes",
            heatmap_chart(table, names, ACTIVITIES, "accuracy"),
            f"{split}: accuracy within each activity after the last round, mean over seeds.",
        )
    _protection(page, runs)


def _strategies(done: Mapping[str, Sequence[RunLine]]) -> dict[str, str]:
    there = {line.variant for lines in done.values() for line in lines}
    return {name: title for name, title in {**STRATEGIES, **TUNED}.items() if name in there}


def _cells(done: Mapping[str, Sequence[RunLine]], variant: str) -> list[str]:
    return [str(_last(lines, variant) or "not run") for lines in done.values()]


def _last(lines: Sequence[RunLine], variant: str) -> Spread | None:
    runs = of_variant(lines, variant)
    return Spread.of(run.last_accuracy for run in runs) if runs else None


def _curves(lines: Sequence[RunLine], suffix: str) -> tuple[Curve, ...]:
    """One a strategy that ran, of the untuned or the tuned ones."""
    found = ((title, of_variant(lines, f"{name}{suffix}")) for name, title in STRATEGIES.items())
    return tuple(curve(title, [_updates(run) for run in runs]) for title, runs in found if runs)


def _updates(run: RunLine) -> Values:
    """The accuracies after rounds of updates; WFedAvg's round of class counts comes before the first."""
    return tuple(value for value, kind in zip(run.test_accuracy, run.kind, strict=True) if kind != RoundKind.COUNTED)


def _against_fedavg(done: Mapping[str, Sequence[RunLine]]) -> list[str]:
    """Each strategy's last round less FedAvg's, tuned against tuned, averaged over the splits that have both."""
    sentences = []
    for suffix, how in (("", "untuned"), ("_tuned", "tuned")):
        for name in ("wfedavg", *ADAPTIVE):
            pairs = [(_last(lines, f"{name}{suffix}"), _last(lines, f"fedavg{suffix}")) for lines in done.values()]
            apart = [ours.mean - base.mean for ours, base in pairs if ours is not None and base is not None]
            if apart:
                sentences.append(
                    f"- {STRATEGIES[name]} less FedAvg, both {how}, mean over {len(apart)} splits: {mean(apart):+.3f}."
                )
    return sentences


def _rounds_needed(done: Mapping[str, Sequence[RunLine]], variant: str) -> list[str]:
    cells = []
    for lines in done.values():
        if not of_variant(lines, variant):
            cells.append("not run")
            continue
        lasts = [spread.mean for name in _strategies(done) if (spread := _last(lines, name)) is not None]
        means = curve("", [_updates(run) for run in of_variant(lines, variant)]).means
        reached = [place for place, value in enumerate(means, 1) if value >= max(lasts) - CLOSE]
        cells.append(str(reached[0]) if reached else "never")
    return cells


def _by_class(lines: Sequence[RunLine], strategies: Mapping[str, str]) -> tuple[NDArray[np.float64], list[str]]:
    """Strategies by activities: the last round's accuracy within each class."""
    rows, names = [], []
    for name, title in strategies.items():
        lasts = [run.class_accuracy[-1] for run in of_variant(lines, name) if run.class_accuracy]
        if lasts:
            rows.append([_mean(values) for values in zip(*lasts, strict=True)])
            names.append(title)
    return np.array(rows, dtype=np.float64), names


def _mean(values: Sequence[float | None]) -> float:
    there = [value for value in values if value is not None]
    return mean(there) if there else math.nan


def _protection(page: Page, runs: Mapping[str, Sequence[RunLine]]) -> None:
    """FedAvg and WFedAvg in the open, on shares and under CKKS: the same accuracy, and what it takes."""
    page.heading("With and without protection")
    rows = [
        (f"{split}, {STRATEGIES[name]}, {title}", f"{line.last_accuracy:.4f}", f"{_seconds_a_round(line):.2f}")
        for split in SPLITS
        for name in ("fedavg", "wfedavg")
        for suffix, title in PROTECTIONS.items()
        for line in of_variant(runs.get(f"har_strategies_{split}{suffix}", ()), name)
        if line.seed == 0
    ]
    if not rows:
        page.text("**Not run yet.**")
        return
    shares, sent, summed = 8 * DIMENSION, *(body_bytes(CkksParameters(), kind, DIMENSION) for kind in Kind)
    page.text(
        "Seed 0. Seconds are of one core of one process that does the work of all eight sites and both servers, "
        f"training included. A model of {DIMENSION:,} parameters: on shares a site sends and receives "
        f"{shares / 1e3:.0f} kB per round; under CKKS it sends {sent / 1e3:.0f} kB and receives {summed / 1e3:.0f} kB "
        "([measured with everything around it](../benchmarks.md)). In the open it would be four bytes per parameter: "
        f"{DIMENSION * 4 / 1e3:.0f} kB."
    )
    page.table(("split, strategy, protection", "accuracy", "seconds per round"), rows)


def _seconds_a_round(line: RunLine) -> float:
    return line.seconds / max(1, len(line.test_accuracy))
