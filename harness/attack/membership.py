"""Membership of records in the training data: scores by which anybody with the model would guess.

Scores are by a model's loss, by its loss against a reference model's, by a record's part in opened averages, and by
models that were trained with the record and without it (LiRA). For the last an attacker runs the study itself, over
other halves of the same hospitals' patients: how much likelier the attacked model's confidence is under the first
models' normal distribution is the score. Nobody in a federation has such data; it is the strongest attack known, and
here the upper bound.

The study puts each data set's own split together again, and every seed draws another half to train on, so that the same
record is inside in some runs and outside in others. Features are as the first seed's split scales them, in every run.
The attacker has every model and every opened average, as the requester and every listed site have.

Source: Yeom et al. 2018 (loss); Watson et al. 2022 (loss against a reference model's); Nasr, Shokri, Houmansadr 2019
        (the part of a record's gradient in what was opened, over rounds); Carlini et al. 2022 (LiRA)

The guesser of classes sees one number of a site (its mean distance from the requester over the requester's norm, or its
last weight) and guesses how far its class shares are from the requester's. It learns a line from other seeds'
federations, of which it knows everything, and is judged on those it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.stats import norm, spearmanr
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, load_vector
from client_agent.learning.models import build_model
from client_agent.learning.sampling import drawing_probability, steps_of
from client_agent.learning.trainer import sample_gradients, take
from client_agent.site.privacy_budget import Steps, epsilon_of
from harness.attack.attacked_study import AttackedStudy, Line, Recorder, line_of, rounded, timed
from harness.datasets.site_data import Federation, SiteData, parts_of, split_random
from harness.engine.history import RunHistory, alpha_series, distance_series
from harness.engine.run_state import Progress
from harness.engine.updates import PlainSum
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.shared_model import first_model

Scores = NDArray[np.float64]
_CPU: Final = torch.device("cpu")
_FALSE: Final = 0.01
_NOTHING: Final = 1e-12


@dataclass(frozen=True, eq=False)
class Opened:
    """One released round: the model that sites trained on, and the average that they opened."""

    model: Vector = field(repr=False)
    average: NDArray[np.float64] = field(repr=False)


def losses(model: nn.Module, vector: Vector, data: Examples) -> Scores:
    load_vector(model, vector)
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(data.X))
        found = nn.functional.cross_entropy(outputs, torch.from_numpy(data.y), reduction="none")
    return np.asarray(found.numpy(), np.float64)


def by_loss(model: nn.Module, vector: Vector, data: Examples) -> Scores:
    """A record that was trained on has a small loss."""
    return -losses(model, vector, data)


def by_reference(model: nn.Module, vector: Vector, reference: Vector, data: Examples) -> Scores:
    """A smaller loss than under a model that never saw it, the requester's own: so hard records do not count as new."""
    return losses(model, reference, data) - losses(model, vector, data)


def by_averages(model: nn.Module, rounds: Sequence[Opened], data: Examples) -> Scores:
    """Return the mean cosine over rounds of every record's gradient with the opened average."""
    total, batch = np.zeros(len(data)), take(data, np.arange(len(data)), _CPU)
    for opened in rounds:
        load_vector(model, opened.model)
        gradients = sample_gradients(model, batch)
        lengths = np.maximum(np.linalg.norm(gradients, axis=1), _NOTHING)
        total += gradients @ opened.average / lengths / max(float(np.linalg.norm(opened.average)), _NOTHING)
    return total / max(1, len(rounds))


def told(members: Scores, others: Scores) -> Told:
    """Measure how well the scores tell the one from the other."""
    scores, are = np.concatenate([members, others]), np.repeat([1, 0], [len(members), len(others)])
    false, true, _ = roc_curve(are, scores)
    at = float(true[false <= _FALSE].max())
    return Told(auc=round(float(roc_auc_score(are, scores)), 4), at_one_percent=round(at, 4))


_LEAST_SPREAD = 1e-3


def by_shadows(confidences: Sequence[Scores], members: Sequence[NDArray[np.bool_]]) -> tuple[Told, ...]:
    """Every run attacked with all others as shadows; runs go over the same records in the same order.

    Shapes:   float64[records] and bool[records] a run: log p / (1 - p) of the true class; who was trained on
    """
    every, inside = np.stack(confidences), np.stack(members)
    found = []
    for place in range(len(every)):
        others = np.arange(len(every)) != place
        scores = likelihood_ratios(every[place], every[others], inside[others])
        found.append(told(scores[inside[place]], scores[~inside[place]]))
    return tuple(found)


