"""A study as a person writes it in TOML; the layers and their number are filled in from the model itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from client_agent.learning.data import NO_NAMES, DataNames, Examples, folder_names, require_names_of_study
from client_agent.learning.settings import NO_SOURCES, ModelSources
from host.frozen import Frozen
from protocol.ckks.ciphertext import CkksParameters
from protocol.configuration import explain, parse_toml
from protocol.errors import ConfigurationError
from protocol.messages.control import (
    ModelSpec,
    PrivacySpec,
    RankingSpec,
    Roster,
    RuleSpec,
    Study,
    SummarySpec,
    TableSchema,
    TaskKind,
    TaskSpec,
    TrainingSpec,
)
from protocol.messages.model import CLASSES, Buffers
from protocol.messages.purpose import USUAL_PROTECTION, StudyProtection
from protocol.messages.specifications import NO_SERVERS_NOISE
from protocol.parameters import MAX_ENCODED_NORM_LOG2, MIN_SKETCH_LENGTH, WORD_BITS, RingBits, StudyParameters
from protocol.rules.registry import require_sites, rule_for
from protocol.text import NamesKind, require_model_names


class FinishTable(Frozen, strict=True):
    """``[finish]``. ``choose`` the pull by examples ``held_out`` of the shared rounds (that share of the requester's
    training part), or by all of them, each left out once (small models whose loss is a mean over examples).

    The requester's own: it is no part of the signed study, and no other party learns of it.
    """

    choose: Literal["held_out", "leave_one_out"] = "held_out"
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2

    def parts(self, train: Examples, seed: int) -> tuple[Examples, Examples]:
        """Return the examples of the shared rounds, and those held out of them. Raises: ConfigurationError"""
        held = round(len(train) * self.held_out) if self.choose == "held_out" else 0
        if self.choose == "held_out" and not 0 < held < len(train):
            raise ConfigurationError(
                f"key 'finish.held_out': {self.held_out} of {len(train)} training examples leaves one part empty"
            )
        order = np.random.default_rng([seed, held]).permutation(len(train))
        rest, out = np.sort(order[held:]), np.sort(order[:held])
        return Examples(train.X[rest], train.y[rest]), Examples(train.X[out], train.y[out])


@dataclass(frozen=True, eq=False)
class Finished:
    """The model, float32[D], and the pull; None where the shared model stayed as it is.

    ``seen`` and ``held`` count the training examples that the shared rounds had and had not.
    """

    vector: NDArray[np.float32] = field(repr=False)
    pull: float | None
    seen: int
    held: int


B = TypeVar("B", bound=BaseModel)
_MODEL_AS_WRITTEN: Final = {"kind", "inputs", "hidden", "activation", "dropout", "personal", "buffers"}


class ArchitectureTable(Frozen, strict=True):
    """A network of a library by name and arguments; without a version it is the one that is installed here."""

    library: str
    name: str
    version: str | None = None
    arguments: dict[str, bool | int | float | str | list[Any]] = {}


class ModelTable(Frozen, strict=True):
    """``kind`` is linear, mlp, cnn, library or plugin; ``inputs`` the shape of one example.

    ``classes`` (2 where nothing is said) or, in studies of other tasks, ``outputs``: how many numbers the model gives.

    ``personal`` layers, ``input`` and ``target``, stay at the site (client_agent.learning.models explains the others).
    ``feature_names`` and ``class_names``: None takes the requester's own, an empty list names nothing.
    ``architecture`` is the network of kind library. Layers whose names begin with none of ``trainable`` are frozen, as
    the file ``weights`` has them; ``buffers`` says what becomes of batch norm's statistics.
    """

    kind: str = Field(pattern=r"^(linear|mlp|cnn|library|plugin)$")
    inputs: tuple[int, ...]
    hidden: tuple[int, ...] = ()
    classes: int | None = Field(default=None, ge=2)
    outputs: int | None = Field(default=None, ge=1)
    activation: Literal["relu", "tanh"] = "relu"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    personal: tuple[Literal["input", "target"], ...] = ()
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    architecture: ArchitectureTable | None = None
    buffers: Buffers | None = None
    trainable: tuple[str, ...] = ()
    weights: str | None = None

    @model_validator(mode="after")
    def _possible(self) -> ModelTable:
        if (self.weights is None) != (not self.trainable):
            raise ValueError(
                "trainable names the layers that are trained, and weights the file with all others: give both"
            )
        if self.personal and self.kind in ("library", "plugin"):
            raise ValueError(f"personal layers stand around built-in models, found kind {self.kind!r}: leave them out")
        if self.trainable and self.kind == "plugin":
            raise ValueError("a plug-in freezes layers itself (requires_grad = False): leave trainable and weights out")
        require_model_names(self.feature_names or (), self.class_names or (), self.inputs, self.width)
        return self

    @property
    def width(self) -> int:
        """Number of the model's outputs."""
        return self.outputs or self.classes or 2

    @property
    def names(self) -> DataNames:
        """The names in the file."""
        return DataNames(self.feature_names or (), self.class_names or ())


