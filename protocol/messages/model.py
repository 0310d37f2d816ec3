"""A study's task, its model, and the update of a model (docs/protocol.md 1, 2).

A study without a task has classes, as all had before tasks existed; its bytes are the same.

    task         targets of one example                          outputs of the model         losses
    classes      one whole number, the class                     one per class, 2 or more     cross_entropy
    multi_label  0 or 1 for every label                          a logit per label            binary
    regression   one number per output                           the numbers                  squared, huber
    counts       one whole number per output, 0 or more          the logarithms of the rates  poisson
    survival     time above 0, and event: 1 seen, 0 censored     one, the log hazard          cox
    own          any numbers of one shape                        the plug-in's                the plug-in's
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from protocol.channel.message import Digest, Message, omitted
from protocol.text import require_layer_name, require_model_names

_LARGEST: Final = 2**20
MOST_ENTRIES: Final = 64
_FETCHES: Final = re.compile(r"pretrain|weights|checkpoint|url|hub|cache|file|(?<!drop_)path$|dir$")
"""Arguments with which libraries fetch or read something."""

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+-]{0,64}$")]
Whole: TypeAlias = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
Real: TypeAlias = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
Scalar: TypeAlias = bool | Whole | Real | Word
Entries: TypeAlias = Annotated[tuple[Scalar, ...], Field(max_length=MOST_ENTRIES)]
Value: TypeAlias = Scalar | Annotated[tuple[Scalar | Entries, ...], Field(max_length=MOST_ENTRIES)]


class Argument(Message):
    """One argument by name: a number, a word, a switch, or a list of those, at most two deep."""

    KIND: ClassVar[str] = "argument"
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    value: Value

    @model_validator(mode="after")
    def _only_sizes(self) -> Argument:
        if _FETCHES.search(self.name):
            raise ValueError(f"argument {self.name!r} has a library read or fetch something: leave it out")
        return self


class ArchitectureSpec(Message):
    """A network of a library by its class's name and arguments, in one version of that library.

    No code of the requester is in it: every site makes the network with its own copy of the library, if its settings
    list the architecture.
    """

    KIND: ClassVar[str] = "architecture"
    library: Literal["monai"]
    library_version: Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+-]{0,31}$")]
    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
    arguments: Annotated[tuple[Argument, ...], Field(max_length=MOST_ENTRIES)] = ()

    @property
    def listed_as(self) -> str:
        """As a site's settings list it."""
        return f"{self.library}.{self.name}"

    @model_validator(mode="after")
    def _each_once(self) -> ArchitectureSpec:
        names = [argument.name for argument in self.arguments]
        if len(set(names)) != len(names):
            raise ValueError("architecture: every argument stands once")
        return self


class FrozenSpec(Message):
    """Layers that no round trains: every site has them itself, and ``values_digest`` says that all have the same.

    ``trainable`` are the beginnings of the names of the layers that are trained, ``weights`` the file with the values
    of all others; a plug-in says both itself, and then neither is here.
    """

    KIND: ClassVar[str] = "frozen"
    values_digest: Digest
    trainable: Annotated[tuple[str, ...], Field(max_length=MOST_ENTRIES)] = ()
    weights: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.safetensors$")] | None = None


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
    feature_names: tuple[str, ...] = omitted(())
    class_names: tuple[str, ...] = omitted(())
    architecture: ArchitectureSpec | None = omitted()
    buffers: Buffers | None = omitted()
    frozen: FrozenSpec | None = omitted()
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


class TaskKind(StrEnum):
    CLASSES = "classes"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"
    COUNTS = "counts"
    SURVIVAL = "survival"
    OWN = "own"


class LossName(StrEnum):
    CROSS_ENTROPY = "cross_entropy"
    BINARY = "binary"
    SQUARED = "squared"
    HUBER = "huber"
    POISSON = "poisson"
    COX = "cox"
    PLUGIN = "plugin"


LOSSES: Final[dict[TaskKind, tuple[LossName, ...]]] = {
    TaskKind.CLASSES: (LossName.CROSS_ENTROPY,),
    TaskKind.MULTI_LABEL: (LossName.BINARY,),
    TaskKind.REGRESSION: (LossName.SQUARED, LossName.HUBER),
    TaskKind.COUNTS: (LossName.POISSON,),
    TaskKind.SURVIVAL: (LossName.COX,),
    TaskKind.OWN: (LossName.PLUGIN,),
}
"""The losses of each task; the first is taken where a study names none."""


class TaskSpec(Message):
    """``loss`` is one of the task's, None its first. ``huber_delta``, in units of the target, is where Huber's loss
    becomes linear; ``ties`` is how Cox's treats events at one time. Defaults are no part of the bytes.
    """

    KIND: ClassVar[str] = "task"
    kind: TaskKind = TaskKind.CLASSES
    loss: LossName | None = omitted()
    huber_delta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = omitted(1.0)
    ties: Literal["efron", "breslow"] = omitted("efron")

    @property
    def chosen_loss(self) -> LossName:
        return self.loss or LOSSES[self.kind][0]

    @model_validator(mode="after")
    def _consistent(self) -> TaskSpec:
        allowed = LOSSES[self.kind]
        if self.chosen_loss not in allowed:
            raise ValueError(
                f"task {self.kind.value!r} has no loss {self.chosen_loss.value!r}: take "
                f"{' or '.join(repr(loss.value) for loss in allowed)}, or leave loss out"
            )
        if self.huber_delta != 1.0 and self.chosen_loss is not LossName.HUBER:
            raise ValueError("huber_delta belongs to loss 'huber': leave it out, or take that loss")
        if self.ties != "efron" and self.chosen_loss is not LossName.COX:
            raise ValueError("ties belong to loss 'cox' of task 'survival': leave them out, or take that task")
        return self

    def require_outputs(self, outputs: int) -> None:
        """The task can be learned by a model with so many outputs. Raises: ValueError that says what to change"""
        if self.kind is TaskKind.CLASSES and outputs < 2:
            raise ValueError(
                f"task 'classes' takes a model with one output per class, 2 or more, found {outputs}: set "
                "model.classes, or another task"
            )
        if self.kind is TaskKind.SURVIVAL and outputs != 1:
            raise ValueError(
                f"task 'survival' takes a model with one output, the log hazard, found {outputs}: set model.outputs "
                "to 1, or another task"
            )
        if outputs < 1:
            raise ValueError(f"a model has at least one output, found {outputs}")


CLASSES: Final = TaskSpec()
"""The task of a study that names none."""
