"""What poisoners reach under each rule, by kind and number: sections of the robustness page."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from harness.adversaries.poisoning.lines import PoisonedLine
from harness.adversaries.poisoning.poisons import Poison
from harness.papers.charts import Matrix, matrices_chart
from harness.papers.page import Page
from harness.papers.robustness.poisoning_runs import ALONE, CASES, POISONERS
from harness.simulate.case import read_case
from harness.simulate.charts import Spread

_SITES: Final = 10
_INTRODUCTION: Final = (
    "What is the requester's model worth if some of the other sites send what they like? Ten sites with handwritten "
    "digits (bundled with scikit-learn), twice: *sites that differ* see three of the ten classes each, neighbours two "
    "of the same, far sites none, so honest updates differ much, as hospitals' do; *sites that are alike* see all of "
    "them. One, two or four of the nine contributors poison, together "
    "and knowing every honest contributor's update of the round, which is more than any site ever sees here: the "
    "figures are upper bounds for such attackers; the last two know the rule and the requester's own update besides. "
    "Accuracy is the requester's on its own test part, after 20 rounds; "
    "rates were chosen without a poisoner, and nothing was chosen by what an attack reached."
)
_POISONS: Final = {
    Poison.SIGN_FLIP: "sends its update turned around",
    Poison.SCALED: "turned around and three clip norms long, which the range check lets through in nearly every round",
    Poison.NOISE: "a clip norm of Gaussian noise",
    Poison.A_LITTLE: "the honest mean less as many standard deviations as still look honest (Baruch et al. 2019)",
    Poison.MIN_MAX: "as far from the honest mean as two honest updates are apart (Shejwalkar and Houmansadr 2021)",
    Poison.MIN_SUM: "the same by sums of squared distances",
    Poison.ZEROS: "a free rider: zeros",
    Poison.COPY: "a free rider: the last average",
    Poison.LABELS: "trains on labels turned around",
    Poison.TRIGGER: "trains half of its examples with a trigger and the target class",
    Poison.JUST_INSIDE: "adaptive, to rules that measure: knows the requester's update, and is as far from it as the "
    "middle honest site, straight against it, and no longer than a clipped update",
    Poison.TWO_FACED: "adaptive, to rules that measure in rounds of their own: shows the requester's very update "
    "there, and sends the longest vector against it that passes where sums are not measured (a clip norm where norms "
    "are opened, three where nothing is); otherwise as `just_inside`",
}
_HOW: Final = (
    "Every rule judges as it does in a study: where distances or pairs are opened, updates longer than a clipped "
    "one can be are left out (docs/protocol.md 8); `norm_bounded_fedavg` opens norms and leaves out what is "
    "longer than the clip norm; multi-Krum is told how many poisoners there are, or three, which is as many as it "
    "can stand among ten; Mallows measures in rounds of their own, in which all poisoners but `two_faced` send the "
    "same as ever, and opens norms in the others. A study in which nobody is left to sum with goes on alone, and so "
    "does Weight Erosion once too few sites have weight (`alone` says in how many of the five seeds): then the "
    "poisoners have no say, nor have the others, and that a rule stands there says little."
)


def write(page: Page, lines: Sequence[PoisonedLine], studies: Path) -> None:
    """The matrices of rules, poisons and shares of poisoners, by case; what has not run is named."""
    page.heading("Sites that poison: rule by attack by share of attackers")
    page.text(_INTRODUCTION)
    page.text("\n".join(f"- `{poison.value}`: {says}." for poison, says in _POISONS.items()))
    page.text(_HOW)
    for case, title in CASES.items():
        name = read_case(studies / f"{case}.toml").name
        _case(page, case, title, [line for line in lines if line.study == name])


def _case(page: Page, case: str, title: str, lines: Sequence[PoisonedLine]) -> None:
    """One data set under every rule."""
    page.heading(f"Poisoners among {title}")
    plain = [line for line in lines if line.protection == "plain"]
    if not plain:
        page.text("**Not run yet:** 0 runs.")
        return
    variants = tuple(variant for variant in dict.fromkeys(line.variant for line in plain) if variant != ALONE)
    page.text(f"Trained alone the requester reaches {_accuracy(_of(plain, ALONE, 0, None))}.")
    _worst(page, plain, variants)
    _figure(page, case, title, plain, variants)
    for poisoners in POISONERS:
        page.text(f"**{poisoners} of {_SITES} sites poison ({100 * poisoners // _SITES} %): accuracy**")
        _table(page, plain, variants, poisoners)
    page.text("**Which share of the sum the poisoners have.**")
    _weights(page, plain, variants)
    page.text("**Backdoors.**")
    _backdoors(page, plain, variants)
    page.text("**The same under the protocol.**")
    _checked(page, lines)


def made(lines: Sequence[PoisonedLine]) -> str:
    """How many runs, which seeds, how long."""
    seeds = ", ".join(map(str, sorted({line.seed for line in lines}))) or "none"
    return f"{len(lines)} runs with and without poisoners, seeds {seeds}, {_minutes(lines):.0f} minutes"


def _minutes(lines: Sequence[PoisonedLine]) -> float:
    return sum(line.seconds for line in lines) / 60


def _worst(page: Page, lines: Sequence[PoisonedLine], variants: Sequence[str]) -> None:
    """By rule and share, the attack that costs most."""
    page.text("**The worst of these attacks, by rule and share of attackers: accuracy**")
    rows = []
    for variant in variants:
        cells = [_accuracy(_of(lines, variant, 0, None))]
        for poisoners in POISONERS:
            found = {poison: _of(lines, variant, poisoners, poison) for poison in Poison}
            means = {poison: Spread.of(one.accuracy for one in some) for poison, some in found.items() if some}
            least = min(means, key=lambda poison: means[poison].mean, default=None)
            cells.append("not run" if least is None else f"{means[least]} ({least.value})")
        rows.append((variant, *cells))
    page.table(("rule", "nobody", *(f"{100 * poisoners // _SITES} %" for poisoners in POISONERS)), rows)


def _figure(page: Page, case: str, title: str, lines: Sequence[PoisonedLine], variants: Sequence[str]) -> None:
    """Accuracy as colour, a panel per share."""
    panels = []
    for poisoners in POISONERS:
        found = [[_of(lines, variant, poisoners, poison) for variant in variants] for poison in Poison]
        values = [[mean(one.accuracy for one in some) if some else nan for some in row] for row in found]
        panels.append(Matrix(f"{100 * poisoners // _SITES} % of sites", np.array(values)))
    chart = matrices_chart(panels, [poison.value for poison in Poison], variants, "accuracy")
    who = title[0].upper() + title[1:]
    page.figure(f"{case}_matrix", chart, f"{who}: accuracy by attack, rule and share of attackers, mean over seeds.")


def _of(lines: Sequence[PoisonedLine], variant: str, number: int, poison: Poison | None) -> list[PoisonedLine]:
    return [one for one in lines if (one.variant, one.poisoners, one.poison) == (variant, number, poison)]


def _table(page: Page, lines: Sequence[PoisonedLine], variants: Sequence[str], number: int) -> None:
    """Mean and standard error over seeds; the first row without a poisoner."""
    rows = [("nobody", *(_accuracy(_of(lines, variant, 0, None)) for variant in variants))]
    rows += [
        (poison.value, *(_accuracy(_of(lines, variant, number, poison)) for variant in variants)) for poison in Poison
    ]
    page.table(("poison", *variants), rows)


def _accuracy(lines: Sequence[PoisonedLine]) -> str:
    if not lines:
        return "not run"
    alone = sum(line.end != "completed" for line in lines)
    return str(Spread.of(line.accuracy for line in lines)) + (f" ({alone} alone)" if alone else "")


def _weights(page: Page, lines: Sequence[PoisonedLine], variants: Sequence[str]) -> None:
    page.text("The mean over released rounds, poisons and seeds; an even share would be .10, .20 and .40.")
    rows = []
    for number in POISONERS:
        found = [[one for one in lines if (one.variant, one.poisoners) == (v, number)] for v in variants]
        rows.append((f"{number} of {_SITES}", *(_mean([one.weight for one in some]) for some in found)))
    page.table(("poisoners", *variants), rows)


def _backdoors(page: Page, lines: Sequence[PoisonedLine], variants: Sequence[str]) -> None:
    page.text("How many of the requester's test examples of other classes the trigger turns into the target class.")
    rows = [("nobody", *(_mean([one.triggered for one in _of(lines, variant, 0, None)]) for variant in variants))]
    for number in POISONERS:
        cells = [_mean([one.triggered for one in _of(lines, variant, number, Poison.TRIGGER)]) for variant in variants]
        rows.append((f"{number} of {_SITES}", *cells))
    page.table(("poisoners", *variants), rows)


def _mean(values: Sequence[float]) -> str:
    return str(Spread.of(values)) if values else "not run"


def _checked(page: Page, lines: Sequence[PoisonedLine]) -> None:
    """Secure runs beside their plain twins."""
    rows = []
    for line in lines:
        if line.protection != "secure" or line.poison is None:
            continue
        twins = [one for one in _of(lines, line.variant, line.poisoners, line.poison) if one.seed == line.seed]
        plain = next((one for one in twins if one.protection == "plain"), None)
        if plain is not None:
            cells = (f"{plain.accuracy:.4f}", f"{line.accuracy:.4f}", f"{plain.log_loss:.4f}", f"{line.log_loss:.4f}")
            rows.append((f"{line.variant}, {line.poison.value}, {line.poisoners} of {_SITES}", *cells))
    page.text("With shares, sketches, range checks and products, one seed each: the same but for their rounding.")
    page.table(("study", "accuracy, plain", "secure", "log-loss, plain", "secure"), rows)
