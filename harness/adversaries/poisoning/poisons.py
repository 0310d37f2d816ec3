"""What sites that poison a model send, as the literature has it.

Poisoners know all honest contributors' updates of the round, which is more than any site here ever sees: what they
reach is an upper bound. Two of them know the rule and the requester's own update as well, which nobody has: the worst
case. They work together and send the same vector, but for noise.

Source: Blanchard et al. 2017 (sign flip, noise); Bagdasaryan et al. 2020 (scaling); Baruch et al. 2019 (a little is
        enough); Shejwalkar and Houmansadr 2021 (min-max, min-sum); Fraboni et al. 2021 (free riders)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from protocol.parameters import Needs

Reals = NDArray[np.float64]
_LONGEST: Final = 3.0
"""So many clip norms pass the range check in 99 of 100 rounds, whatever is opened; of five, one in three passes."""
_HALVINGS: Final = 20
_MEASURED: Final = frozenset({Needs.DISTANCES, Needs.PAIRS, Needs.INNER_PRODUCTS})


class Poison(StrEnum):
    """SCALED is the honest update turned around and three clip norms long, which only what is opened can show; ZEROS
    and COPY are free riders; LABELS and TRIGGER train honestly on data that were tampered with. JUST_INSIDE and
    TWO_FACED know the rule and the requester's update: they keep just under what makes a site lose weight."""

    SIGN_FLIP = "sign_flip"
    SCALED = "scaled"
    NOISE = "noise"
    A_LITTLE = "a_little_is_enough"
    MIN_MAX = "min_max"
    MIN_SUM = "min_sum"
    ZEROS = "zeros"
    COPY = "copy"
    LABELS = "label_flip"
    TRIGGER = "backdoor"
    JUST_INSIDE = "just_inside"
    TWO_FACED = "two_faced"

    @property
    def by_data(self) -> bool:
        """Whether the poison is in the data, and the update what honest training makes of them."""
        return self in (Poison.LABELS, Poison.TRIGGER)


@dataclass(frozen=True, eq=False)
class Known:
    """What poisoners know of a round: their own honest updates, the others', the last average, C, and a seed.

    ``requester`` is the requester's update, which only JUST_INSIDE and TWO_FACED look at; ``opens`` what the round
    opens, ``summed`` whether it sums what it measures.
    """

    own: Mapping[str, Reals] = field(repr=False)
    honest: Sequence[Reals] = field(repr=False)
    last_average: Reals | None = field(repr=False)
    clip_norm: float
    draw: np.random.Generator
    requester: Reals = field(repr=False)
    opens: Needs = Needs.NOTHING
    summed: bool = True

    @property
    def mean(self) -> Reals:
        return np.asarray(np.mean(self.honest, axis=0))


def written(poison: Poison, known: Known) -> dict[str, Reals]:
    """What every poisoner sends. Requires: at least two honest updates, for those that look at their spread"""
    if poison.by_data:
        return dict(known.own)
    if poison is Poison.NOISE:
        return {site: _as_long_as(known.draw.normal(size=update.size), known) for site, update in known.own.items()}
    if poison in _ALONE:
        return {site: _ALONE[poison](update, known) for site, update in known.own.items()}
    together = _TOGETHER[poison](known)
    return dict.fromkeys(known.own, together)


def _sign_flip(update: Reals, known: Known) -> Reals:
    return -update


def _scaled(update: Reals, known: Known) -> Reals:
    return -update * (_LONGEST * known.clip_norm / max(float(np.linalg.norm(update)), 1e-12))


def _zeros(update: Reals, known: Known) -> Reals:
    return np.zeros_like(update)


def _copy(update: Reals, known: Known) -> Reals:
    return np.zeros_like(update) if known.last_average is None else known.last_average


def _a_little(known: Known) -> Reals:
    """As many standard deviations off the mean, in every coordinate, as still have enough honest sites beyond them."""
    liars, sites = len(known.own), len(known.own) + len(known.honest)
    supporters = sites // 2 + 1 - liars
    z = float(norm.ppf(max(0.5, (sites - liars - supporters) / (sites - liars))))
    return _clipped(known.mean - z * np.std(known.honest, axis=0), known)


def _min_max(known: Known) -> Reals:
    """As far from the mean as no honest update is farther from it than two honest ones are apart."""
    apart = max(float(np.linalg.norm(a - b)) for a in known.honest for b in known.honest)
    return _farthest(known, lambda sent: max(float(np.linalg.norm(sent - one)) for one in known.honest) <= apart)


def _min_sum(known: Known) -> Reals:
    """As far as its squared distances to all honest updates add up to no more than any honest one's."""
    sums = [sum(float(np.sum((a - b) ** 2)) for b in known.honest) for a in known.honest]
    return _farthest(known, lambda sent: sum(float(np.sum((sent - one) ** 2)) for one in known.honest) <= max(sums))


def _farthest(known: Known, looks_honest: Callable[[Reals], bool]) -> Reals:
    """The mean less as much of its own direction as still looks honest, by halving."""
    mean = known.mean
    direction = mean / max(float(np.linalg.norm(mean)), 1e-12)
    low, high = 0.0, 10 * known.clip_norm
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if looks_honest(mean - middle * direction) else (low, middle)
    return mean - low * direction


def _just_inside(known: Known) -> Reals:
    """As far from the requester's update as the middle honest one is, straight against it: half of the honest sites
    lose more weight by their distance. No longer than a clipped update, as lengths are checked too."""
    apart = float(np.median([np.linalg.norm(one - known.requester) for one in known.honest]))
    length = max(float(np.linalg.norm(known.requester)), 1e-12)
    return _clipped(known.requester * (1 - apart / length), known)


def _two_faced(known: Known) -> Reals:
    """The requester's own update where a round measures and sums nothing; where it sums and nobody sees distances, the
    longest vector against it that passes. Where what is summed is measured it can only be JUST_INSIDE."""
    if not known.summed:
        return known.requester
    if known.opens in _MEASURED:
        return _just_inside(known)
    reach = 1.0 if known.opens.of_norms else _LONGEST
    return -_as_long_as(known.requester, known) * reach


def _clipped(vector: Reals, known: Known) -> Reals:
    return np.asarray(vector * min(1.0, known.clip_norm / max(float(np.linalg.norm(vector)), 1e-12)))


def _as_long_as(direction: Reals, known: Known) -> Reals:
    """A clip norm long."""
    return np.asarray(direction * (known.clip_norm / max(float(np.linalg.norm(direction)), 1e-12)))


_ALONE: Final[Mapping[Poison, Callable[[Reals, Known], Reals]]] = {
    Poison.SIGN_FLIP: _sign_flip,
    Poison.SCALED: _scaled,
    Poison.ZEROS: _zeros,
    Poison.COPY: _copy,
}
_TOGETHER: Final[Mapping[Poison, Callable[[Known], Reals]]] = {
    Poison.A_LITTLE: _a_little,
    Poison.MIN_MAX: _min_max,
    Poison.MIN_SUM: _min_sum,
    Poison.JUST_INSIDE: _just_inside,
    Poison.TWO_FACED: _two_faced,
}
