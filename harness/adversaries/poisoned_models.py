"""Sites that poison the model, and a server that falsifies products: what they reach over whole studies.

Two of ten sites poison a study of handwritten digits (``harness/studies/poisoning.toml``). Under plain FedAvg nothing
stands in their way but that no update counts for more than its weight; what other rules do about each of them is in
docs/results/robustness.md. One site's length is another matter: norms that are opened show it. Those who know the rule
and the requester's own update keep just under what each rule would notice.

What comes back to a server that falsifies a measured round is the release set alone, in which a site stays or does not:
at most one bit per site and round. The figure is how much that tells, over a study of 30 rounds, about a number of the
server's choice, where the site's update is the same in every round (the worst case; updates that move tell less). Over
more seeds, and with canary rounds: ``moiety attack leak``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.attack import Attempt, Found
from harness.adversaries.attacked_study import AttackedStudy
from harness.adversaries.falsified_round import Question
from harness.adversaries.leak import CLAUSE, most
from harness.adversaries.poisoning import Poison, Poisoned, PoisonedLine
from harness.simulate.case import Case, read_case
from harness.simulate.study_files import STUDIES

_LOST: Final = 0.03
"""Points of accuracy: three of the requester's 110 test examples."""


@cache
def _case() -> Case:
    return read_case(STUDIES / "poisoning.toml")


def _honest(variant: str, seed: int) -> PoisonedLine:
    return Poisoned(AttackedStudy(_case(), variant, seed), 0, None).line()


@cache
def _honest_fedavg() -> PoisonedLine:
    """Has no defence that could be off: attacks share it."""
    return _honest("fedavg", 0)


def _poisoned(variant: str, seed: int, poison: Poison) -> PoisonedLine:
    return Poisoned(AttackedStudy(_case(), variant, seed), 2, poison).line()


def _under_fedavg(poison: Poison, _: Path) -> Found:
    """The requester's model loses accuracy; nothing is opened about single sites."""
    line = _poisoned("fedavg", 0, poison)
    lost = _honest_fedavg().accuracy - line.accuracy
    return Found(lost > _LOST or line.triggered > 0.5, lost)


def _too_long(_: Path) -> Found:
    """Updates three clip norms long, where the study opens norms."""
    line = _poisoned("norm_bounded_fedavg", 0, Poison.SCALED)
    return Found(line.weight > 0.0, line.weight)


def _adaptive(variant: str, poison: Poison, _: Path) -> Found:
    """Poisoners that know the rule and the requester's update, under the rule that they keep just under.

    The requester's accuracy is meant over all seeds of the study: single ones differ.
    """
    lost = [_honest(variant, seed).accuracy - _poisoned(variant, seed, poison).accuracy for seed in _case().table.seeds]
    mean, spread = float(np.mean(lost)), float(np.std(lost, ddof=1))
    return Found(mean > _LOST, mean, f"standard deviation over {len(lost)} seeds {spread:.3f}")


def _falsified(question: Question, _: Path) -> Found:
    """30 rounds, in which the server asks one question each; whichever of its two plans says more counts.

    It spends its failures as if a site bore two, or asks as if it bore any number.
    """
    bits = most(question, (1, 2, 3))
    return Found(bits > 1.0, bits)


_FEDAVG: Final = {
    "poison-sign-flip": Poison.SIGN_FLIP,
    "poison-noise": Poison.NOISE,
    "poison-a-little-is-enough": Poison.A_LITTLE,
    "poison-min-max": Poison.MIN_MAX,
    "poison-min-sum": Poison.MIN_SUM,
    "free-rider-zeros": Poison.ZEROS,
    "free-rider-copies": Poison.COPY,
    "poison-labels": Poison.LABELS,
    "poison-backdoor": Poison.TRIGGER,
}
_ANY_LENGTH: Final[Mapping[str, object]] = {
    "client_agent.requester.judgement.too_long": lambda *_: frozenset(),
    "client_agent.requester.judgement.within_bound": lambda measured, bound: measured.took_part,
    "protocol.rules.fedavg.within_bound": lambda measured, bound: measured.took_part,
}
ATTEMPTS: Final = {
    "poison-three-clip-norms": Attempt(_too_long, _ANY_LENGTH),
    **{name: Attempt(partial(_under_fedavg, poison)) for name, poison in _FEDAVG.items()},
    "poison-just-inside-erosion": Attempt(
        partial(_adaptive, "weight_erosion", Poison.JUST_INSIDE),
        {"protocol.rules.weight_erosion.WeightErosion._eroded": lambda rule, site, measured: site},
    ),
    "poison-inside-the-range-check": Attempt(partial(_adaptive, "fedavg", Poison.TWO_FACED)),
    "poison-inside-the-norm-bound": Attempt(partial(_adaptive, "norm_bounded_fedavg", Poison.TWO_FACED)),
    "poison-just-inside-multi-krum": Attempt(partial(_adaptive, "multi_krum", Poison.JUST_INSIDE)),
    "poison-two-faced-under-mallows": Attempt(partial(_adaptive, "mallows", Poison.TWO_FACED)),
    "falsified-norm": Attempt(partial(_falsified, Question.NORM), CLAUSE),
    "falsified-range-check": Attempt(partial(_falsified, Question.PROJECTION), CLAUSE),
    "falsified-pairs": Attempt(partial(_falsified, Question.GAP)),
}
