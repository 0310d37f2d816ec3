"""Settings chosen on validation data: every combination of a variant's ``tune`` lists, over the tuning seeds.

A combination is judged by the requester's accuracy on its validation part after the last round, averaged over
requesters and tuning seeds; the best mean wins, the first in the file among equals. Test data are never looked at.
Runs for choosing are plain whatever the case's runs are: protection changes no accuracy that matters here, and costs.
A combination whose model diverges counts as accuracy 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Final

from pydantic import BaseModel, ConfigDict

from harness.simulation.case import Setting, TuneValue, Variant
from harness.simulation.runs import RunLine
from protocol.errors import ConfigurationError

TUNING: Final = "tuning.jsonl"


class TuningLine(BaseModel):
    """One line of ``tuning.jsonl``: a combination tried with one requester and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    variant: str
    requester: str
    seed: int
    settings: dict[str, TuneValue]
    study_digest: str
    validation_accuracy: float
    code_digest: str = ""

    @classmethod
    def of(cls, line: RunLine) -> TuningLine:
        """Raises: ConfigurationError when the requester had no validation examples"""
        last = line.validation_accuracy[-1] if line.validation_accuracy else None
        if last is None and line.end != "failed":
            raise ConfigurationError(
                f"variant {line.variant!r}: settings are chosen on validation data, and requester {line.requester!r} "
                "has none: give [case] validation_share"
            )
        return cls(
            variant=line.variant,
            requester=line.requester,
            seed=line.seed,
            settings=line.settings,
            study_digest=line.study_digest,
            code_digest=line.code_digest,
            validation_accuracy=0.0 if last is None or line.end == "failed" else last,
        )


class Candidate(BaseModel):
    """A combination and how it did on validation data."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    settings: dict[str, TuneValue]
    validation_accuracy: float
    standard_error: float | None
    runs: int


class Choice(BaseModel):
    """What was chosen for a variant, for one requester or (``requester`` None) for all together, and from what."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    variant: str
    requester: str | None
    chosen: dict[str, TuneValue]
    candidates: tuple[Candidate, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(Setting(key, value) for key, value in self.chosen.items())


def combinations(variant: Variant) -> tuple[tuple[Setting, ...], ...]:
    """Every combination, in the file's order; one empty one where nothing is tuned."""
    keys = [key for key, _ in variant.tune]
    return tuple(
        tuple(Setting(key, value) for key, value in zip(keys, values, strict=True))
        for values in itertools.product(*(values for _, values in variant.tune))
    )


def choose(variant: Variant, lines: Sequence[TuningLine], requester: str | None) -> Choice:
    """The best combination by ``lines``, which hold every one; of one requester, or of all together."""
    candidates = tuple(_candidate(settings, lines, requester) for settings in combinations(variant))
    best = max(candidates, key=lambda candidate: candidate.validation_accuracy)
    return Choice(variant=variant.name, requester=requester, chosen=best.settings, candidates=candidates)


def _candidate(settings: tuple[Setting, ...], lines: Sequence[TuningLine], requester: str | None) -> Candidate:
    wanted = {setting.key: setting.value for setting in settings}
    found = [
        line.validation_accuracy for line in lines if line.settings == wanted and requester in (None, line.requester)
    ]
    error = stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None
    return Candidate(settings=wanted, validation_accuracy=mean(found), standard_error=error, runs=len(found))
