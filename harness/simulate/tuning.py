"""Settings chosen on validation data: every combination of a variant's ``tune`` lists, over the tuning seeds.

A combination is judged by the case's metric, accuracy where it names none, on the requester's validation part after
the last round, averaged over requesters and tuning seeds; the best mean wins, the first in the file among equals. Test
data are never looked at. Runs for choosing are plain whatever the case's runs are: protection changes no metric that
matters here, and costs. A combination whose model diverges counts as accuracy 0, or under another metric loses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

from pydantic import AliasChoices, Field

from client_agent.learning.scores import MetricName
from harness.engine.history import mean_and_error
from harness.simulate.case import TuneValue, Variant
from harness.simulate.run_line import RunLine
from host.frozen import Frozen
from protocol.errors import ConfigurationError

TUNING: Final = "tuning.jsonl"
Score = float | None
"""None: the model diverged."""


class TuningLine(Frozen):
    """One line of ``tuning.jsonl``: a combination tried with one requester and seed."""

    variant: str
    requester: str
    seed: int
    settings: dict[str, TuneValue]
    study_digest: str
    judged_by: MetricName = MetricName.ACCURACY
    validation_score: Score = Field(validation_alias=AliasChoices("validation_score", "validation_accuracy"))
    code_digest: str = ""

    @classmethod
    def of(cls, line: RunLine) -> TuningLine:
        """Raises: ConfigurationError when the requester had no validation examples"""
        validated = line.validation_of(line.judged_by)
        last = validated[-1] if validated else None
        if last is None and line.end != "failed":
            raise ConfigurationError(
                f"variant {line.variant!r}: settings are chosen by {line.judged_by.value} on validation data, and "
                f"requester {line.requester!r} has none on which it can be computed: give [case] validation_share, "
                "or a larger one"
            )
        if line.end == "failed":
            last = 0.0 if line.judged_by is MetricName.ACCURACY else None
        return cls(
            variant=line.variant,
            requester=line.requester,
            seed=line.seed,
            settings=line.settings,
            study_digest=line.study_digest,
            code_digest=line.code_digest,
            judged_by=line.judged_by,
            validation_score=last,
        )


class Candidate(Frozen):
    """A combination and how it did on validation data."""

    settings: dict[str, TuneValue]
    validation_score: Score
    standard_error: float | None
    runs: int


class Choice(Frozen):
    """The choice for a variant, for one requester or (``requester`` None) for all together, and the alternatives."""

    variant: str
    requester: str | None
    chosen: dict[str, TuneValue]
    candidates: tuple[Candidate, ...]


def combinations(variant: Variant) -> tuple[dict[str, TuneValue], ...]:
    """Every combination, in the file's order; one empty one where nothing is tuned."""
    keys, values = variant.table.tune.keys(), itertools.product(*variant.table.tune.values())
    return tuple(dict(zip(keys, chosen, strict=True)) for chosen in values)


def choose(variant: Variant, lines: Sequence[TuningLine], requester: str | None) -> Choice:
    """The best combination by ``lines``, which hold every one; of one requester, or of all together."""
    candidates = tuple(_candidate(settings, lines, requester) for settings in combinations(variant))
    sign = -1 if any(line.judged_by.smaller_is_better for line in lines) else 1
    best = max(candidates, key=lambda one: -math.inf if one.validation_score is None else sign * one.validation_score)
    return Choice(variant=variant.name, requester=requester, chosen=best.settings, candidates=candidates)


def _candidate(settings: dict[str, TuneValue], lines: Sequence[TuningLine], requester: str | None) -> Candidate:
    of = [line for line in lines if line.settings == settings and requester in (None, line.requester)]
    tried = [line.validation_score for line in of]
    found = [score for score in tried if score is not None]
    if len(found) < len(tried):
        return Candidate(settings=settings, validation_score=None, standard_error=None, runs=len(tried))
    middle, error = mean_and_error(found)
    return Candidate(settings=settings, validation_score=middle, standard_error=error, runs=len(found))
