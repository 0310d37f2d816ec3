"""A site's own model: one Python file with ``model()``, ``data(path)`` and ``loss(model, batch)``.

    model()             -> torch.nn.Module, float32 parameters; frozen layers by requires_grad = False
    data(path)          -> ((X_train, y_train), (X_test, y_test)), numpy arrays, X float32, y as the task takes it
    loss(model, batch)  -> a scalar tensor to minimise; batch.X and batch.y are on the training device
    metrics(model, data) -> {name: value}, if it likes: numbers on the test part, data.X and data.y whole on the device
    names(path)         -> (feature_names, class_names), each a list of texts or None; only for studies that name them

The file runs with the agent's rights: it is the site's own code, chosen by the site.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import numpy as np
import torch
from torch import nn

from client_agent.learning.data import (
    NO_NAMES,
    DataNames,
    Examples,
    LocalData,
    Targets,
    checked,
    folder_names,
    load_folder,
    names_of,
    require_names_of_study,
)
from client_agent.learning.evaluation import Assessor, OwnMetrics
from client_agent.learning.foreign_code import came_from, foreign_code, words_of
from client_agent.learning.losses import Batch, Loss, task_loss, training_loss
from client_agent.learning.models import build_model, private_state, require_layers
from client_agent.learning.scores import Score
from client_agent.learning.settings import NO_SOURCES, ModelSources
from host.extensions import FreshSource
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec, Study, TaskSpec
from protocol.messages.model import CLASSES
from protocol.text import NamesKind, require_nameable

FUNCTIONS: Final = ("model", "data", "loss")
_SEED: Final = 0
_NAME: Final = re.compile(r"[a-z0-9_]{1,40}")


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in; its results are checked whenever it is called."""

    path: Path
    module: ModuleType

    @property
    def source(self) -> str:
        """The file, as errors name it."""
        return f"plug-in {self.path}"

    def model(self, spec: ModelSpec, seed: int) -> nn.Module:
        """The plug-in's model, initial values from ``seed``, layers as the study pins them.

        Raises: ConfigurationError, UnusableUpdate
        """
        made = self.made(seed)
        require_layers(made, spec)
        return made

    def made(self, seed: int) -> nn.Module:
        """The model that model() gives, initial values from ``seed``. Raises: ConfigurationError"""
        with private_state(), foreign_code(self.source, "model()"):
            torch.manual_seed(seed % 2**63)
            made = self.module.model()
        if not isinstance(made, nn.Module):
            raise ConfigurationError(f"{self.path}: model() gave {type(made).__name__}, expected a torch.nn.Module")
        came_from(made, self.source)
        return made

    def data(self, path: Path, spec: ModelSpec, task: TaskSpec = CLASSES) -> LocalData:
        """The plug-in's examples, checked like those of a folder. Raises: ConfigurationError"""
        with foreign_code(self.source, f"data({str(path)!r})"):
            made = self.module.data(path)
        expected = "((X_train, y_train), (X_test, y_test)), and (X_validation, y_validation) behind them if it likes"
        if not (isinstance(made, tuple) and len(made) in (2, 3)):
            raise ConfigurationError(f"{self.path}: data() gave {type(made).__name__}, expected {expected}")
        names = ("train", "test", "validation")
        train, test, *validation = (self._part(part, name, spec, task) for part, name in zip(made, names, strict=False))
        if len(train) == 0:
            raise ConfigurationError(f"{self.path}: data() gave no training example; at least one is needed")
        return LocalData(train, test, validation[0] if validation else None, self.names(path))

    def names(self, path: Path) -> DataNames:
        """The plug-in's names of columns and classes; none without ``names(path)``. Raises: ConfigurationError"""
        function = getattr(self.module, "names", None)
        if function is None:
            return NO_NAMES
        with foreign_code(self.source, f"names({str(path)!r})"):
            made = function(path)
        if not (isinstance(made, tuple) and len(made) == len(NamesKind)):
            raise ConfigurationError(f"{self.path}: names() gave {made!r}, expected (feature_names, class_names)")
        features, classes = (self._texts(kind, one) for kind, one in zip(NamesKind, made, strict=True))
        return DataNames(features, classes)

    @property
    def loss(self) -> Loss:
        """The plug-in's loss, with its result checked. Raises: ConfigurationError (when called)"""

        def checked_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
            value = self.module.loss(model, batch)
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                found = f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
                raise ConfigurationError(f"{self.path}: loss() gave {found}, expected a scalar tensor")
            return value

        return checked_loss

    @property
    def metrics(self) -> OwnMetrics | None:
        """The plug-in's metrics, None without any. Raises: ConfigurationError, and what the plug-in raises (called)"""
        of = getattr(self.module, "metrics", None)
        return None if of is None else lambda model, data: self._checked_metrics(of(model, data))

    def _checked_metrics(self, made: object) -> tuple[Score, ...]:
        if not isinstance(made, dict) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in made):
            raise ConfigurationError(
                f"{self.path}: metrics() gave {type(made).__name__}, expected {{name: value}} with names of up to "
                "40 small letters, digits and _"
            )
        return tuple(self._score(name, value) for name, value in made.items())

    def _score(self, name: str, value: object) -> Score:
        if isinstance(value, torch.Tensor | np.generic | np.ndarray) and math.prod(value.shape) == 1:
            value = value.item()
        if not isinstance(value, int | float):
            found = type(value).__name__
            raise ConfigurationError(f"{self.path}: metrics() gave {found} for {name!r}, expected a number")
        if not math.isfinite(value):
            return Score(name=name, value=None, reason="the plug-in gave no finite number")
        return Score(name=name, value=float(value))

    def _texts(self, kind: NamesKind, given: object) -> tuple[str, ...]:
        if given is None:
            return ()
        names = tuple(given) if isinstance(given, list | tuple) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigurationError(
                f"{self.path}: names() gave {kind.value} {given!r}, expected a list of texts or None"
            )
        try:
            require_nameable(kind, names)
        except ValueError as error:
            raise ConfigurationError(f"{self.path}: names(): {error}") from None
        return names

    def _part(self, part: object, name: str, spec: ModelSpec, task: TaskSpec) -> Examples:
        pair = part if isinstance(part, tuple) else ()
        arrays = [array for array in pair if isinstance(array, np.ndarray)]
        if len(pair) != 2 or len(arrays) != 2:
            raise ConfigurationError(f"{self.path}: the {name} part of data() is no pair of numpy arrays (X, y)")
        where = f"{self.path}: {name} part of data()"
        return checked(arrays[0], arrays[1], spec.inputs, spec.classes, where, task)