def likelihood_ratios(confidence: Scores, shadows: Scores, inside: NDArray[np.bool_]) -> Scores:
    """The log of the ratio, float64[records]; spreads are common to all records, as there are few shadows.

    A record that all shadows were trained on, or none, takes the mean of all records on the side that it lacks.

    Shapes:   confidence float64[records], shadows float64[runs, records], inside bool[runs, records]
    """
    sides = [_normal(shadows, chosen) for chosen in (inside, ~inside)]
    within, without = (norm.logpdf(confidence, mean, spread) for mean, spread in sides)
    return np.asarray(within - without)


def _normal(shadows: Scores, chosen: NDArray[np.bool_]) -> tuple[Scores, float]:
    """Every record's mean over the chosen runs, and the common deviation from them."""
    if not chosen.any():
        return np.zeros(shadows.shape[1]), 1.0
    counts = chosen.sum(axis=0)
    whole = float(shadows[chosen].mean())
    means = np.where(counts > 0, np.where(chosen, shadows, 0.0).sum(axis=0) / np.maximum(counts, 1), whole)
    off = (shadows - means)[chosen]
    freedom = max(1, int(np.maximum(counts - 1, 0).sum()))
    return means, max(_LEAST_SPREAD, float(np.sqrt(np.sum(off**2) / freedom)))


@dataclass(frozen=True, eq=False)
class Watched:
    """A finished study with its released rounds. ``models`` are those that rounds began with and the last one, one more
    than there were rounds, whatever their kind.
    """

    study: Study
    history: RunHistory
    rounds: tuple[Opened, ...] = field(repr=False)
    models: tuple[Vector, ...] = field(repr=False)


def watched(attacked: AttackedStudy, study: Study, federation: Federation, *, works_out_isolation: bool) -> Watched:
    """Run it plainly, which opens what a protected run opens but for its rounding. Raises: ConfigurationError"""
    recorder, models = Recorder(PlainSum()), [first_model(study)]
    dimension = study.parameters.dimension

    def keep(progress: Progress) -> None:
        models.append(progress.state.vector[:dimension].copy())

    history = attacked.run(study, federation, recorder, after_round=keep, works_out_isolation=works_out_isolation)
    opened = tuple(Opened(models[one.round - 1], one.total / sum(one.weights.values())) for one in recorder.sums)
    return Watched(study, history, opened, tuple(models))


# --- a study over a random half of every site's records ---------------------------------------------------------------

FORMAT: Final = "moiety-memorised/1"


class Told(Line):
    """Separation of members from others: area under the ROC curve, and the true positive rate at 1 % false ones.

    0.5 and 0.01 are chance.
    """

    auc: float
    at_one_percent: float


class MemorisedLine(Line):
    """One study. ``by_loss`` has an entry for every model after a round, ``by_average`` one for every opened average,
    both in order; ``rounds`` are the numbers of the latter's rounds. ``by_averages`` is over all rounds together.

    ``epsilon`` is each contributor's, of the unit record over the whole study, at ``DELTA``; empty
    where there is no noise.

    ``members`` says of every contributor's record, in the data's order, whether it was trained on, ``confidence`` is
    log p / (1 - p) of its class under the last model. ``known`` and ``unknown`` are that model's accuracy on both.
    """

    KEYS = ("study", "variant", "seed")
    format: str = FORMAT
    study: str
    variant: str
    rule: str
    seed: int
    end: str
    parameters: int
    released: int
    known: float
    unknown: float
    rounds: tuple[int, ...]
    by_loss: tuple[Told, ...]
    by_average: tuple[Told, ...]
    by_averages: Told | None
    members: tuple[bool, ...]
    confidence: tuple[float, ...]
    epsilon: dict[str, float] = Field(default_factory=dict)
    seconds: float
    versions: dict[str, str]


DELTA: Final = 1e-3
_DIGITS: Final = 5
_SURE: Final = 1e-6
"""Confidences are read no closer to 0 and 1 than float32 can tell."""


@dataclass(frozen=True, eq=False)
class Halved:
    """A federation whose sites train on half of their records; ``records`` are all contributors', ``members`` says who
    of them is trained on, bool[n].
    """

    federation: Federation
    records: Examples
    members: NDArray[np.bool_]


