"""The built-in losses of the tasks, and what every loss is: a function of model and mini-batch.

All are means over the examples of a mini-batch, Cox's over its events. Where a model has several outputs, theirs are
averaged too, so that a learning rate does not depend on their number.

Cox's partial likelihood as a loss: which of those still at risk has the event, in the order of the times. The risk set
of an event is everybody *of the same mini-batch at the same site* whose time is not shorter. So the loss is stratified
by site: examples of two sites are never compared, since their data never meet, and each site has a baseline hazard of
its own, as in a Cox model stratified by centre. Mini-batches stratify once more: a study that wants a site's full risk
sets takes a batch_size as large as its largest site (docs/simulating.md).

Source: Cox 1972, Regression models and life-tables; Breslow 1974, Covariance analysis of censored survival data;
Efron 1977, The efficiency of Cox's likelihood function for censored data
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import EVENT, TIME
from protocol.errors import ConfigurationError
from protocol.messages.control import LossName, TaskSpec, TrainingSpec
from protocol.messages.model import CLASSES


def cox_loss(outputs: torch.Tensor, y: torch.Tensor, *, efron: bool) -> torch.Tensor:
    """The negative log partial likelihood, per event; 0 with a gradient of 0 where nobody has an event.

    Events at one time share Breslow's sum over everybody at risk or, with ``efron``, Efron's, in which the k-th of d
    events counts k / d of all d as no longer at risk.

    Shapes: outputs float32[n, 1], the log hazards; y float32[n, 2], time and event -> a scalar
    """
    hazards = outputs[:, 0]
    order = torch.argsort(y[:, TIME], descending=True, stable=True)
    eta, time, event = hazards[order], y[order, TIME], y[order, EVENT] > 0
    events = int(event.sum())
    if events == 0:
        return hazards.sum() * 0.0
    _, group, sizes = torch.unique_consecutive(time, return_inverse=True, return_counts=True)
    at_risk = torch.logcumsumexp(eta, dim=0)[torch.cumsum(sizes, 0) - 1][group][event]
    if efron:
        at_risk = at_risk + torch.log1p(-_left(eta[event], group[event], at_risk, len(sizes)))
    return (at_risk - eta[event]).sum() / events


def _left(eta: torch.Tensor, group: torch.Tensor, at_risk: torch.Tensor, groups: int) -> torch.Tensor:
    """Efron's share of the risk that left before each event: k / d of the d tied events' hazards, over all at risk.

    Shapes: eta, group, at_risk [events], in the order of group -> [events], each in [0, 1)
    """
    tied = torch.bincount(group, minlength=groups)
    first = torch.cumsum(tied, 0) - tied
    place = torch.arange(len(group), device=group.device) - first[group]
    of_all = torch.exp(eta - at_risk)
    shared = torch.zeros(groups, dtype=eta.dtype, device=eta.device).index_add(0, group, of_all)
    return (place / tied[group].to(eta.dtype)) * shared[group].clamp(max=1.0)


class Batch(NamedTuple):
    """Some examples on the training device."""

    X: torch.Tensor
    y: torch.Tensor


Loss = Callable[[nn.Module, Batch], torch.Tensor]
OfOutputs = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class BuiltIn:
    """A loss that sees of the model only its outputs: ``of(outputs [n, K], y)`` is a scalar.

    ``each(outputs, y)`` are the examples' own losses, [n], of which it is the mean; None where examples are compared.
    """

    of: OfOutputs
    each: OfOutputs | None = None

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return self.of(model(batch.X), batch.y)


def _averaged(function: Callable[..., torch.Tensor], **options: float) -> BuiltIn:
    """A loss of torch's that is averaged over outputs and examples."""

    def each(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return function(outputs, y, reduction="none", **options).mean(dim=1)

    return BuiltIn(lambda outputs, y: each(outputs, y).mean(), each)


cross_entropy = BuiltIn(nn.functional.cross_entropy, partial(nn.functional.cross_entropy, reduction="none"))
"""Mean negative log-likelihood of classes."""


def task_loss(task: TaskSpec) -> BuiltIn:
    """The task's own loss. Raises: ConfigurationError where it is the plug-in's"""
    match task.chosen_loss:
        case LossName.CROSS_ENTROPY:
            return cross_entropy
        case LossName.BINARY:
            return _averaged(nn.functional.binary_cross_entropy_with_logits)
        case LossName.SQUARED:
            return _averaged(nn.functional.mse_loss)
        case LossName.HUBER:
            return _averaged(nn.functional.huber_loss, delta=task.huber_delta)
        case LossName.POISSON:
            # exp(o) - y o, the outputs o being log rates; what does not depend on the model is left out
            return _averaged(nn.functional.poisson_nll_loss, log_input=True, full=False)
        case LossName.COX:
            return BuiltIn(partial(cox_loss, efron=task.ties == "efron"))
        case LossName.PLUGIN:
            raise ConfigurationError("task 'own': the loss is the plug-in's, give the site's plug-in file")


def training_loss(training: TrainingSpec, y: NDArray[Any], task: TaskSpec = CLASSES) -> Loss:
    """The built-in loss on a site with these training targets, classes weighted where the study says so."""
    return task_loss(task) if training.class_weights == "none" else weighted_cross_entropy(y)


def inverse_frequency(labels: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
    """Weight of each class: one over its frequency in ``labels``, float32[classes]; 0 for a class that is not there.

    Scaled to sum to the number of classes present, so that they average 1 whatever the model's number of classes.
    """
    counts = np.bincount(labels, minlength=classes)
    inverse = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
    weights: NDArray[np.float32] = (inverse / inverse.sum() * np.count_nonzero(counts)).astype(np.float32)
    return weights


def weighted_cross_entropy(labels: NDArray[np.int64]) -> Loss:
    """Negative log-likelihood, each class weighted by :func:`inverse_frequency`, over the sum of a batch's weights."""
    present = torch.from_numpy(inverse_frequency(labels, 0))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        logits = model(batch.X)
        weights = nn.functional.pad(present.to(logits), (0, logits.shape[1] - len(present)))
        return nn.functional.cross_entropy(logits, batch.y, weight=weights)

    return loss