def load_plugin(path: Path) -> Plugin:
    """Load a plug-in file. Raises: ConfigurationError naming what is missing or fails"""
    if not path.is_file():
        raise ConfigurationError(f"plug-in {path} is {'a folder: name a file in it' if path.is_dir() else 'missing'}")
    if path.suffix != ".py":
        raise ConfigurationError(f"plug-in {path}: not a Python file; its name must end in .py")
    loader = FreshSource("moiety_site_plugin", str(path))
    module = ModuleType(loader.name)
    module.__file__ = str(path)
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"plug-in {path} does not load: {words_of(error)}") from error
    for name in FUNCTIONS:
        if not callable(getattr(module, name, None)):
            raise ConfigurationError(f"plug-in {path}: function {name!r} is missing; it needs {', '.join(FUNCTIONS)}")
    return Plugin(path, module)


def study_plugin(study: Study, path: Path | None) -> Plugin | None:
    """The plug-in of a study whose model is one. Raises: ConfigurationError"""
    if study.model.kind != "plugin":
        return None
    if path is None:
        raise ConfigurationError(
            f"study {study.name!r} uses a plug-in's model: set key 'plugin' of the agent's settings (--config) to "
            "the site's Python file, or name that where the command takes it (--plugin)"
        )
    if study.training.class_weights != "none":
        raise ConfigurationError(
            f"study {study.name!r}: class_weights belong to the built-in loss; a plug-in's loss() weighs classes itself"
        )
    return load_plugin(path)


def study_model(study: Study, plugin: Plugin | None, sources: ModelSources = NO_SOURCES) -> nn.Module:
    """The study's network, its values any but those of frozen layers. Raises: ConfigurationError, UnusableUpdate"""
    if plugin is None:
        return build_model(study.model, _SEED, sources)
    return plugin.model(study.model, _SEED)


def fitting_data(study: Study, path: Path, plugin: Plugin | None) -> LocalData:
    """The site's examples, which the study's model takes and whose names are the study's. Raises: ConfigurationError"""
    spec = study.model
    names = folder_names(path) if plugin is None else plugin.names(path)
    require_names_of_study(names_of(spec), names, study.name, str(path))
    if plugin is None:
        return load_folder(path, spec.inputs, spec.classes, study.task)
    return plugin.data(path, spec, study.task)


def assessor(study: Study, plugin: Plugin | None, device: torch.device) -> Assessor:
    """Return the judge of models: the task's metrics and loss, or the plug-in's loss and its metrics too."""
    if plugin is None:
        return Assessor(study.task, task_loss(study.task), device)
    return Assessor(study.task, plugin.loss, device, plugin.metrics)


def site_loss(study: Study, plugin: Plugin | None, y: Targets) -> Loss:
    """Return the loss that a site with these training targets minimises."""
    return training_loss(study.training, y, study.task) if plugin is None else plugin.loss