def halved(federation: Federation, seed: int) -> Halved:
    """Every site's records are cut into two halves, each class by itself; the other half is the test part."""
    sites, inside = [], []
    draw = split_random("halves", seed)
    for site in federation.sites:
        whole = _whole(site)
        train, test = parts_of(np.asarray(whole.y), (0.5, 0.5), draw)
        parts = [Examples(whole.X[rows], whole.y[rows]) for rows in (train, test)]
        sites.append(replace(site, train=parts[0], validation=Examples(whole.X[:0], whole.y[:0]), test=parts[1]))
        inside.append(np.isin(np.arange(len(whole)), train))
    records = [_whole(site) for site in federation.contributors]
    everybody = Examples(np.concatenate([one.X for one in records]), np.concatenate([one.y for one in records]))
    return Halved(replace(federation, sites=tuple(sites)), everybody, np.concatenate(inside[1:]))


@dataclass(frozen=True)
class MemorisedRun:
    """One study to run over halves and look at; the first site is the requester."""

    attacked: AttackedStudy

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.attacked.case.name, self.attacked.variant, self.attacked.seed)

    def line(self) -> MemorisedLine:
        """Raises: ConfigurationError for data or settings that do not fit"""
        with timed() as seconds:
            of = self.attacked
            half = halved(replace(of, requester=None, seed=of.case.table.seeds[0]).federation(), of.seed)
            study = of.study(half.federation)
            seen = watched(of, study, half.federation, works_out_isolation=False)
            model, last = build_model(study.model, 0), seen.models[-1]
            right, confidence = _answers(model, last, half.records)
            inside = half.members
            return line_of(
                MemorisedLine,
                of,
                seen.history,
                parameters=study.parameters.dimension,
                known=rounded(right[inside].mean(), _DIGITS),
                unknown=rounded(right[~inside].mean(), _DIGITS),
                rounds=tuple(one.round for one in seen.history.rounds if one.kind.value == "released"),
                by_loss=tuple(_told(by_loss(model, one, half.records), inside) for one in seen.models[1:]),
                by_average=tuple(_told(by_averages(model, [one], half.records), inside) for one in seen.rounds),
                by_averages=_told(by_averages(model, seen.rounds, half.records), inside) if seen.rounds else None,
                members=tuple(bool(one) for one in inside),
                confidence=tuple(rounded(one, _DIGITS) for one in confidence),
                epsilon=_epsilons(study, half.federation.contributors),
                seconds=seconds(),
            )


def _epsilons(study: Study, sites: Sequence[SiteData]) -> dict[str, float]:
    """Return each site's epsilon at DELTA over all rounds of the study."""
    if study.privacy is None:
        return {}
    batch, noise = study.training.batch_size, study.privacy.noise_multiplier
    counts = {site.name: len(site.train) for site in sites}
    spent = {
        name: Steps(drawing_probability(count, batch), noise, study.rounds * steps_of(count, study.training))
        for name, count in counts.items()
    }
    return {name: rounded(epsilon_of([steps], DELTA), _DIGITS) for name, steps in spent.items()}


def _told(scores: Scores, inside: NDArray[np.bool_]) -> Told:
    return told(scores[inside], scores[~inside])


def _answers(model: torch.nn.Module, vector: Vector, data: Examples) -> tuple[NDArray[np.bool_], Scores]:
    """Return the records that the model has right, and log p / (1 - p) of their classes."""
    load_vector(model, vector)
    model.eval()
    y = torch.from_numpy(np.asarray(data.y))
    with torch.no_grad():
        shares = torch.softmax(model(torch.from_numpy(data.X)).double(), dim=1)
    p = shares.gather(1, y[:, None])[:, 0].clamp(_SURE, 1 - _SURE).numpy()
    return (shares.argmax(dim=1) == y).numpy(), np.asarray(np.log(p / (1 - p)))


def _whole(site: SiteData) -> Examples:
    parts = (site.train, site.validation, site.test)
    return Examples(np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts]))


INFERENCE_FORMAT: Final = "moiety-inference/1"


class InferenceLine(Line):
    """One contributor of one study.

    ``by_loss``, ``by_reference`` and ``by_averages`` are three attacks on membership (``membership.py``); the last is
    None where nothing was summed. ``apart`` is half the absolute difference of the site's class shares from the
    requester's, 0 to 1. ``distance`` is the mean opened distance over the requester's own norm, ``weight`` the site's
    last weight; None where the rule opens or changes none.
    """

    KEYS = ("study", "variant", "requester", "seed")
    format: str = INFERENCE_FORMAT
    study: str
    variant: str
    rule: str
    requester: str
    site: str
    seed: int
    sites: int
    members: int
    others: int
    released: int
    by_loss: Told
    by_reference: Told
    by_averages: Told | None
    apart: float
    distance: float | None
    weight: float | None
    seconds: float


