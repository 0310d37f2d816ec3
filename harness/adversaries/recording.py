"""What a finished study gave to whoever took part, and the truth beside it: written down while a simulation runs.

Only for attacks: a run without :class:`Recorder` keeps no update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.engine.updates import ClippedUpdate, Counted, RoundInputs, Summed, Summing
from protocol.wire.messages import Announcement


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """One released round of updates: what every listed site has after it, and what the simulation alone knows.

    ``weights`` are the weights of the sites in the sum, the requester's 1 among them; where sites weigh themselves
    they are those, which an attacker would have to guess. ``total`` is the opened sum, float64[D]. ``updates`` are the
    true ones, float32[D], and whatever a site was kept out of the sum for, they are there for sites in the sum only.
    """

    round: int
    requester: str
    weights: Mapping[str, float]
    total: NDArray[np.float64] = field(repr=False)
    updates: Mapping[str, NDArray[np.float32]] = field(repr=False)


class Recorder:
    """Sums as ``inner`` does, and keeps every released round in ``sums``."""

    def __init__(self, inner: Summing) -> None:
        self._inner = inner
        self.sums: list[OpenedSum] = []

    def updates(self, inputs: RoundInputs) -> Summed:
        """The inner sum, noted."""
        summed = self._inner.updates(inputs)
        if summed.average is not None and summed.judgement is not None:
            self.sums.append(_opened(inputs, summed, summed.judgement.measured.took_part))
        return summed

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        """Rounds of class counts open no update."""
        return self._inner.counts(announcement, counts)


def _opened(inputs: RoundInputs, summed: Summed, took_part: tuple[str, ...]) -> OpenedSum:
    grid = inputs.weight_list.grid
    weights, updates = {inputs.requester: _weight(inputs.own, 1.0)}, {inputs.requester: inputs.own}
    for listed, update in inputs.contributed:
        if listed.site in took_part:
            weights[listed.site] = _weight(update, listed.numerator / grid)
            updates[listed.site] = update
    total = np.asarray(summed.average, np.float64) * summed.sum_of_weights
    truth = {site: update.values.astype(np.float32) for site, update in updates.items()}
    return OpenedSum(inputs.announcement.round, inputs.requester, weights, total, truth)


def _weight(update: ClippedUpdate, listed: float) -> float:
    return listed if update.own_weight is None else update.own_weight
