"""The published Titanic FedAvg's mistake, repeated on purpose: row sums in place of gradients.

The report's code adds up what it takes for a list of gradients but is one gradient: Python's ``sum`` runs over the
first axis of the kernel (features by classes) and leaves one number a class, which is then applied to every feature; of
the bias it leaves one number for all classes. The published FedAvg column comes from that, so it is not FedAvg; a case
can ask for it by ``published_mistake = "row_sums"``, in plain runs only.

Source: the code of Grimberg, "Weight Erosion" (EPFL semester report, 2020), as read by others; not run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from client_agent.update import Vector
from harness.summing import Counted, PlainSum, RoundInputs, Summed
from protocol.errors import ConfigurationError
from protocol.wire.messages import Announcement, Study


@dataclass(frozen=True)
class RowSums:
    """A plain sum whose average is then spoilt; for a linear model of ``features`` and ``classes``."""

    features: int
    classes: int

    @classmethod
    def of(cls, study: Study) -> RowSums:
        """Raises: ConfigurationError for a model that is not linear"""
        if study.model.kind != "linear":
            raise ConfigurationError(
                f"published_mistake: 'row_sums' is a linear model's, the study's is {study.model.kind!r}; leave it out"
            )
        classes, features = study.model.layers[0].shape
        return cls(features, classes)

    def updates(self, inputs: RoundInputs) -> Summed:
        """The round as it should be, but for the average."""
        summed = PlainSum().updates(inputs)
        return summed if summed.average is None else replace(summed, average=self.spoilt(summed.average))

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        return PlainSum().counts(announcement, counts)

    def spoilt(self, average: Vector) -> Vector:
        """Each class's weights become their sum over the features, the biases their sum over the classes.

        Shapes:   float32[classes * features + classes], weights class by class as torch keeps them -> the same
        """
        weights = average[: self.classes * self.features].reshape(self.classes, self.features)
        bias = average[self.classes * self.features :]
        sums = np.repeat(weights.sum(axis=1), self.features)
        return np.concatenate((sums, np.full(self.classes, bias.sum()))).astype(np.float32)
