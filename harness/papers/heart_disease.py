"""The heart disease page: four hospitals, all rules, each hospital as the requester (data as FLamby's)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from harness.papers.by_requester import (
    accuracy_panels,
    accuracy_table,
    gains,
    requesters,
    signed,
    weight_curves,
)
from harness.papers.page import Page
from harness.simulation.drawing.charts import Panel, curves_chart
from harness.simulation.drawing.similarity import similarity_chart
from harness.simulation.drawing.spread import Spread, number
from harness.simulation.runs import RunLine

CASE: Final = "heart_disease"
LOCAL: Final = "local"
FLAMBY: Final = {
    "cleveland": (0.783, 0.731, 0.752, 0.746),
    "hungary": (0.764, 0.719, 0.746, 0.746),
    "switzerland": (0.750, 0.650, 0.738, 0.725),
    "va-long-beach": (0.644, 0.640, 0.667, 0.702),
}
"""Pooled, FedAvg, FedAdam, local (du Terrail et al. 2022)."""
TITLES: Final = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedavg_by_samples": "by samples",
    "wfedavg": "WFedAvg",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "multi_krum": "multi-Krum",
    "influence": "Influence",
    "weight_erosion": "Weight Erosion",
    "fedavg_fine_tuned": "FedAvg, fine-tuned",
}


def write(page: Page, runs: Mapping[str, Sequence[RunLine]], data: Path | None) -> None:
    """Tables and plots of the case's lines."""
    lines = tuple(runs.get(CASE, ()))
    if not lines:
        page.text("**Not run yet.**")
        return
    variants = {name: title for name, title in TITLES.items() if any(line.variant == name for line in lines)}
    page.text(
        "Cleveland, Hungary, Switzerland and the VA at Long Beach, 303, 261, 46 and 130 patients; logistic regression, "
        "batch 4, 66 % of each hospital's patients for training, split again for every seed. Accuracy on the "
        "requester's own test patients, mean ± standard error over seeds; the best of a row in bold. The quoted "
        "columns are FLamby's, whose split is one fixed one."
    )
    page.heading("Accuracy")
    accuracy_table(page, lines, variants, _flamby, ("FLamby: pooled", "FedAvg", "FedAdam", "local"))
    page.heading("Does it pay to share?")
    page.text(
        "Accuracy less that of training alone, same seed against same seed; bold where it is more than two standard "
        "errors from nothing. Negative: the hospital does better alone."
    )
    shared = [name for name in variants if name != LOCAL]
    by_rule = {name: dict(gains(lines, name, LOCAL)) for name in shared}
    page.table(
        ("rule", *requesters(lines)),
        [
            (variants[name], *(signed(found[r]) if r in found else "not run" for r in requesters(lines)))
            for name, found in by_rule.items()
        ],
    )
    page.text(_verdict(by_rule, variants, requesters(lines)))
    page.figure("accuracy", curves_chart(accuracy_panels(lines, variants), "accuracy"), "Accuracy over rounds.")
    panels = [
        Panel(f"requester {requester}", weight_curves(lines, "weight_erosion", requester))
        for requester in requesters(lines)
    ]
    page.figure("weights", curves_chart(panels, "weight", floor=0.0), "Weights under Weight Erosion.")
    page.heading("How alike the hospitals are")
    page.text("What a requester under Weight Erosion sees anyway: how far each hospital's update lies from its own.")
    caption = "Mean relative distance over rounds and seeds; a row is one requester's view."
    page.figure("similarity", similarity_chart(lines, "weight_erosion"), caption)


def _flamby(requester: str) -> tuple[str, ...]:
    return tuple(number(value) for value in FLAMBY[requester]) if requester in FLAMBY else ("",) * 4


def _verdict(by_rule: Mapping[str, Mapping[str, Spread]], variants: Mapping[str, str], names: Sequence[str]) -> str:
    """A sentence for every hospital: what beats training alone there by more than two standard errors."""
    sentences = []
    for name in names:
        better = [
            variants[rule]
            for rule, found in by_rule.items()
            if (gain := found.get(name)) is not None and gain.clearly_positive
        ]
        said = ", ".join(better) or "none"
        sentences.append(f"- {name}: rules clearly better than training alone: {said}.")
    return "\n".join(sentences)
