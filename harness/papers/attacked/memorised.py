"""The privacy page's part about membership in models of several sizes, round by round, with shadow models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from harness.adversaries.inferring.lines import Told
from harness.adversaries.inferring.memorised_lines import MemorisedLine
from harness.adversaries.inferring.shadows import by_shadows
from harness.papers.page import Page
from harness.simulate.charts import Panel, Spread, curve, curves_chart

_INTRODUCTION: Final = (
    "**Where models memorise.** Heart disease, four hospitals that each train on a random half of their patients: who "
    "of the three contributors' 437 patients was inside? The same for a model that cannot memorise (`linear`), one "
    "that begins to (`small`, 32 hidden units) and one that was trained, longer than anybody should, until it had its "
    "training records right (`large`, 128 and 64 hidden units, 400 epochs). *Noise* is on records, at the sites "
    "([protocol, section 19](../protocol.md)), in multiples of a clipped gradient's length; *epsilon* is what it "
    "guarantees a record over the study at delta = 0.001, at the hospital with most records and at the one with "
    "fewest. *By shadows* is LiRA (Carlini et al. 2022): the attacker has fifteen more federations over other halves "
    "of the same patients, which nobody has, and so knows how sure models are of a record that they know; an upper "
    "bound. Cells: area under the ROC curve, and the share of members found when one of a hundred others is taken for "
    "one; .5 and .01 are chance. *Best round*: the opened average of the one round, the same in all seeds, that tells "
    "most, chosen from all of them afterwards."
)
NAMES: Final = {
    "linear_fedavg": "linear, FedAvg",
    "small_fedavg": "small, FedAvg",
    "small_noise_1": "small, FedAvg, noise 1",
    "small_noise_4": "small, FedAvg, noise 4",
    "large_fedavg": "large, FedAvg",
    "large_weight_erosion": "large, Weight Erosion",
    "large_mallows": "large, Mallows",
}
_LESSONS: Final = (
    "What the tables say:\n\n"
    "- **Small models and short studies stay near chance,** for the strongest attacker too: .53 for a linear model by "
    "shadows.\n"
    "- **A model that memorises gives members away.** The large network has nearly all training labels right and "
    "loses 31 points on others; its loss tells 64 of a hundred pairs, shadow models 75, and these find twelve of a "
    "hundred members at one false alarm in a hundred. The gap between accuracy on the training and on the test part "
    "shows it beforehand: stop before it opens.\n"
    "- **The last model tells more than any one average.** Single rounds' averages reach .52 to .58, chosen from "
    "forty afterwards, so a little less when not; all of them together tell about as much as the last model's loss.\n"
    "- **Under Weight Erosion and Mallows averaging the figures are lower,** and so is accuracy on members: a "
    "hospital that loses weight has less part in the model, and so have its patients.\n"
    "- **Noise on records takes the small network back to what a linear model tells.** At noise 4 (epsilon 5 to 19, "
    "by hospital) shadow models tell 54 of a hundred pairs instead of 64 and find two of a hundred members instead of "
    "five; at noise 1, whose epsilon of 50 to 260 promises nothing, they tell 58. Accuracy on others is no lower for "
    "it here, as the network had too many epochs: noise stops it from memorising.\n"
    "- **A loss alone never finds a few for sure:** the most certain records are easy ones, inside or not, so its "
    "rate at one false alarm in a hundred is 0 to 1 %."
)


def write(page: Page, lines: Sequence[MemorisedLine]) -> None:
    """A table and two figures; what has not run is named."""
    page.text(_INTRODUCTION)
    if not lines:
        page.text("**Not run yet:** 0 runs.")
        return
    columns = (
        "model", "parameters", "epsilon", "rounds", "accuracy on members", "on others", "last model: by loss",
        "by shadows", "averages: best round", "all rounds",
    )  # fmt: skip
    page.table(columns, [_row(name, of_variant(lines, key)) for key, name in NAMES.items()])
    _figures(page, lines)
    page.text(_LESSONS)


def of_variant(lines: Sequence[MemorisedLine], variant: str) -> list[MemorisedLine]:
    """The seeds of one model and rule."""
    return [line for line in lines if line.variant == variant]


def shadowed(lines: Sequence[MemorisedLine]) -> tuple[Told, ...]:
    """Every seed attacked with the others as shadows; nothing where there are fewer than three."""
    if len(lines) < 3:
        return ()
    return by_shadows([np.array(one.confidence) for one in lines], [np.array(one.members) for one in lines])


def cell(found: Sequence[Told]) -> str:
    """Area and rate, mean and standard error over seeds."""
    if not found:
        return "not run"
    return f"{Spread.of(one.auc for one in found)}, {Spread.of(one.at_one_percent for one in found)}"


def _row(name: str, lines: Sequence[MemorisedLine]) -> tuple[str, ...]:
    if not lines:
        return (name, "not run", *[""] * 8)
    return (
        name,
        f"{lines[0].parameters:,}",
        _epsilon(lines),
        f"{np.mean([line.released for line in lines]):.0f}",
        str(Spread.of(line.known for line in lines)),
        str(Spread.of(line.unknown for line in lines)),
        cell([line.by_loss[-1] for line in lines]),
        cell(shadowed(lines)),
        cell(best_round(lines)),
        cell([line.by_averages for line in lines if line.by_averages is not None]),
    )


def _epsilon(lines: Sequence[MemorisedLine]) -> str:
    """From the best protected hospital to the worst, over seeds."""
    found = [value for line in lines for value in line.epsilon.values()]
    return f"{min(found):.3g} to {max(found):.3g}" if found else "none"


def best_round(lines: Sequence[MemorisedLine]) -> list[Told]:
    """Of the opened averages that all seeds have, the one that tells most in the mean."""
    shared = min(len(line.by_average) for line in lines)
    if not shared:
        return []
    means = [np.mean([line.by_average[place].auc for line in lines]) for place in range(shared)]
    return [line.by_average[int(np.argmax(means))] for line in lines]


def _figures(page: Page, lines: Sequence[MemorisedLine]) -> None:
    after, averages = [], []
    for key, name in NAMES.items():
        found = of_variant(lines, key)
        if found:
            after.append(curve(name, [tuple(one.auc for one in line.by_loss) for line in found]))
            averages.append(curve(name, [tuple(one.auc for one in line.by_average) for line in found]))
    panels = (
        Panel("the model after every round, by loss", tuple(after)),
        Panel("every opened average", tuple(averages)),
    )
    caption = (
        "How well members are told from others, round by round: area under the ROC curve, mean and standard error over "
        "sixteen seeds; .5 is chance. Under Mallows averaging rounds that measure leave the model as it is."
    )
    page.figure("membership", curves_chart(panels, "area under the curve"), caption)
