"""Sites that poison the model, two of ten, in a study of handwritten digits (``harness/studies/poisoning.toml``).

Under plain FedAvg nothing stands in their way but that no update counts for more than its weight; what other rules do
about each of them is in docs/results/robustness.md. One site's length is another matter: norms that are opened show it.
Those who know the rule and the requester's own update keep just under what each rule would notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.poisoning.lines import PoisonedLine
from harness.adversaries.poisoning.poisoned_run import Poisoned
from harness.adversaries.poisoning.poisons import Poison
from harness.simulate.case import Case, read_case
from harness.simulate.study_files import STUDIES

_POISONERS: Final = 2
_SEED: Final = 0
_LOST: Final = 0.03
"""Points of accuracy: three of the requester's 110 test examples."""
_NAMES: Final = {
    Poison.SIGN_FLIP: ("poison-sign-flip", "send their updates turned around"),
    Poison.NOISE: ("poison-noise", "send a clip norm of noise"),
    Poison.A_LITTLE: ("poison-a-little-is-enough", "send the honest mean less what still looks honest"),
    Poison.MIN_MAX: ("poison-min-max", "send what is as far off as two honest updates are apart"),
    Poison.MIN_SUM: ("poison-min-sum", "send what is as far off by sums of squared distances"),
    Poison.ZEROS: ("free-rider-zeros", "send nothing but zeros"),
    Poison.COPY: ("free-rider-copies", "send copies of the last average"),
    Poison.LABELS: ("poison-labels", "train on labels turned around"),
    Poison.TRIGGER: ("poison-backdoor", "train half of their examples with a trigger and a class of their choice"),
}


@cache
def _case() -> Case:
    return read_case(STUDIES / "poisoning.toml")


@cache
def _honest(variant: str) -> PoisonedLine:
    return Poisoned(_case(), variant, _SEED, 0, None).line()


class UnderFedAvg(Attack):
    """What the requester's model is worth less; nothing is opened about single sites."""

    party = Party.SITES
    defence = "no site counts for more than its weight; rules that measure, see docs/results/robustness.md"
    figure = "points of accuracy that the requester's model loses, two poisoners of ten under FedAvg"
    promised = False
    without: Mapping[str, object] = {}

    def __init__(self, poison: Poison) -> None:
        self.name, self.tries = _NAMES[poison]
        self._poison = poison

    def attempt(self, folder: Path) -> Found:
        line = Poisoned(_case(), "fedavg", _SEED, _POISONERS, self._poison).line()
        lost = _honest("fedavg").accuracy - line.accuracy
        return Found(lost > _LOST or line.triggered > 0.5, lost)


class TooLong(Attack):
    """Updates three clip norms long, where the study opens norms."""

    name = "poison-three-clip-norms"
    party = Party.SITES
    tries = "send their updates turned around and three clip norms long"
    defence = "where norms or distances are opened, updates longer than a clipped one can be are left out"
    figure = "share of a sum that the poisoners have, an even one is 0.2"
    without: Mapping[str, object] = {
        "client_agent.requester.measuring.judging.too_long": lambda *_: frozenset(),
        "client_agent.requester.measuring.judging.within_bound": lambda measured, bound: measured.took_part,
        "protocol.rules.fedavg.within_bound": lambda measured, bound: measured.took_part,
    }

    def attempt(self, folder: Path) -> Found:
        line = Poisoned(_case(), "norm_bounded_fedavg", _SEED, _POISONERS, Poison.SCALED).line()
        return Found(line.weight > 0.0, line.weight)


class Adaptive(Attack):
    """Poisoners that know the rule and the requester's update, under the rule that they keep just under.

    The requester's accuracy is meant over all seeds of the study: single ones differ.
    """

    party = Party.SITES
    figure = "points of accuracy that the requester's model loses, two adaptive poisoners of ten, mean of five seeds"
    promised = False
    without: Mapping[str, object] = {}

    def __init__(self, name: str, tries: str, variant: str, poison: Poison, defence: str) -> None:
        self.name, self.tries, self.defence = name, tries, defence
        self._variant, self._poison = variant, poison

    def attempt(self, folder: Path) -> Found:
        lost = [self._lost(seed) for seed in _case().table.seeds]
        mean, spread = float(np.mean(lost)), float(np.std(lost, ddof=1))
        return Found(mean > _LOST, mean, f"standard deviation over {len(lost)} seeds {spread:.3f}")

    def _lost(self, seed: int) -> float:
        honest = Poisoned(_case(), self._variant, seed, 0, None).line()
        return honest.accuracy - Poisoned(_case(), self._variant, seed, _POISONERS, self._poison).line().accuracy


class UnderErosion(Adaptive):
    """Whoever is far from the requester's update loses weight in every round; honest sites that differ do as well."""

    promised = True
    without: Mapping[str, object] = {
        "protocol.rules.weight_erosion.WeightErosion._eroded": lambda rule, site, measured: site
    }

    def __init__(self) -> None:
        super().__init__(
            "poison-just-inside-erosion",
            "are as far from the requester's update as the middle honest site, straight against it",
            "weight_erosion",
            Poison.JUST_INSIDE,
            "weight erodes with every round's distance; where too few sites are left the requester goes on alone",
        )


def _adaptive() -> tuple[Adaptive, ...]:
    """One for each thing that poisoners can keep under."""
    return (
        UnderErosion(),
        Adaptive(
            "poison-inside-the-range-check",
            "send three clip norms against the requester's update, which the range check lets through",
            "fedavg",
            Poison.TWO_FACED,
            "the range check bounds lengths, and nothing else is opened",
        ),
        Adaptive(
            "poison-inside-the-norm-bound",
            "send a clip norm straight against the requester's update, as long as an honest one",
            "norm_bounded_fedavg",
            Poison.TWO_FACED,
            "norms are opened, directions are not",
        ),
        Adaptive(
            "poison-just-inside-multi-krum",
            "are as far from the requester's update as the middle honest site, straight against it, all at one place",
            "multi_krum",
            Poison.JUST_INSIDE,
            "multi-Krum leaves out who is far from its neighbours; those who send the same are near each other",
        ),
        Adaptive(
            "poison-two-faced-under-mallows",
            "show the requester's own update where it is measured, and the longest one against it where it is summed",
            "mallows",
            Poison.TWO_FACED,
            "weights by what was measured; sums are of other updates, of which only norms are opened",
        ),
    )


def poisonings() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (TooLong(), *(UnderFedAvg(poison) for poison in _NAMES), *_adaptive())
