"""The published Titanic FedAvg's mistake, repeated on purpose: row sums in place of gradients.

The report's code adds the sites' gradients up two at a time, kernel by kernel and bias by bias, by Python's
``sum(a, b)`` where ``a + b`` was meant. That is b plus the rows of a: for a kernel (features by classes), each
feature's row of b gets a's sum over the features; for a bias, each class gets a's sum over the classes. Over four
sites, the requester first, what is divided by 4 is, with R(g) the sum over the n rows, repeated in every row,

    g_3 + R(g_2) + n R(g_1) + n^2 R(g_0)

With 9 features, the row sums of the requester's gradient count 81 times: hence the small rate of that code, 0.07, where
its other rules take 3. The published FedAvg column comes from it, so it is not FedAvg; a case can ask for it by
``published_mistake = "row_sums"``, in plain runs only.

Source: ``average_params`` in Jax_federated_learning.ipynb, github.com/EPFLiGHT/coML-Personalized-v2, the code of
        Grimberg, "Weight Erosion" (EPFL semester report, 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.flat_vector import Vector
from harness.engine.summing import Counted, PlainSum, RoundInputs, Summed
from protocol.errors import ConfigurationError
from protocol.wire.messages import Announcement, RuleName, Study

Gradient = NDArray[np.float64]


@dataclass(frozen=True)
class RowSums:
    """A plain round whose average is spoilt; for FedAvg on a linear model of ``features`` and ``classes``."""

    features: int
    classes: int

    @classmethod
    def of(cls, study: Study) -> RowSums:
        """Raises: ConfigurationError for a model that is not linear, or a rule other than FedAvg"""
        if study.model.kind != "linear":
            raise ConfigurationError(
                f"published_mistake: 'row_sums' is a linear model's, the study's is {study.model.kind!r}; leave it out"
            )
        if study.rule.name is not RuleName.FEDAVG:
            raise ConfigurationError(
                f"published_mistake: 'row_sums' is FedAvg's, the rule is {study.rule.name.value!r}; leave it out"
            )
        classes, features = study.model.layers[0].shape
        return cls(features, classes)

    def updates(self, inputs: RoundInputs) -> Summed:
        """The round as it should be, but for the average."""
        summed = PlainSum().updates(inputs)
        if summed.average is None or summed.judgement is None:
            return summed
        kept = summed.judgement.measured.took_part
        gradients = [
            inputs.own.values,
            *(update.values for weight, update in inputs.contributed if weight.site in kept),
        ]
        return replace(summed, average=self.spoilt(gradients))

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        return PlainSum().counts(announcement, counts)

    def spoilt(self, gradients: Sequence[Gradient]) -> Vector:
        """What the published code calls the average of the gradients, the requester's first.

        Shapes:   float64[classes * features + classes] each, weights class by class as torch keeps them -> float32
        """
        spoilt: Vector = (reduce(self._added, gradients) / len(gradients)).astype(np.float32)
        return spoilt

    def _added(self, first: Gradient, second: Gradient) -> Gradient:
        """``sum(first, second)``, kernel by kernel and bias by bias."""
        split = self.classes * self.features
        per_class = first[:split].reshape(self.classes, self.features).sum(axis=1)
        added: Gradient = second + np.concatenate(
            (np.repeat(per_class, self.features), np.full(self.classes, first[split:].sum()))
        )
        return added
