"""A study's task: the targets of its examples, and the loss by which its model learns them (docs/protocol.md 1).

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

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from protocol.wire.message import Message


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


def _usual_ties(ties: str) -> bool:
    return ties == "efron"


def _usual_delta(delta: float) -> bool:
    return delta == 1.0


def _unnamed(loss: LossName | None) -> bool:
    return loss is None


class TaskSpec(Message):
    """``loss`` is one of the task's, None its first. ``huber_delta``, in units of the target, is where Huber's loss
    becomes linear; ``ties`` is how Cox's treats events at one time. Defaults are no part of the bytes.
    """

    KIND: ClassVar[str] = "task"
    kind: TaskKind = TaskKind.CLASSES
    loss: LossName | None = Field(default=None, exclude_if=_unnamed)
    huber_delta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(default=1.0, exclude_if=_usual_delta)
    ties: Literal["efron", "breslow"] = Field(default="efron", exclude_if=_usual_ties)

    @property
    def chosen_loss(self) -> LossName:
        """The loss that the model is trained with."""
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


def is_classes(task: TaskSpec) -> bool:
    """True if this is the task of a study without one, so that it is no part of the bytes."""
    return task == CLASSES