class ParametersTable(Frozen, strict=True):
    """The study's numbers, without the dimension, which the model fixes."""

    clip_norm: float
    encoded_norm_log2: int = MAX_ENCODED_NORM_LOG2
    weight_grid: int = 32
    sketch_length: int = MIN_SKETCH_LENGTH
    least_contributors: int = 3
    assumed_colluders: int = 0
    ring_bits: RingBits = WORD_BITS


class StudyTable(Frozen, strict=True):
    """A whole study file; with ``rounds`` 0 the study is its summary alone."""

    name: str
    rounds: int = Field(ge=0)
    list_every: int = Field(default=1, ge=1)
    round_deadline_s: float = 600.0
    correlation_source: str = Field(default="ot", pattern=r"^(ot|dealer)$")
    protection: StudyProtection = USUAL_PROTECTION
    ranking: RankingSpec | None = None
    seed: int | None = None
    data_schema: TableSchema | None = Field(default=None, alias="schema")
    summary: SummarySpec | None = None
    tags: bool = False
    privacy: PrivacySpec | None = None
    model: ModelTable
    rule: RuleSpec
    training: TrainingSpec = TrainingSpec()
    parameters: ParametersTable
    task: TaskSpec = CLASSES
    finish: FinishTable | None = None

    @model_validator(mode="after")
    def _outputs_fit(self) -> StudyTable:
        wrong = self.model.outputs if self.task.kind is TaskKind.CLASSES else self.model.classes
        right = "classes" if self.task.kind is TaskKind.CLASSES else "outputs"
        if wrong is not None or (right == "outputs" and self.model.outputs is None):
            raise ValueError(
                f"task {self.task.kind.value!r}: say {right} in [model], the number of the model's {right}, and no "
                "other number; [task] kind says what is predicted"
            )
        self.task.require_outputs(self.model.width)
        return self

    @model_validator(mode="after")
    def _finishes_a_model(self) -> StudyTable:
        if self.finish is not None and not self.rounds:
            raise ValueError("finish: with rounds = 0 no model is trained that could be finished; leave [finish] out")
        return self

    @field_validator("privacy")
    @classmethod
    def _can_run(cls, privacy: PrivacySpec | None) -> PrivacySpec | None:
        if privacy is not None and privacy.unit == "site":
            raise ValueError(NO_SERVERS_NOISE)
        return privacy


def study_from_toml(
    text: str,
    source: str,
    roster: Roster,
    plugin: Path | None,
    data: Path | None = None,
    sources: ModelSources = NO_SOURCES,
) -> Study:
    """The study that a file describes, for this roster.

    With the requester's ``data``, names that the file leaves open are those of the data, and others must be the same.
    Its [finish] is the requester's own and no part of it.
    Raises: ConfigurationError that names every wrong key, what was found and what is allowed
    """
    table = parse_study_table(text, source)
    if data is not None:
        table = _with_own_names(table, source, plugin, data)
    return study_from_table(table, source, roster, plugin, sources=sources)


def parse_study_table(text: str, source: str) -> StudyTable:
    """A study file as it was written. Raises: ConfigurationError"""
    return checked_study_table(parse_toml(text, source), source)


def parse_schema(text: str, source: str) -> TableSchema | None:
    """The ``[schema]`` of a study file, which is checked as a whole, or of a case, whose rest ``simulate`` checks.

    Raises: ConfigurationError
    """
    tables = parse_toml(text, source)
    if "case" not in tables:
        return checked_study_table(tables, source).data_schema
    return _strict(TableSchema, tables["schema"], f"{source}: schema") if "schema" in tables else None


def checked_study_table(table: Mapping[str, Any], source: str) -> StudyTable:
    """The tables of a study file, checked; what a ``[schema]`` says about the model is filled in.

    Raises: ConfigurationError
    """
    return _strict(StudyTable, _with_schema(table, source), source)


