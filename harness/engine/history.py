"""History of a run, plain or secure: one record per round, and the final model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import mean, stdev
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.scores import FinalScores, Score
from client_agent.site.events import RoundValues, SiteValue
from protocol.errors import Clause
from protocol.messages.control import ListedWeight, RuleName


class RoundKind(StrEnum):
    RELEASED = "released"
    COUNTED = "counted"
    SKIPPED = "skipped"
    MEASURED = "measured"
    ALONE = "alone"
    FINISHED = "finished"


class RunEnd(StrEnum):
    COMPLETED = "completed"
    LOCAL_ONLY = "local_only"
    LOCAL_OPTIMUM = "local_optimum"


class RoundRecord(RoundValues):
    """One round as the requester saw it.

    ``handed_out`` is the weight list; ``clipped_share`` is the part of the round's updates that were longer than the
    norm; ``model_norm`` is the length of the model after the round. ``took_part`` are the contributors in the sum,
    ``not_selected`` those left out of it by the rule. ``sum_of_weights`` counts the requester's; a round of class
    counts has ``class_totals`` instead. ``class_accuracy`` is the test accuracy within each class; ``test_accuracy`` is
    NaN where the task is not of classes. ``test_scores`` and ``validation_scores`` are the metrics that the run
    follows, on the requester's parts. ``isolation`` is what each site worked out before it contributed: how far off
    anybody's best estimate of any update would stay once the announced sum is opened.
    """

    round: int
    kind: RoundKind
    handed_out: tuple[ListedWeight, ...]
    requester_norm: float
    took_part: tuple[str, ...]
    clipped_share: float
    test_accuracy: float
    test_loss: float
    model_norm: float
    validation_accuracy: float | None = None
    not_selected: tuple[str, ...] = ()
    sum_of_weights: float | None = None
    class_totals: tuple[int, ...] = ()
    class_accuracy: tuple[float | None, ...] = ()
    test_scores: tuple[Score, ...] = ()
    validation_scores: tuple[Score, ...] = ()
    isolation: tuple[SiteValue, ...] = ()


@dataclass(frozen=True)
class RunHistory:
    """A whole run with one seed. ``ended_by`` is the policy's clause that ended the shared part, where one did.

    ``personal`` are the requester's own layers, float32[P], where the loop that made the run gives them.
    """

    study: str
    rule: RuleName
    protection: str
    seed: int
    requester: str
    contributors: tuple[str, ...]
    end: RunEnd
    reason: str
    rounds: tuple[RoundRecord, ...]
    final_model: NDArray[np.float32] = field(repr=False)
    final_scores: FinalScores | None = None
    ended_by: Clause | None = None
    personal: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    @property
    def test_accuracy(self) -> float:
        """The requester's, after the last round."""
        return self.rounds[-1].test_accuracy

    @property
    def shared_rounds(self) -> int:
        """Rounds whose sum was released."""
        return sum(record.kind is RoundKind.RELEASED for record in self.rounds)


Series: TypeAlias = dict[str, tuple[float | None, ...]]
"""Each site's numbers over the rounds; None where there was none."""


def alpha_series(history: RunHistory) -> Series:
    """Each contributor's weight in full precision after every round."""
    return series_of(history.contributors, [record.alphas for record in history.rounds])


def distance_series(history: RunHistory) -> Series:
    """Each contributor's distance from the requester in every round in which it was opened."""
    return series_of(history.contributors, [record.distances for record in history.rounds])


def isolation_series(history: RunHistory) -> Series:
    """Each site's isolation in every round that it worked it out for, the requester's own among them."""
    return series_of((history.requester, *history.contributors), [record.isolation for record in history.rounds])


def series_of(sites: Sequence[str], rounds: Sequence[tuple[SiteValue, ...]]) -> Series:
    found = [{entry.site: entry.value for entry in values} for values in rounds]
    return {site: tuple(values.get(site) for values in found) for site in sites}


def mean_and_error(values: Iterable[float]) -> tuple[float, float | None]:
    """Mean, and its standard error: None for one value, or where one is NaN. Raises: ValueError for no value"""
    found = list(values)
    usable = len(found) > 1 and not any(map(math.isnan, found))
    return mean(found), stdev(found) / math.sqrt(len(found)) if usable else None
