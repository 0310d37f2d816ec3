"""The poisoning page: what poisoners reach under each rule, by kind and number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.adversaries.poisoning.lines import PoisonedLine
from harness.adversaries.poisoning.poisons import Poison
from harness.papers.attacked.poisoning_runs import ALONE, POISONERS, recorded, run_missing
from harness.papers.making import Making
from harness.papers.page import Page
from harness.simulation.drawing.spread import Spread

_SITES: Final = 10
_INTRODUCTION: Final = (
    "What is the requester's model worth if some of the other sites send what they like? Ten sites with handwritten "
    "digits (bundled with scikit-learn): each sees three of the ten classes, its neighbours two of these, far sites "
    "none, so honest updates differ much, as hospitals' do. One, two or four of the nine contributors poison, together "
    "and knowing every honest contributor's update of the round, which is more than any site ever sees here: the "
    "figures are upper bounds for such attackers. Accuracy is the requester's on its own test part, after 20 rounds; "
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
}
_HOW: Final = (
    "Every rule judges as it does in a study: where distances or pairs are opened, updates longer than a clipped "
    "one can be are left out (docs/protocol.md 8); `norm_bounded_fedavg` opens norms and leaves out what is "
    "longer than the clip norm; multi-Krum is told how many poisoners there are, or three, which is as many as it "
    "can stand among ten; Mallows measures in rounds of their own, in which the poisoners send the same as ever, "
    "and opens norms in the others (poisoners that look well when measured and poison the sums reach far more: "
    "[robustness](robustness.md)). A study in which nobody is left to sum with goes on alone, and so does Weight "
    "Erosion once too few sites have weight: then the poisoners have no say, nor have the others."
)


@dataclass(frozen=True)
class PoisoningPage:
    """Runs and writes; see :class:`harness.papers.build.PageSpec`."""

    name: str
    title: str
    studies: Path

    def run_missing(self, making: Making) -> None:
        """Every run that is not there yet; one process. Raises: ConfigurationError"""
        run_missing(self.studies, making.runs, making.tell)

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """The page from the recorded lines. Returns the file."""
        page = Page(out / f"{self.name}.md", self.title)
        write(page, recorded(runs))
        page.write()
        return page.path


def write(page: Page, lines: Sequence[PoisonedLine]) -> None:
    """Everything; without lines it says so."""
    page.text(_INTRODUCTION)
    page.text("\n".join(f"- `{poison.value}`: {says}." for poison, says in _POISONS.items()))
    page.text(_HOW)
    plain = [line for line in lines if line.protection == "plain"]
    if not plain:
        page.text("**Not run yet:** 0 runs.")
        return
    variants = tuple(variant for variant in dict.fromkeys(line.variant for line in plain) if variant != ALONE)
    page.text(
        f"Trained alone the requester reaches {_accuracy(_of(plain, ALONE, 0, None))}. So rules that leave it mostly "
        "with its own examples, where sites differ as much as these, are hard to poison and have little to lose: that "
        "they stand here says nothing about sites that are alike."
    )
    for number in POISONERS:
        page.heading(f"{number} of {_SITES} sites poison: accuracy")
        _table(page, plain, variants, number)
    page.heading("Which share of the sum the poisoners have")
    _weights(page, plain, variants)
    page.heading("Backdoors")
    _backdoors(page, plain, variants)
    page.heading("The same under the protocol")
    _checked(page, lines)
    page.heading("How this page was made")
    seeds = sorted({line.seed for line in lines})
    spent = sum(line.seconds for line in lines) / 60
    page.text(
        "```sh\nmoiety results --only poisoning\n```\n\n"
        f"{len(lines)} runs, seeds {', '.join(map(str, seeds))}, {spent:.0f} minutes of one core."
    )


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
