"""Rules, models and metrics that others bring, for plain runs of cases.

Servers and sites know the rules of the protocol and the built-in models alone, and so does a study. What a package's
rule does happens at the requester: the sum over the sites, and how it is applied, are FedAvg's.

A metric is a function of the model's outputs, float32[n, K], and the targets of the same examples, as arrays; it gives
a number. What it cannot compute is missing in that round, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from client_agent.architectures.statistics import keep_buffers
from client_agent.learning.evaluation import OwnMetrics
from client_agent.learning.foreign_code import came_from, words_of
from client_agent.learning.models import completed
from client_agent.learning.seeding import private_state
from client_agent.learning.study_file import ModelTable
from client_agent.scoring.score import Score
from client_agent.tasks.losses import Batch
from host.extensions import Extension, Kind, extension, is_brought
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec, RuleName, Study
from protocol.rules.interface import Rule
from protocol.rules.registry import packaged_rule_for

STAND_IN: Final = {"name": RuleName.FEDAVG.value}
MODEL_STAND_IN: Final = "plugin"


@dataclass(frozen=True)
class ChosenRule:
    """The rule's name and its options as they were written."""

    name: str
    options: Mapping[str, Any]

    @property
    def package(self) -> tuple[str, str]:
        """Its name and version. Raises: ConfigurationError"""
        return package_of(Kind.RULE, self.name)

    def rule(self, batch_size: int, grid: int) -> Rule:
        """The rule itself. Raises: ConfigurationError for options that it does not take"""
        offered = extension(Kind.RULE, self.name).load()
        return packaged_rule_for(self.name, offered, self.options, batch_size=batch_size, grid=grid)

    def rule_of(self, study: Study) -> Rule:
        """The rule with the study's numbers. Raises: ConfigurationError"""
        return self.rule(study.training.batch_size, study.parameters.weight_grid)


@dataclass(frozen=True)
class ChosenModel:
    """A model that others bring: a function of the shape of one example and the number of outputs."""

    name: str

    def build(self, table: ModelTable, seed: int) -> nn.Module:
        """The model with its first values, drawn from the seed. Raises: ConfigurationError"""
        make = extension(Kind.MODEL, self.name).load()
        if not callable(make):
            raise ConfigurationError(f"model {self.name!r}: found {type(make).__name__}, expected a function")
        with private_state():
            torch.manual_seed(seed % 2**63)
            try:
                made = make(table.inputs, table.width)
            except Exception as error:  # whatever foreign code raises
                raise ConfigurationError(f"model {self.name!r}: {words_of(error)}") from error
        if not isinstance(made, nn.Module):
            raise ConfigurationError(f"model {self.name!r}: gave {type(made).__name__}, expected a torch.nn.Module")
        keep_buffers(made, table.buffers)
        came_from(made, f"model {self.name!r}")
        return made

    def spec(self, table: ModelTable) -> ModelSpec:
        """As a study has it. Raises: ConfigurationError; UnusableUpdate for a model that cannot be shared"""
        made = self.build(table, 0)
        given = ModelSpec(kind="plugin", inputs=table.inputs, hidden=table.hidden, classes=table.width, layers=())
        return completed(given.model_copy(update={"buffers": table.buffers}), made)


def package_of(kind: Kind, name: str) -> tuple[str, str]:
    """Return the package and its version. Raises: ConfigurationError"""
    found: Extension = extension(kind, name)
    return found.package, found.version


def chosen_model(tables: Mapping[str, Any]) -> ChosenModel | None:
    """The model of others that a study's tables name, None for one of the built-in ones."""
    written = tables.get("model")
    kind = str(written.get("kind", "")) if isinstance(written, Mapping) else ""
    return ChosenModel(kind) if is_brought(kind) else None


def chosen_rule(tables: Mapping[str, Any]) -> ChosenRule | None:
    """The package's rule that a study's tables name, None where they name one of the protocol's."""
    written = tables.get("rule")
    if not isinstance(written, Mapping) or not is_brought(str(written.get("name", ""))):
        return None
    return ChosenRule(str(written["name"]), {key: value for key, value in written.items() if key != "name"})


def without_package(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The same tables with a rule and a model that studies know."""
    rule = {"rule": STAND_IN} if chosen_rule(tables) else {}
    model = {"model": {**tables["model"], "kind": MODEL_STAND_IN}} if chosen_model(tables) else {}
    return {**tables, **rule, **model}


def refuse_package(tables: Mapping[str, Any], source: str) -> None:
    """ConfigurationError where a package's rule or model is named and only the project's own can be run."""
    rule, model = chosen_rule(tables), chosen_model(tables)
    if rule is not None:
        raise ConfigurationError(
            f"{source}: rule {rule.name!r} is from a package, and such rules run in plain runs of cases only: "
            f"give the file a [case], or take one of {', '.join(name.value for name in RuleName)}"
        )
    if model is not None:
        raise ConfigurationError(
            f"{source}: model {model.name!r} is from a package, and such models run in plain runs of cases only: give "
            "the file a [case], or a built-in kind of model"
        )


Metric = Callable[[Any, Any], object]


def own_metrics(names: Sequence[str]) -> OwnMetrics | None:
    """All of them over some examples; None for no name. Raises: ConfigurationError for what is not there"""
    found = [(name, _function(name)) for name in names]
    if not found:
        return None

    def measured(model: nn.Module, batch: Batch) -> tuple[Score, ...]:
        with torch.no_grad():
            outputs = model(batch.X).cpu().numpy()
        targets = batch.y.cpu().numpy()
        return tuple(_score(name, function, outputs, targets) for name, function in found)

    return measured


def _function(name: str) -> Metric:
    found = extension(Kind.METRIC, name).load()
    if not callable(found):
        raise ConfigurationError(
            f"metric {name!r}: found {type(found).__name__}, expected a function of outputs and targets"
        )
    function: Metric = found
    return function


def _score(name: str, function: Metric, outputs: object, targets: object) -> Score:
    try:
        value = float(np.asarray(function(outputs, targets), np.float64))
    except Exception as error:  # whatever foreign code raises
        return Score(name=name, value=None, reason=f"{type(error).__name__}: {error}")
    finite = math.isfinite(value)
    return Score(name=name, value=value if finite else None, reason="" if finite else "it gave no finite number")
