"""Membership of records in the training data: scores by which anybody with the model would guess.

Scores are by a model's loss and by a record's part in opened averages. The attacker has every model and every opened
average, as the requester and every listed site have.

The study puts each data set's own split together again, and every seed draws another half to train on, so that the same
record is inside in some runs and outside in others. Features are as the first seed's split scales them, in every run.

Source: Yeom et al. 2018 (loss); Nasr, Shokri, Houmansadr 2019 (the part of a record's gradient in what was opened, over
        rounds)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
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
from harness.engine.history import RunHistory
from harness.engine.run_state import Progress
from protocol.messages.control import Study
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


def by_loss(model: nn.Module, vector: Vector, data: Examples) -> Scores:
    """A record that was trained on has a small loss."""
    load_vector(model, vector)
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(data.X))
        found = nn.functional.cross_entropy(outputs, torch.from_numpy(data.y), reduction="none")
    return np.asarray(-found.numpy(), np.float64)


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


def memorised(of: AttackedStudy) -> MemorisedLine:
    """Run one study over halves and look at it; the first site is the requester.

    Raises: ConfigurationError for data or settings that do not fit
    """
    with timed() as seconds:
        half = halved(replace(of, requester=None, seed=of.case.table.seeds[0]).federation(), of.seed)
        study = of.study(half.federation)
        history, rounds, models = _watched(of, study, half.federation)
        model, last = build_model(study.model, 0), models[-1]
        right, confidence = _answers(model, last, half.records)
        inside = half.members
        return line_of(
            MemorisedLine,
            of,
            history,
            parameters=study.parameters.dimension,
            known=rounded(right[inside].mean(), _DIGITS),
            unknown=rounded(right[~inside].mean(), _DIGITS),
            rounds=tuple(one.round for one in history.rounds if one.kind.value == "released"),
            by_loss=tuple(_told(by_loss(model, one, half.records), inside) for one in models[1:]),
            by_average=tuple(_told(by_averages(model, [one], half.records), inside) for one in rounds),
            by_averages=_told(by_averages(model, rounds, half.records), inside) if rounds else None,
            members=tuple(bool(one) for one in inside),
            confidence=tuple(rounded(one, _DIGITS) for one in confidence),
            epsilon=_epsilons(study, half.federation.contributors),
            seconds=seconds(),
        )


def _watched(
    attacked: AttackedStudy, study: Study, federation: Federation
) -> tuple[RunHistory, list[Opened], list[Vector]]:
    """Run it plainly, which opens what a protected run opens but for its rounding. Raises: ConfigurationError

    -> history, released rounds, and the models that rounds began with and the last one, whatever the rounds' kind
    """
    recorder, models = Recorder(), [first_model(study)]
    dimension = study.parameters.dimension

    def keep(progress: Progress) -> None:
        models.append(progress.state.vector[:dimension].copy())

    history = attacked.run(study, federation, recorder, after_round=keep, works_out_isolation=False)
    opened = [Opened(models[one.round - 1], one.total / sum(one.weights.values())) for one in recorder.sums]
    return history, opened, models


def _epsilons(study: Study, sites: Sequence[SiteData]) -> dict[str, float]:
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
