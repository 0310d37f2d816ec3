"""The model of a study, and what an update of it is (docs/protocol.md 2)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from protocol.wire.message import Message
from protocol.wire.names import require_layer_name, require_model_names
from protocol.wire.studies.architecture import ArchitectureSpec, FrozenSpec


def _absent(names: object) -> bool:
    return not names


class Buffers(StrEnum):
    """The treatment of batch norm's running statistics: each site keeps its own (FedBN), or they are averaged."""

    LOCAL = "local"
    SHARED = "shared"


class LayerShape(Message):
    KIND: ClassVar[str] = "layer"
    name: Annotated[str, AfterValidator(require_layer_name)]
    shape: tuple[Annotated[int, Field(ge=1)], ...]


class ModelSpec(Message):
    """A built-in model (``linear``, ``mlp``, ``cnn``) by its sizes, ``library`` by its ``architecture``, or ``plugin``.

    ``layers`` are the shared ones, in order, those of averaged ``buffers`` behind the parameters; ``frozen`` are the
    layers that no round trains.

    ``personal`` names affine layers around the shared ones that never leave the site (Roschewitz et al. 2021).
    ``feature_names`` and ``class_names`` say what the columns of a flat input and the classes are; every site compares
    them with its own. Names that are not given are no part of the bytes. ``classes`` is the number of outputs, whatever
    the study's task: the classes, the labels, the numbers that are predicted, or one log hazard.
    """

    KIND: ClassVar[str] = "model"
    kind: Literal["linear", "mlp", "cnn", "library", "plugin"]
    inputs: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    classes: int = 2
    activation: Literal["relu", "tanh"] = "relu"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    personal: tuple[Literal["input", "target"], ...] = ()
    feature_names: tuple[str, ...] = Field(default=(), exclude_if=_absent)
    class_names: tuple[str, ...] = Field(default=(), exclude_if=_absent)
    architecture: ArchitectureSpec | None = Field(default=None, exclude_if=_absent)
    buffers: Buffers | None = Field(default=None, exclude_if=_absent)
    frozen: FrozenSpec | None = Field(default=None, exclude_if=_absent)
    layers: tuple[LayerShape, ...]

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        if (self.kind == "library") != (self.architecture is not None):
            raise ValueError("model.architecture and kind 'library' belong together: give both or neither")
        require_model_names(self.feature_names, self.class_names, self.inputs, self.classes)
        return self

    def named(self, feature_names: tuple[str, ...], class_names: tuple[str, ...]) -> ModelSpec:
        """The same model with these names. Raises: ValueError when they do not fit it"""
        return ModelSpec(**{**dict(self), "feature_names": feature_names, "class_names": class_names})


class TrainingSpec(Message):
    """The content of an update: one mini-batch gradient, or the sum of the step gradients of local SGD epochs.

    With ``momentum`` the update of local SGD is (start - end) / local learning rate, which is the same sum where there
    is none. ``cycled`` batches are cut once and taken in turn. The local learning rate is multiplied by
    ``learning_rate_decay`` every ``decay_every_rounds`` rounds (0: never). ``inverse_frequency`` weighs a class by one
    over its frequency at the site, scaled so that the weights sum to the number of classes.
    """

    KIND: ClassVar[str] = "training"
    update: Literal["gradient", "local_sgd"] = "gradient"
    batch_size: Annotated[int, Field(ge=1)] = 32
    epochs: Annotated[int, Field(ge=1)] = 1
    local_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    server_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    learning_rate_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    decay_every_rounds: Annotated[int, Field(ge=0)] = 0
    batches: Literal["shuffled", "cycled"] = "shuffled"
    class_weights: Literal["none", "inverse_frequency"] = "none"
