"""Evaluate a model on a site's own examples: loss, accuracy, and the metrics of its task.

None of it leaves the site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import shared_parameters
from client_agent.learning.foreign_code import model_code, source_of, words_of
from client_agent.learning.losses import Batch, BuiltIn, Loss, cross_entropy
from client_agent.learning.metrics import Predicted, final_scores, scores
from client_agent.learning.scores import METRICS, FinalScores, MetricName, Score
from client_agent.learning.trainer import all_of, evaluating, gradients, private_randomness, take
from protocol.errors import ConfigurationError
from protocol.messages.control import Study, TaskKind, TaskSpec

_TRIED_ROWS: Final = 64
OwnMetrics = Callable[[nn.Module, Batch], tuple[Score, ...]]
"""A plug-in's metrics of a model on a whole part of the data; it may raise anything."""
_log = structlog.get_logger("agent")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Mean loss over all examples, and the model's outputs for them, float32[n, K]; None where it gives no such array.

    Of classes also the share of right answers, and ``class_accuracy``, that among each class's examples, None for a
    class without any.
    """

    loss: float
    outputs: NDArray[np.float32] | None = field(repr=False)
    accuracy: float | None = None
    class_accuracy: tuple[float | None, ...] = ()


@dataclass(frozen=True, eq=False)
class Assessment:
    """An evaluation with the task's metrics, and the plug-in's behind them."""

    evaluation: Evaluation
    scores: tuple[Score, ...]


NOTHING: Final = Assessment(Evaluation(math.nan, None), ())
"""The assessment of a part without examples."""


@dataclass(frozen=True, eq=False)
class Assessor:
    """A site's judge of a study's models: its task's metrics, its loss, and a plug-in's own metrics."""

    task: TaskSpec
    loss: Loss
    device: torch.device
    own_metrics: OwnMetrics | None = None

    def evaluate(self, model: nn.Module, data: Examples) -> Evaluation:
        """Loss, and accuracy where the task is of classes."""
        found = evaluate(model, data, self.device, self.loss)
        return found if self.task.kind is TaskKind.CLASSES else replace(found, accuracy=None, class_accuracy=())

    def assess(
        self, model: nn.Module, data: Examples, train: Examples, only: Collection[MetricName] | None = None
    ) -> Assessment:
        """The metrics on ``data``, all or ``only`` some of the task's; ``train`` is this site's training part."""
        found = self.evaluate(model, data)
        predicted = self.predicted(model, data, train, only, found)
        built_in = () if predicted is None else scores(predicted, only)
        return Assessment(found, (*built_in, *self._own(model, data)))

    def final_scores(self, model: nn.Module, data: Examples, train: Examples, samples: int, seed: int) -> FinalScores:
        """All metrics on ``data``, the task's with intervals over ``samples`` bootstrap draws; a plug-in's without."""
        predicted, own = self.predicted(model, data, train), self._own(model, data)
        if predicted is None:
            return FinalScores(examples=len(data), samples=0, scores=own)
        found = final_scores(predicted, samples, seed)
        return found.model_copy(update={"scores": (*found.scores, *own)})

    def predicted(
        self,
        model: nn.Module,
        data: Examples,
        train: Examples,
        only: Collection[MetricName] | None = None,
        found: Evaluation | None = None,
    ) -> Predicted | None:
        """The outputs for ``data``, or those ``found`` before, beside its targets; None for a task without metrics."""
        outputs = (found or self.evaluate(model, data)).outputs
        if outputs is None or not METRICS[self.task.kind]:
            return None
        baseline = None
        if self.task.kind is TaskKind.SURVIVAL and (only is None or MetricName.INTEGRATED_BRIER in only):
            of_train = self.evaluate(model, train).outputs
            baseline = None if of_train is None else Predicted(self.task, of_train, train.y)
        return Predicted(self.task, outputs, data.y, baseline)

    def try_once(self, study: Study, model: nn.Module, train: Examples) -> None:
        """One forward and backward pass on the first training examples; the model stays as it is.

        What would end a study after round 1 is said here: outputs that the task does not take, a loss without a
        gradient, a plug-in whose functions raise.
        Raises: ConfigurationError that names what to change
        """
        batch = take(train, np.arange(min(_TRIED_ROWS, len(train))), self.device)
        with evaluating(model, self.device), private_randomness(0, "trial", self.device):
            if isinstance(self.loss, BuiltIn) or study.task.kind is not TaskKind.OWN:
                _require_outputs(study, model, batch)
            _require_gradient(study, model, batch, self.loss)
            if self.own_metrics is not None:
                with torch.no_grad(), model_code(model, "metrics()"):
                    self.own_metrics(model, batch)

    def _own(self, model: nn.Module, data: Examples) -> tuple[Score, ...]:
        if self.own_metrics is None:
            return ()
        try:
            with evaluating(model, self.device), torch.no_grad():
                return self.own_metrics(model, take(data, np.arange(len(data)), self.device))
        except Exception as failure:
            _log.warning("plugin_metrics", detail=words_of(failure))
            reason = f"the plug-in's metrics() raised {type(failure).__name__}"
            return (Score(name="metrics", value=None, reason=reason),)


def evaluate(model: nn.Module, data: Examples, device: torch.device, loss: Loss = cross_entropy) -> Evaluation:
    """Outputs, loss and, of classes, accuracy over ``data``, which must not be empty; the training mode is restored.

    A built-in loss sees all examples at once; a plug-in's its batches, of which the mean is taken.
    """
    found: list[torch.Tensor] = []
    losses = 0.0
    with evaluating(model, device), torch.no_grad(), model_code(model, "the forward pass or the loss"):
        for batch in all_of(data, device):
            outputs = model(batch.X)
            if isinstance(outputs, torch.Tensor) and outputs.ndim == 2:
                found.append(outputs)
            if not isinstance(loss, BuiltIn):
                losses += float(loss(model, batch)) * len(batch.y) / len(data)
        if not found:
            return Evaluation(losses, None)
        together = torch.cat(found)
        if isinstance(loss, BuiltIn):
            losses = float(loss.of(together, torch.from_numpy(data.y).to(device)))
    of_all = together.float().cpu().numpy()
    if data.y.ndim != 1 or data.y.dtype != np.int64:
        return Evaluation(losses, of_all)
    hits = data.y[of_all.argmax(axis=1) == data.y]
    return Evaluation(losses, of_all, len(hits) / len(data), _by_class(hits, data.y, of_all.shape[1]))


def _by_class(hits: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> tuple[float | None, ...]:
    right, there = np.bincount(hits, minlength=classes), np.bincount(labels, minlength=classes)
    return tuple(float(r / n) if n else None for r, n in zip(right, there, strict=True))


def _require_outputs(study: Study, model: nn.Module, batch: Batch) -> None:
    expected = [len(batch.X), study.model.classes]
    with torch.no_grad(), model_code(model, "the forward pass"):
        outputs = model(batch.X)
    found: object = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if isinstance(outputs, torch.Tensor) and not outputs.is_floating_point():
        found = f"{outputs.dtype}{found}"
    if found != expected:
        raise ConfigurationError(
            f"study {study.name!r}: for {expected[0]} examples the model gives {found}, task {study.task.kind.value!r} "
            f"expects {expected}: let model() end in {expected[1]} outputs, or set another number in [model]"
        )


def _require_gradient(study: Study, model: nn.Module, batch: Batch, loss: Loss) -> None:
    shared = shared_parameters(model)
    for _ in range(2):  # a model that keeps a graph from one step to the next fails at the second
        found = gradients(model, [parameter for _, parameter in shared], batch, loss)
    sparse = [name for (name, _), part in zip(shared, found, strict=True) if part.layout != torch.strided]
    if sparse:
        raise ConfigurationError(
            f"{source_of(model)}layer {sparse[0]!r} has a sparse gradient, which cannot be summed: make it dense, "
            "nn.Embedding(..., sparse=False)"
        )
    if not all(bool(torch.isfinite(part).all()) for part in found):
        raise ConfigurationError(
            f"study {study.name!r}: the loss on this site's first {len(batch.X)} training examples has a gradient that "
            "is not finite: bring features and targets to a common scale"
        )
