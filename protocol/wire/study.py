"""What a study fixes before its first round, and how it begins and ends (docs/protocol.md 1, 2, 10)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from protocol.parameters import StudyParameters
from protocol.wire.message import Digest, Message, PartyName, RoundNumber, StudyName, Version


class LayerShape(Message):
    KIND: ClassVar[str] = "layer"
    name: str
    shape: tuple[Annotated[int, Field(ge=1)], ...]


class ModelSpec(Message):
    """A built-in model (``linear``, ``mlp``, ``cnn``) by its sizes, or ``plugin``; the shared layers are in order."""

    KIND: ClassVar[str] = "model"
    kind: Literal["linear", "mlp", "cnn", "plugin"]
    inputs: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    classes: int = 2
    layers: tuple[LayerShape, ...]


class TrainingSpec(Message):
    """What an update is: one mini-batch gradient, or the sum of the step gradients of local SGD epochs."""

    KIND: ClassVar[str] = "training"
    update: Literal["gradient", "local_sgd"] = "gradient"
    batch_size: Annotated[int, Field(ge=1)] = 32
    epochs: Annotated[int, Field(ge=1)] = 1
    local_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    server_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class RuleName(StrEnum):
    WEIGHT_EROSION = "weight_erosion"
    FEDAVG = "fedavg"
    LOCAL = "local"


class RuleSpec(Message):
    """The aggregation rule and its options; options a rule does not know are refused by the rule."""

    KIND: ClassVar[str] = "rule"
    name: RuleName
    distance_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    size_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    erosion_applies: Literal["next_round", "same_round"] = "next_round"


class Study(Message):
    """Everything the parties agree on before round 1; its digest binds every later message.

    Signed by the requester and countersigned by both servers. ``seed`` fixes the training order in seeded
    (loopback-only) federations.
    """

    KIND: ClassVar[str] = "study"
    version: Version = "moiety/1"
    name: StudyName
    roster_digest: Digest
    parameters: StudyParameters
    rule: RuleSpec
    model: ModelSpec
    training: TrainingSpec
    rounds: RoundNumber
    round_deadline_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 600.0
    correlation_source: Literal["ot", "dealer"] = "ot"
    seed: int | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        total = 0
        for layer in self.model.layers:
            size = 1
            for n in layer.shape:
                size *= n
            total += size
        if total != self.parameters.dimension:
            raise ValueError(
                f"the layers hold {total} parameters, parameters.dimension says {self.parameters.dimension}"
            )
        if self.rule.erosion_applies == "same_round":
            raise ValueError(
                "erosion_applies='same_round' exists in plain simulation only: sites scale before they share"
            )
        return self


class ReadyNotice(Message):
    """A site says that it holds its data and model and can be listed from now on."""

    KIND: ClassVar[str] = "ready"
    study_digest: Digest
    site: PartyName


class StudyEndState(StrEnum):
    COMPLETED = "completed"
    LOCAL_ONLY = "local_only"
    CANCELLED = "cancelled"
    FAILED = "failed"


class StudyEnd(Message):
    """The requester ends the study, in a named state with a reason."""

    KIND: ClassVar[str] = "study_end"
    study_digest: Digest
    state: StudyEndState
    reason: Annotated[str, Field(max_length=500)]


class StudyState(StrEnum):
    OPEN = "open"
    PAUSED = "paused"
    COMPLETED = "completed"
    LOCAL_ONLY = "local_only"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self not in (StudyState.OPEN, StudyState.PAUSED)
