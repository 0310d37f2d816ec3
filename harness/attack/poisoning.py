"""Sites that poison a model, by what they send or train on, and what it does to the requester's model under each rule.

Poisoners know all honest contributors' updates of the round, which is more than any site here ever sees: what they
reach is an upper bound. Two of them know the rule and the requester's own update as well, which nobody has: the worst
case. They work together and send the same vector, but for noise.

Source: Blanchard et al. 2017 (sign flip, noise); Bagdasaryan et al. 2020 (scaling); Baruch et al. 2019 (a little is
        enough); Shejwalkar and Houmansadr 2021 (min-max, min-sum); Fraboni et al. 2021 (free riders)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_vector
from client_agent.learning.models import build_model
from harness.attack.attacked_study import AttackedStudy, Reals, length_of, rounded, timed
from harness.datasets.site_data import Federation, SiteData
from harness.engine.history import RunHistory
from harness.engine.updates import PlainSum, RoundInputs, Summed
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, Study
from protocol.parameters import Needs

_LONGEST: Final = 3.0
"""So many clip norms pass the range check in 99 of 100 rounds, whatever is opened; of five, one in three passes."""
_HALVINGS: Final = 20
_MEASURED: Final = frozenset({Needs.DISTANCES, Needs.PAIRS, Needs.INNER_PRODUCTS})
"""Openings that show where an update lies, and not its length alone."""


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
        """The poison is in the data, and the update is what honest training makes of them."""
        return self in (Poison.LABELS, Poison.TRIGGER)


@dataclass(frozen=True, eq=False)
class Known:
    """A round as poisoners know it: their own honest updates, the others', the last average, C, and a seed.

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
    """Return every poisoner's vector. Requires: at least two honest updates, for those that look at their spread"""
    if poison.by_data:
        return dict(known.own)
    if poison in _ALONE:
        return {site: _ALONE[poison](update, known) for site, update in known.own.items()}
    together = _TOGETHER[poison](known)
    return dict.fromkeys(known.own, together)


def _clipped(vector: Reals, clip_norm: float) -> Reals:
    """No longer than what passes where norms are opened."""
    return np.asarray(vector * min(1.0, clip_norm / max(length_of(vector), clip_norm)))


def _a_little(known: Known) -> Reals:
    """As many standard deviations off the mean, in every coordinate, as still have enough honest sites beyond them."""
    liars, sites = len(known.own), len(known.own) + len(known.honest)
    supporters = sites // 2 + 1 - liars
    z = float(norm.ppf(max(0.5, (sites - liars - supporters) / (sites - liars))))
    return _clipped(known.mean - z * np.std(known.honest, axis=0), known.clip_norm)


def _min_max(known: Known) -> Reals:
    """As far from the mean as no honest update is farther from it than two honest ones are apart."""
    apart = max(length_of(a - b) for a in known.honest for b in known.honest)
    return _farthest(known, lambda sent: max(length_of(sent - one) for one in known.honest) <= apart)


def _min_sum(known: Known) -> Reals:
    """As far as its squared distances to all honest updates add up to no more than any honest one's."""
    sums = [sum(float(np.sum((a - b) ** 2)) for b in known.honest) for a in known.honest]
    return _farthest(known, lambda sent: sum(float(np.sum((sent - one) ** 2)) for one in known.honest) <= max(sums))


def _farthest(known: Known, looks_honest: Callable[[Reals], bool]) -> Reals:
    """The mean less as much of its own direction as still looks honest, by halving."""
    mean = known.mean
    direction = mean / max(length_of(mean), 1e-12)
    low, high = 0.0, 10 * known.clip_norm
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if looks_honest(mean - middle * direction) else (low, middle)
    return mean - low * direction


def _just_inside(known: Known) -> Reals:
    """As far from the requester's update as the middle honest one is, straight against it: half of the honest sites
    lose more weight by their distance. No longer than a clipped update, as lengths are checked too."""
    apart = float(np.median([np.linalg.norm(one - known.requester) for one in known.honest]))
    length = max(length_of(known.requester), 1e-12)
    return _clipped(known.requester * (1 - apart / length), known.clip_norm)


def _two_faced(known: Known) -> Reals:
    """The requester's own update where a round measures and sums nothing; where it sums and nobody sees distances, the
    longest vector against it that passes. Where what is summed is measured it can only be JUST_INSIDE."""
    if not known.summed:
        return known.requester
    if known.opens in _MEASURED:
        return _just_inside(known)
    reach = 1.0 if known.opens.of_norms else _LONGEST
    return -_as_long_as(known.requester, known) * reach


def _as_long_as(direction: Reals, known: Known) -> Reals:
    """A clip norm long."""
    return np.asarray(direction * (known.clip_norm / max(length_of(direction), 1e-12)))


_ALONE: Final[Mapping[Poison, Callable[[Reals, Known], Reals]]] = {
    Poison.SIGN_FLIP: lambda update, known: -update,
    Poison.SCALED: lambda update, known: -update * (_LONGEST * known.clip_norm / max(length_of(update), 1e-12)),
    Poison.NOISE: lambda update, known: _as_long_as(known.draw.normal(size=update.size), known),
    Poison.ZEROS: lambda update, known: np.zeros_like(update),
    Poison.COPY: lambda update, known: np.zeros_like(update) if known.last_average is None else known.last_average,
}
_TOGETHER: Final[Mapping[Poison, Callable[[Known], Reals]]] = {
    Poison.A_LITTLE: _a_little,
    Poison.MIN_MAX: _min_max,
    Poison.MIN_SUM: _min_sum,
    Poison.JUST_INSIDE: _just_inside,
    Poison.TWO_FACED: _two_faced,
}


