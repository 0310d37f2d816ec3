"""Two models on the same examples: each metric of both, and their difference with a paired bootstrap interval."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from client_agent.scoring.predicted import Predicted
from client_agent.scoring.score import MetricName, Score, value_of
from client_agent.scoring.scoring import final_scores, scores, with_interval


class Paired(BaseModel):
    """One metric of both models; ``difference`` is the first minus the second, None where either has no value."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    first: Score
    second: Score
    difference: Score


def paired_scores(first: Predicted, second: Predicted, samples: int, seed: int) -> tuple[Paired, ...]:
    """All metrics of the task; in every draw both models are judged on the same examples, drawn with replacement.

    Both are the outputs for the same examples in the same order.
    """
    of_first, of_second = final_scores(first, samples, seed).scores, final_scores(second, samples, seed).scores
    draws = _differences(first, second, samples, seed)
    return tuple(
        Paired(first=one, second=other, difference=_difference(one, other, draws[one.name], samples))
        for one, other in zip(of_first, of_second, strict=True)
    )


def _differences(first: Predicted, second: Predicted, samples: int, seed: int) -> dict[str, list[float]]:
    names = [MetricName(score.name) for score in scores(first)]
    found: dict[str, list[float]] = {name.value: [] for name in names}
    random = np.random.default_rng(seed)
    for _ in range(samples):
        rows = random.integers(0, len(first.y), len(first.y))
        one, other = scores(first.rows(rows), names), scores(second.rows(rows), names)
        for name, differences in found.items():
            values = value_of(one, name), value_of(other, name)
            if values[0] is not None and values[1] is not None:
                differences.append(values[0] - values[1])
    return found


def _difference(first: Score, second: Score, draws: list[float], samples: int) -> Score:
    if first.value is None or second.value is None:
        return Score(name=first.name, value=None, reason=first.reason or second.reason)
    return with_interval(Score(name=first.name, value=first.value - second.value), draws, samples)