_MANY: Final = 60
"""Records of each kind that are looked at: gradients of single records are what takes long."""


@dataclass(frozen=True)
class WatchedRun:
    attacked: AttackedStudy

    def lines(self) -> Iterator[InferenceLine]:
        """One for every contributor. Raises: ConfigurationError for data or settings that do not fit"""
        with timed():
            federation = self.attacked.federation()
            seen = self._watched(federation, alone=False)
            reference = self._watched(federation, alone=True).history.final_model
        for site in federation.contributors:
            with timed() as seconds:
                line = self._line(federation, site, seen, reference, seconds)
            yield line

    def _watched(self, federation: Federation, *, alone: bool) -> Watched:
        table = self.attacked.table
        if alone:
            table = table.model_copy(update={"rule": RuleSpec(name=RuleName.LOCAL), "privacy": None})
        study = self.attacked.study(federation, table)
        demanded = self.attacked.policy.least_isolation > 0
        return watched(self.attacked, study, federation, works_out_isolation=demanded)

    def _line(
        self, federation: Federation, site: SiteData, seen: Watched, reference: Vector, seconds: Callable[[], float]
    ) -> InferenceLine:
        history, model = seen.history, build_model(seen.study.model, 0)
        inside, outside = _some(site.train), _some(site.test)
        last = history.final_model
        averages = None
        if seen.rounds:
            averages = told(*(by_averages(model, seen.rounds, data) for data in (inside, outside)))
        return line_of(
            InferenceLine,
            self.attacked,
            history,
            site=site.name,
            members=len(inside),
            others=len(outside),
            by_loss=told(*(by_loss(model, last, data) for data in (inside, outside))),
            by_reference=told(*(by_reference(model, last, reference, data) for data in (inside, outside))),
            by_averages=averages,
            apart=rounded(_apart(federation, site), _DIGITS),
            distance=_distance(history, site.name),
            weight=_weight(history, site.name),
            seconds=seconds(),
        )


def _some(data: Examples) -> Examples:
    return Examples(data.X[:_MANY], data.y[:_MANY])


def _apart(federation: Federation, site: SiteData) -> float:
    """Half the absolute difference of two sites' class shares: what would have to move to make them equal."""
    classes = len(federation.class_names)

    def shares(one: SiteData) -> NDArray[np.float64]:
        return np.bincount(one.train.y, minlength=classes) / len(one.train)

    return float(np.abs(shares(site) - shares(federation.requester)).sum() / 2)


def _distance(history: RunHistory, site: str) -> float | None:
    """The mean over rounds, in the requester's own norms, so that falling gradients do not hide it."""
    series = distance_series(history)[site]
    norms = [record.requester_norm for record in history.rounds]
    found = [value / norm for value, norm in zip(series, norms, strict=True) if value is not None and norm > 0]
    return rounded(float(np.mean(found)), _DIGITS) if found else None


def _weight(history: RunHistory, site: str) -> float | None:
    series = alpha_series(history)[site]
    found = [value for value in series if value is not None]
    return rounded(found[-1], _DIGITS) if found else None


# --- classes, guessed from one number ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guessed:
    """``explained``: the part of the variance of what is guessed that the guesses explain (0: no better than the mean,
    1: all; below 0: worse than the mean). ``ranked``: Spearman's correlation over all sites.
    """

    sites: int
    explained: float
    ranked: float


def guessed(lines: Sequence[InferenceLine], number: str) -> Guessed | None:
    """Guess from ``distance`` or ``weight``; every seed from the others. None where there is nothing to see."""
    seen = [line for line in lines if getattr(line, number) is not None]
    seeds = sorted({line.seed for line in seen})
    values = np.array([getattr(line, number) for line in seen])
    if len(seeds) < 2 or np.ptp(values) == 0:
        return None
    truth, of = np.array([line.apart for line in seen]), np.array([line.seed for line in seen])
    guesses = np.concatenate([_line_of(values[of != s], truth[of != s], values[of == s]) for s in seeds])
    true = np.concatenate([truth[of == s] for s in seeds])
    left = float(np.sum((true - guesses) ** 2) / np.sum((true - true.mean()) ** 2))
    return Guessed(len(seen), 1 - left, float(spearmanr(values, truth).statistic))


def _line_of(x: NDArray[np.float64], y: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares through (x, y), read at ``at``; the mean where all x are one number."""
    if np.ptp(x) == 0:
        return np.full(at.size, y.mean())
    return np.asarray(np.polyval(np.polyfit(x, y, 1), at))