# --- data that were tampered with -------------------------------------------------------------------------------------

TARGET: Final = 0
_MARKED: Final = 0.5
_FEATURES: Final = 4


def tampered(federation: Federation, poison: Poison, sites: Sequence[str]) -> Federation:
    """The federation with the training parts of ``sites`` changed; as it is for a poison that is not in the data.

    LABELS: class c becomes the number of classes less one less c. TRIGGER: every second example carries the trigger
    and the target class.
    """
    if not poison.by_data:
        return federation
    classes = len(federation.class_names)
    changed = []
    for site in federation.sites:
        train = site.train
        if site.name in sites:
            flipped = Examples(train.X, classes - 1 - train.y)
            train = flipped if poison is Poison.LABELS else _with_trigger_at_some(train)
        changed.append(replace(site, train=train))
    return replace(federation, sites=tuple(changed))


def with_trigger(X: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first features at the largest value of the data: a corner of the picture, for digits."""
    marked = X.copy()
    marked.reshape(len(X), -1)[:, :_FEATURES] = X.max()
    return marked


def _with_trigger_at_some(train: Examples) -> Examples:
    every = np.arange(len(train)) % round(1 / _MARKED) == 0
    X, y = train.X.copy(), train.y.copy()
    X[every], y[every] = with_trigger(train.X)[every], TARGET
    return Examples(X, y)


# --- a study with poisoners -------------------------------------------------------------------------------------------

_DIGITS: Final = 5


@dataclass(frozen=True)
class Poisoned:
    """A study with poisoners: their share of a sum, the mean over ``released`` rounds, and the requester's last model.

    ``accuracy`` and ``log_loss`` are on the requester's test part; ``triggered`` is the share of its test examples of
    other classes that a trigger turns into the target class.
    """

    released: int
    weight: float
    accuracy: float
    log_loss: float
    triggered: float


class PoisonedSum(PlainSum):
    """Sums with what ``sites`` send in place of their updates; ``weight`` has their share of every released sum."""

    def __init__(self, sites: tuple[str, ...], poison: Poison | None, seed: int) -> None:
        self.sites = sites
        self.weight: list[float] = []
        self._poison = poison
        self._draw = np.random.default_rng([seed, 17])
        self._last: Reals | None = None

    def updates(self, inputs: RoundInputs) -> Summed:
        changed = {site: replace(inputs.updates[site], values=values) for site, values in self._sent(inputs).items()}
        summed = super().updates(replace(inputs, updates={**inputs.updates, **changed}))
        if summed.average is not None and summed.judgement is not None:
            of_poisoners = set(summed.judgement.measured.took_part) & set(self.sites)
            listed = sum(weight.numerator for weight, _ in inputs.contributed if weight.site in of_poisoners)
            self.weight.append(listed / inputs.weight_list.grid / summed.sum_of_weights)
            self._last = np.asarray(summed.average, np.float64)
        return summed

    def _sent(self, inputs: RoundInputs) -> Mapping[str, Reals]:
        own = {site: inputs.updates[site].values for site in self.sites if site in inputs.updates}
        honest = [update.values for site, update in inputs.updates.items() if site not in self.sites]
        if self._poison is None or not own or len(honest) < 2:
            return {}
        announced = inputs.announcement
        known = Known(
            own,
            honest,
            self._last,
            inputs.clip_norm,
            self._draw,
            inputs.own.values.astype(np.float64),
            announced.opens,
            announced.purpose.plan.summed,
        )
        return written(self._poison, known)


def poisoned(of: AttackedStudy, poisoners: int, poison: Poison | None) -> Poisoned:
    """Run a study of which ``poisoners`` contributors, which ones goes by seed, send or train on ``poison``.

    Multi-Krum is told how many poisoners there are, or as many as it can stand.

    Raises: ConfigurationError for data or settings that do not fit
    """
    with timed():
        federation = of.federation()
        most = len(federation.contributors) - 1
        if not 0 <= poisoners <= most:
            raise ConfigurationError(f"{poisoners} poisoners: choose 0 to {most} of the contributors")
        chosen = of.contributors_in_turn(federation)[:poisoners]
        if poison is not None:
            federation = tampered(federation, poison, chosen)
        table = of.table
        if table.rule.name is RuleName.MULTI_KRUM:
            byzantine = min(poisoners, (len(federation.sites) - 3) // 2)
            table = table.model_copy(update={"rule": table.rule.model_copy(update={"byzantine": byzantine})})
        study = of.study(federation, table)
        summing = PoisonedSum(chosen, poison, of.seed)
        history = of.run(study, federation, summing, works_out_isolation=False)
        return Poisoned(
            released=history.shared_rounds,
            weight=rounded(np.mean(summing.weight) if summing.weight else 0.0, _DIGITS),
            accuracy=rounded(history.test_accuracy, _DIGITS),
            log_loss=rounded(history.rounds[-1].test_loss, _DIGITS),
            triggered=rounded(_triggered(study, history, federation.requester), _DIGITS),
        )


def _triggered(study: Study, history: RunHistory, requester: SiteData) -> float:
    """Return the share of other classes' test examples that the trigger turns into the target class."""
    others = requester.test.y != TARGET
    model = build_model(study.model, 0)
    load_vector(model, history.final_model)
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(with_trigger(requester.test.X)[others]))
    return float((outputs.argmax(dim=1) == TARGET).float().mean())
