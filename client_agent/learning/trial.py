"""One forward and backward pass on some of a site's own examples, before a study is queued or a site says it is ready.

What would end a study after round 1 is said here: outputs that the task does not take, a loss without a gradient, a
plug-in whose functions raise. Nothing of it is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from client_agent.architectures.sources import NO_SOURCES, ModelSources
from client_agent.learning.at_requester.finish import LocalFinish
from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.check_data import fitting_data, remarks
from client_agent.learning.data import Examples
from client_agent.learning.evaluation import Assessor
from client_agent.learning.flat_vector import pick_device
from client_agent.learning.foreign_code import model_code, source_of
from client_agent.learning.models import build_model
from client_agent.learning.personal import shared_parameters
from client_agent.learning.plugin import assessor, load_plugin, site_loss
from client_agent.learning.trainer import gradients, private_randomness, take
from client_agent.tasks.losses import Batch, BuiltIn
from protocol.errors import ConfigurationError
from protocol.messages.control import Study, TaskKind

_ROWS: Final = 64


def try_once(study: Study, model: nn.Module, train: Examples, judge: Assessor) -> None:
    """Outputs, loss, gradient and metrics on the first training examples; the model stays as it is.

    Raises: ConfigurationError that names what to change
    """
    rows = np.arange(min(_ROWS, len(train)))
    batch = take(train, rows, judge.device)
    model.to(judge.device).eval()
    with private_randomness(0, "trial", judge.device):
        if isinstance(judge.loss, BuiltIn) or study.task.kind is not TaskKind.OWN:
            _require_outputs(study, model, batch)
        _require_gradient(study, model, batch, judge)
        if judge.own_metrics is not None:
            own_metrics = judge.own_metrics
            with torch.no_grad(), model_code(model, "metrics()"):
                own_metrics(model, batch)


def try_study(
    study: Study,
    data: Path,
    plugin_file: Path | None,
    device: str,
    sources: ModelSources = NO_SOURCES,
    finish: FinishTable | None = None,
) -> tuple[str, ...]:
    """Try what a site's agent would try first: its data, the model and the plug-in, and a local finish.

    Returns: what a person should know
    Raises: ConfigurationError that names what to change; UnusableUpdate for a model that cannot be shared
    """
    plugin = None
    if study.model.kind == "plugin":
        if plugin_file is None:
            raise ConfigurationError(f"study {study.name!r} uses a plug-in model: set key 'plugin' to the site's file")
        plugin = load_plugin(plugin_file)
    found = fitting_data(study, data, plugin)
    model = build_model(study.model, 0, sources) if plugin is None else plugin.model(study.model, 0)
    try_once(study, model, found.train, assessor(study, plugin, pick_device(device)))
    if finish is not None:
        seen, held = finish.parts(found.train, 0)
        LocalFinish(model, site_loss(study, plugin, seen.y), study.training.l2, seen, held).require_possible()
    return remarks(study, found)


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


def _require_gradient(study: Study, model: nn.Module, batch: Batch, assessor: Assessor) -> None:
    shared = shared_parameters(model)
    for _ in range(2):  # a model that keeps a graph from one step to the next fails at the second
        found = gradients(model, [parameter for _, parameter in shared], batch, assessor.loss)
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
