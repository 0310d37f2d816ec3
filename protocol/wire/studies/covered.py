"""Options that a study with noise may not have, as the noise does not cover them (docs/protocol.md 19)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.wire.studies.model import ModelSpec, TrainingSpec
from protocol.wire.studies.rule import RuleSpec
from protocol.wire.task import TaskKind


@dataclass(frozen=True)
class Beside:
    """The rest of a study with noise."""

    rule: RuleSpec
    model: ModelSpec
    training: TrainingSpec
    task: TaskKind
    ranked: bool
    summarised: bool


def require_covered(beside: Beside) -> None:
    """Nothing about a record is opened without noise. Raises: ValueError"""
    for what in (*_opened(beside), *_of_records(beside)):
        raise ValueError(f"privacy: {what}")


def _opened(beside: Beside) -> Iterator[str]:
    rule = beside.rule.name
    if rule.declared.alone:
        yield f"rule {rule.value!r} shares nothing: leave privacy out"
    if beside.ranked:
        yield "a ranking opens a loss of each site's own model: leave ranking out"
    if beside.summarised:
        yield "a summary opens sums without noise: leave summary out"
    if rule.counts_classes:
        yield f"rule {rule.value!r} opens class counts without noise: take another rule"
    if rule.declared.looks_at_examples:
        yield f"rule {rule.value!r} weighs by examples as they are: take another rule"


def _of_records(beside: Beside) -> Iterator[str]:
    """Everything about a record leaves a site by clipped and noised gradients."""
    model, training = beside.model, beside.training
    if model.personal:
        yield "personal layers are trained without noise: leave them out"
    if model.buffers is not None:
        yield "batch norm mixes the records of a batch: take group norm"
    if model.kind == "plugin":
        yield "what a plug-in does with records is not known: take a built-in model"
    if beside.task is TaskKind.SURVIVAL:
        yield "Cox's loss compares records, and each is clipped alone"
    if training.class_weights != "none":
        yield "class_weights follow from all records: take 'none'"
    if training.batches == "cycled":
        yield "batches are drawn: take batches = 'shuffled'"