def _with_schema(table: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    given, model = table.get("schema"), table.get("model")
    if not isinstance(given, Mapping) or not isinstance(model, Mapping):
        return table
    schema = _strict(TableSchema, given, f"{source}: schema")
    follows: dict[str, Any] = {"inputs": [len(schema.feature_names)], "feature_names": schema.feature_names}
    if schema.class_names:
        follows |= {"class_names": schema.class_names}
    task = {"task": {"kind": schema.tasks[0].value}}
    if not {"classes", "outputs"} & set(model):
        follows["classes" if schema.class_names else "outputs"] = schema.outputs
    return {**task, **table, "model": {**follows, **model}}


def study_from_table(
    table: StudyTable,
    source: str,
    roster: Roster,
    plugin: Path | None,
    spec: ModelSpec | None = None,
    sources: ModelSources = NO_SOURCES,
) -> Study:
    """The study of a parsed file, for this roster; with ``spec``, of that model. Raises: ConfigurationError"""
    try:
        made = spec or _model(table.model, plugin, sources, source)
        model = made.named(table.model.names.features, table.model.names.classes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error.detail}") from None
    dimension = sum(prod(layer.shape) for layer in model.layers) + table.rule.name.self_weighted
    parameters = {**table.parameters.model_dump(), "dimension": dimension}
    study = _strict(
        Study,
        {
            **table.model_dump(mode="json", exclude={"model", "parameters", "finish"}),
            "roster_digest": roster.digest(),
            "parameters": _strict(StudyParameters, parameters, f"{source}: parameters").model_dump(),
            "model": model.model_dump(mode="json"),
        },
        source,
    )
    try:
        _require_possible(study, roster)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error.detail}") from None
    return study


def _with_own_names(table: StudyTable, source: str, plugin: Path | None, data: Path) -> StudyTable:
    model = table.model
    own = _own_names(model, plugin, data)
    require_names_of_study(model.names, own, table.name, str(data))
    taken = {kind.value: own.of(kind) for kind in NamesKind if getattr(model, kind.value) is None}
    named = _strict(ModelTable, {**model.model_dump(mode="json"), **taken}, f"{source}, with the names from {data}")
    return table.model_copy(update={"model": named})


def _own_names(model: ModelTable, plugin: Path | None, data: Path) -> DataNames:
    if model.kind != "plugin":
        return folder_names(data)
    if plugin is None:
        return NO_NAMES  # that it is missing is said when the model is made
    from client_agent.learning.plugin import load_plugin

    return load_plugin(plugin).names(data)


def _require_possible(study: Study, roster: Roster) -> None:
    rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
    contributors = [party.name for party in roster.contributors]
    require_sites(study.rule, contributors, study.parameters.least_contributors)
    if study.protection.plan.keyed:
        CkksParameters().require_sites(len(roster.sites))


def _model(table: ModelTable, plugin: Path | None, sources: ModelSources, source: str) -> ModelSpec:
    from client_agent.learning import models

    frozen = None
    if table.weights is not None:  # the digest is that of the file
        frozen = {"values_digest": 64 * "0", "trainable": table.trainable, "weights": table.weights}
    given = _strict(
        ModelSpec,
        {
            **table.model_dump(mode="json", include=_MODEL_AS_WRITTEN),
            "classes": table.width,
            "architecture": None if table.architecture is None else _architecture(table.architecture),
            "frozen": frozen,
            "layers": (),
        },
        f"{source}: model",
    )
    if table.kind != "plugin":
        return models.completed(given, models.network_of(given, sources))
    if plugin is None:
        raise ConfigurationError("model.kind is 'plugin': set key 'plugin' in the agent's settings to the Python file")
    from client_agent.learning.plugin import load_plugin

    return models.completed(given, load_plugin(plugin).made(0))


def _architecture(table: ArchitectureTable) -> dict[str, object]:
    from client_agent.learning.models import installed_version

    return {
        "library": table.library,
        "library_version": table.version or installed_version(table.library),
        "name": table.name,
        "arguments": [{"name": name, "value": value} for name, value in table.arguments.items()],
    }


def _strict(kind: type[B], table: Mapping[str, Any], source: str) -> B:
    """Validated as JSON, in which a list is a tuple and a string an enum's value, but nothing else is converted."""
    try:
        return kind.model_validate_json(json.dumps(dict(table), default=str))
    except ValidationError as error:
        raise ConfigurationError(f"{source}: {explain(kind, error)}") from None
