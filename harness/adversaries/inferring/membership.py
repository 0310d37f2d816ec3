"""Whether a record was trained on: scores by which a curious requester, or anybody with the model, would guess.

Source: Yeom et al. 2018 (loss); Watson et al. 2022 (loss against a reference model's); Nasr, Shokri, Houmansadr 2019
        (the part of a record's gradient in what was opened, over rounds)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from client_agent.learning.at_requester.sample_gradients import sample_gradients
from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, load_vector
from client_agent.learning.trainer import take
from harness.adversaries.inferring.lines import Told

Scores = NDArray[np.float64]
_CPU: Final = torch.device("cpu")
_FALSE: Final = 0.01
_NOTHING: Final = 1e-12
_DIGITS: Final = 4


@dataclass(frozen=True, eq=False)
class Opened:
    """One released round: the model that sites trained on, and the average that they opened."""

    model: Vector = field(repr=False)
    average: NDArray[np.float64] = field(repr=False)


def losses(model: nn.Module, vector: Vector, data: Examples) -> Scores:
    """The log-loss of every example."""
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
    """How much of every record's gradient is in what was opened, the mean cosine over rounds."""
    total, batch = np.zeros(len(data)), take(data, np.arange(len(data)), _CPU)
    for opened in rounds:
        load_vector(model, opened.model)
        gradients = sample_gradients(model, batch)
        lengths = np.maximum(np.linalg.norm(gradients, axis=1), _NOTHING)
        total += gradients @ opened.average / lengths / max(float(np.linalg.norm(opened.average)), _NOTHING)
    return total / max(1, len(rounds))


def told(members: Scores, others: Scores) -> Told:
    """How well the scores tell the one from the other."""
    scores, are = np.concatenate([members, others]), np.repeat([1, 0], [len(members), len(others)])
    false, true, _ = roc_curve(are, scores)
    at = float(true[false <= _FALSE].max())
    return Told(auc=round(float(roc_auc_score(are, scores)), _DIGITS), at_one_percent=round(at, _DIGITS))
