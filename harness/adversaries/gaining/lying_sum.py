"""A round in which some sites lie, for any way of summing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from harness.adversaries.gaining.lies import Lie, Reals, Seen, Written, shown, summed
from harness.engine.updates import Counted, RoundInputs, Summed, Summing
from protocol.parameters import Needs
from protocol.wire.messages import Announcement

_MEASURED = frozenset({Needs.DISTANCES, Needs.PAIRS, Needs.INNER_PRODUCTS})


class LyingSum:
    """Sums as ``inner`` does what ``liars`` made of their updates; they learn from the averages that they were in.

    ``weight`` has, for every released round, the liars' share of the sum.
    """

    def __init__(self, inner: Summing, liars: tuple[str, ...], lie: Lie | None) -> None:
        self._inner = inner
        self._liars = liars
        self._lie = lie
        self._average: Reals | None = None
        self._rest: Reals | None = None
        self.weight: list[float] = []

    def updates(self, inputs: RoundInputs) -> Summed:
        """The inner sum over the lies. None for a lie: all are honest, and only weights are noted."""
        written = self._written(inputs)
        lied = {site: replace(inputs.updates[site], values=vector) for site, vector in written.items()}
        result = self._inner.updates(replace(inputs, updates={**inputs.updates, **lied}))
        if result.average is not None and result.judgement is not None:
            self._learn(inputs, result, written, result.judgement.measured.took_part)
        return result

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        """Class counts as they are."""
        return self._inner.counts(announcement, counts)

    def _written(self, inputs: RoundInputs) -> Written:
        own = {site: inputs.updates[site].values for site in self._liars if site in inputs.updates}
        if self._lie is None or not own:
            return own
        seen = Seen(own, self._average, self._rest, inputs.own.values, inputs.clip_norm)
        if not inputs.announcement.purpose.plan.summed:
            return shown(self._lie, seen)
        return summed(self._lie, seen, measured=inputs.announcement.opens in _MEASURED)

    def _learn(self, inputs: RoundInputs, result: Summed, written: Written, took_part: tuple[str, ...]) -> None:
        grid = inputs.weight_list.grid
        listed = {one.site: one.numerator / grid for one in inputs.weight_list.weights}
        parts = [(listed[site], written[site]) for site in written if site in took_part]
        share = sum(weight for weight, _ in parts)
        self.weight.append(share / result.sum_of_weights)
        if not parts or result.average is None:
            return
        self._average = np.asarray(result.average, np.float64)
        left = result.sum_of_weights - share
        if left > 0:
            others = self._average * result.sum_of_weights - sum(weight * vector for weight, vector in parts)
            self._rest = np.asarray(others / left, np.float64)
