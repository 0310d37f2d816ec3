"""A round in which some sites poison, for any way of summing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from harness.adversaries.poisoning.poisons import Known, Poison, Reals, written
from harness.engine.updates import Counted, RoundInputs, Summed, Summing
from protocol.wire.messages import Announcement


class PoisonedSum:
    """Sums as ``inner`` does, with what ``poisoners`` send in place of their updates.

    ``weight`` has, for every released round, the poisoners' share of the sum.
    """

    def __init__(self, inner: Summing, poisoners: tuple[str, ...], poison: Poison | None, seed: int) -> None:
        self._inner, self._poisoners, self._poison = inner, poisoners, poison
        self._draw = np.random.default_rng([seed, 17])
        self._last: Reals | None = None
        self.weight: list[float] = []

    def updates(self, inputs: RoundInputs) -> Summed:
        own = {site: inputs.updates[site].values for site in self._poisoners if site in inputs.updates}
        honest = [update.values for site, update in inputs.updates.items() if site not in self._poisoners]
        sent: dict[str, Reals] = {}
        if self._poison is not None and own and len(honest) > 1:
            sent = written(self._poison, self._known(inputs, own, honest))
        changed = {site: replace(inputs.updates[site], values=vector) for site, vector in sent.items()}
        result = self._inner.updates(replace(inputs, updates={**inputs.updates, **changed}))
        if result.average is not None and result.judgement is not None:
            self._last = result.average.astype(np.float64)
            self.weight.append(self._share(inputs, result.judgement.measured.took_part, result.sum_of_weights))
        return result

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        return self._inner.counts(announcement, counts)

    def _known(self, inputs: RoundInputs, own: Mapping[str, Reals], honest: list[Reals]) -> Known:
        announced = inputs.announcement
        return Known(
            own,
            honest,
            self._last,
            inputs.clip_norm,
            self._draw,
            inputs.own.values.astype(np.float64),
            announced.opens,
            announced.purpose.plan.summed,
        )

    def _share(self, inputs: RoundInputs, took_part: tuple[str, ...], sum_of_weights: float) -> float:
        taken = (w for w, _ in inputs.contributed if w.site in self._poisoners and w.site in took_part)
        return sum(weight.numerator for weight in taken) / inputs.weight_list.grid / sum_of_weights
