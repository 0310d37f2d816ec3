"""The heart disease page: four hospitals, all rules, each hospital as the requester (data as FLamby's)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from client_agent.scoring.score import MetricName, words_of
from harness.papers.page import Page
from harness.papers.tables.against import HOW_TO_READ, against_table
from harness.papers.tables.by_requester import gains, metric_panels, requesters, weight_curves
from harness.papers.tables.by_rule import RuleRow, metric_table
from harness.simulate.charts import Panel, curves_chart, number, similarity_chart
from harness.simulate.run_line import RunLine

CASE: Final = "heart_disease"
LOCAL: Final = "local"
METRICS: Final = (MetricName.ACCURACY, MetricName.LOG_LOSS, MetricName.AUROC)
FLAMBY: Final = {
    "pooled": {"cleveland": 0.783, "hungary": 0.764, "switzerland": 0.750, "va-long-beach": 0.644},
    "FedAvg": {"cleveland": 0.731, "hungary": 0.719, "switzerland": 0.650, "va-long-beach": 0.640},
    "FedAdam": {"cleveland": 0.752, "hungary": 0.746, "switzerland": 0.738, "va-long-beach": 0.667},
    "local": {"cleveland": 0.746, "hungary": 0.746, "switzerland": 0.725, "va-long-beach": 0.702},
}
"""Accuracy (du Terrail et al. 2022)."""
TITLES: Final = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedavg_by_samples": "FedAvg by samples",
    "wfedavg": "WFedAvg",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "multi_krum": "multi-Krum",
    "influence": "Influence",
    "weight_erosion": "Weight Erosion",
    "mallows": "Mallows averaging",
    "shrinkage": "Shrinkage",
    "fedavg_fine_tuned": "FedAvg, last 10 rounds alone",
    "fedavg_finished": "FedAvg, finished alone",
    "mallows_finished": "Mallows averaging, finished alone",
}
DRAWN: Final = ("local", "fedavg", "weight_erosion", "mallows", "fedavg_fine_tuned")
"""More curves than these cannot be told apart in one panel."""


def write(page: Page, runs: Mapping[str, Sequence[RunLine]], data: Path | None) -> None:
    """Tables and plots of the case's lines."""
    lines = tuple(runs.get(CASE, ()))
    if not lines:
        page.text("**Not run yet.**")
        return
    ran = {line.variant for line in lines}
    variants = {name: title for name, title in TITLES.items() if name in ran}
    page.text(
        "Cleveland, Hungary, Switzerland and the VA at Long Beach, 303, 261, 46 and 130 patients; logistic "
        "regression, batch 4, 66 % of each hospital's patients for training, split again for every seed. On the "
        "requester's own test patients after the last round, mean ± standard error over seeds; the best of a column "
        "in bold. Rates and penalties were chosen by accuracy on validation patients, for every rule. [Which rule for"
        " my patients?](clinicians.md) has other runs of these hospitals: all of a site's training patients in each "
        "batch, features whitened, rates chosen by log-loss. So counts differ: a hospital can lose by a rule here and"
        " not there. FLamby's rows are quoted; its split is one fixed one. **Read Switzerland with care:** one of its"
        " 46 patients is healthy, and that one is always in the training part. All its 15 test patients are ill, so "
        "its accuracy and log-loss only say how readily a model says *ill*, and it has no AUROC, nor do the means of "
        "that."
    )
    missing = [title for name, title in TITLES.items() if name not in ran]
    if missing:
        page.text(f"**Not run yet:** {'; '.join(missing)}.")
    for metric in METRICS:
        words = words_of(metric)
        page.heading(words[0].upper() + words[1:])
        metric_table(page, lines, variants, metric, _quoted(lines) if metric is MetricName.ACCURACY else ())
    page.heading("Does it pay to share?")
    page.text(HOW_TO_READ.format(baseline="Local"))
    for metric in METRICS:
        against_table(page, lines, variants, LOCAL, metric)
    page.text(_verdict(lines, variants))
    _figures(page, lines, variants)


def _figures(page: Page, lines: Sequence[RunLine], variants: Mapping[str, str]) -> None:
    drawn = {name: variants[name] for name in DRAWN if name in variants}
    for metric in (MetricName.ACCURACY, MetricName.LOG_LOSS):
        words = f"test {words_of(metric)}"
        chart = curves_chart(metric_panels(lines, drawn, metric), words)
        page.figure(metric.value, chart, f"The requester's {words} over rounds, with bands of one standard error.")
    panels = [
        Panel(f"{requester} asks", weight_curves(lines, "weight_erosion", requester)) for requester in requesters(lines)
    ]
    page.figure("weights", curves_chart(panels, "weight", floor=0.0), "Weights under Weight Erosion.")
    page.heading("How alike the hospitals are")
    page.text("What a requester under Weight Erosion sees anyway: how far each hospital's update lies from its own.")
    caption = "Mean relative distance over rounds and seeds; a row is one requester's view."
    page.figure("similarity", similarity_chart(lines, "weight_erosion", written=True), caption)


def _quoted(lines: Sequence[RunLine]) -> list[RuleRow]:
    """FLamby's rows."""
    return [
        RuleRow(f"*FLamby: {title}*", (), tuple(number(of[name]) if name in of else "" for name in requesters(lines)))
        for title, of in FLAMBY.items()
    ]


def _verdict(lines: Sequence[RunLine], variants: Mapping[str, str]) -> str:
    """A sentence for every hospital and metric: what beats training alone there by more than two standard errors."""
    by_rule = {
        (title, metric): {gain.requester: gain.better for gain in gains(lines, name, LOCAL, metric)}
        for name, title in variants.items()
        if name != LOCAL
        for metric in METRICS
    }
    sentences = []
    for requester in requesters(lines):
        said = []
        for metric in METRICS:
            better = [title for (title, of), found in by_rule.items() if of is metric and found.get(requester)]
            said.append(f"on {words_of(metric)} {', '.join(better) or 'none'}")
        sentences.append(f"- {requester}: rules clearly better than training alone: {'; '.join(said)}.")
    return "\n".join(sentences)
