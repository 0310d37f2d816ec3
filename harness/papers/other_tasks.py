"""The pages of other tasks than classes: survival and regression, every site as the requester."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.scoring.score import MetricName, words_of
from harness.papers.page import Page
from harness.papers.tables.against import HOW_TO_READ, against_table, signed
from harness.papers.tables.by_requester import Gain, gains, metric_panels, requesters, weight_curves
from harness.papers.tables.by_rule import metric_table
from harness.simulate.charts import Panel, curves_chart
from harness.simulate.run_line import RunLine

LOCAL: Final = "local"
VARIANTS: Final = {"local": "Local", "fedavg": "FedAvg", "weight_erosion": "Weight Erosion"}
SHARED: Final = ("fedavg", "weight_erosion")


@dataclass(frozen=True)
class TaskPage:
    """A case whose sites are the requester in turn; ``metrics`` the one first that is drawn over rounds."""

    case: str
    about: str
    metrics: tuple[MetricName, ...]
    honest: str

    def write(self, page: Page, runs: Mapping[str, Sequence[RunLine]], data: Path | None) -> None:
        """Per metric a table and the differences to training alone; then the curves and the weights."""
        lines = tuple(runs.get(self.case, ()))
        page.text(self.about)
        if not lines:
            page.text("**Not run yet.**")
            return
        for metric in self.metrics:
            words = words_of(metric)
            page.heading(words[0].upper() + words[1:])
            metric_table(page, lines, VARIANTS, metric)
        page.heading("Does it pay to share?")
        page.text(HOW_TO_READ.format(baseline="Local"))
        for metric in self.metrics:
            against_table(page, lines, VARIANTS, LOCAL, metric)
        page.text("\n".join((*self._verdicts(lines), f"- {self.honest}", *_alone(lines))))
        first = self.metrics[0]
        words = f"test {words_of(first)}"
        chart = curves_chart(metric_panels(lines, VARIANTS, first), words)
        page.figure(first.value, chart, f"The requester's {words} over rounds, with bands of one standard error.")
        panels = [Panel(f"{name} asks", weight_curves(lines, "weight_erosion", name)) for name in requesters(lines)]
        page.figure("weights", curves_chart(panels, "weight", floor=0.0), "Weights under Weight Erosion.")

    def _verdicts(self, lines: Sequence[RunLine]) -> list[str]:
        """What the first metric says of each rule, and of the paper's rule against plain averaging."""
        first, sentences = self.metrics[0], []
        for name in SHARED:
            found = gains(lines, name, LOCAL, first)
            sentences.append(f"- {VARIANTS[name]} against training alone, {words_of(first)}: {_said(found)}.")
        found = gains(lines, "weight_erosion", "fedavg", first)
        sentences.append(f"- Weight Erosion against FedAvg, {words_of(first)}: {_said(found)}.")
        return sentences


def _said(found: Sequence[Gain]) -> str:
    """Who is better off, and who is not."""
    groups = {
        "clearly better for": [gain for gain in found if gain.better],
        "clearly worse for": [gain for gain in found if gain.worse],
        "no clear difference for": [gain for gain in found if not gain.better and not gain.worse],
    }
    said = [
        f"{words} {', '.join(f'{gain.requester} ({signed(gain.difference)})' for gain in group)}"
        for words, group in groups.items()
        if group
    ]
    return "; ".join(said) or "not run"


def _alone(lines: Sequence[RunLine]) -> list[str]:
    """Whose sharing ended before the last round, since a site's policy asks for more than the weights leave."""
    found = [line for line in lines if line.variant == "weight_erosion"]
    ended = [line for line in found if line.end == "local_only"]
    if not ended:
        return []
    who = ", ".join(sorted({line.requester for line in ended}))
    return [
        f"- In {len(ended)} of {len(found)} runs Weight Erosion went on alone before the last round, because the "
        f"weights no longer hid a single update as well as every site demands: {who}."
    ]


SURVIVAL: Final = TaskPage(
    "survival",
    "Recurrence-free survival of 686 women with breast cancer (GBSG-2) over five hospitals that see different stages; "
    "each is the requester in turn, with 40 % of its patients for training and 45 % for testing, while the others "
    "train on 80 % of theirs. A linear Cox model, 9 features, Efron ties, 20 rounds, risk sets within a hospital. "
    "Mean ± standard error over seeds, each with its own division of the women over hospitals and parts; the best of "
    "a column in bold. Rates and penalties are round numbers and the same for all rules: nothing was tuned. The "
    "C-index is Harrell's: .5 is chance. The integrated Brier score is of survival curves over Breslow's baseline "
    "hazard of the requester's own training part, whatever the rule.",
    (MetricName.C_INDEX, MetricName.INTEGRATED_BRIER),
    "The hospitals are made by us from one trial, by number of positive nodes: the coefficients are about the same "
    "everywhere, which is the case in which plain averaging should do best.",
)
REGRESSION: Final = TaskPage(
    "regression",
    "Progression of diabetes after a year, 442 patients over five practices whose patients differ in age; each is the "
    "requester in turn, with 40 % of its patients for training and 45 % for testing, while the others train on 80 % "
    "of theirs. A linear model under the squared loss, 10 features, batch 32, 20 rounds. RMSE in units of 75 points "
    "of the score. Mean ± standard error over seeds, each with its own division of the patients over practices and "
    "parts; the best of a column in bold. Rates and penalties are round numbers and the same for all rules: nothing "
    "was tuned.",
    (MetricName.RMSE, MetricName.R2),
    "The practices are made by us from one study, by age: no practice has another law than the others, only other "
    "patients and few of them.",
)
