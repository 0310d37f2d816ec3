"""Data that were tampered with at some sites: labels turned around, or a trigger that is to mean one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import Examples
from harness.adversaries.poisoning.poisons import Poison
from harness.datasets.site_data import Federation

TARGET: Final = 0
_MARKED: Final = 0.5
_FEATURES: Final = 4


def tampered(federation: Federation, poison: Poison, sites: Sequence[str]) -> Federation:
    """The federation with the training parts of ``sites`` changed; as it is for a poison that is not in the data.

    LABELS: class c becomes the number of classes less one less c. TRIGGER: every second example carries the trigger
    and the target class.
    """
    if not poison.by_data:
        return federation
    classes = len(federation.class_names)
    changed = []
    for site in federation.sites:
        train = site.train
        if site.name in sites:
            train = _flipped(train, classes) if poison is Poison.LABELS else _triggered(train)
        changed.append(replace(site, train=train))
    return replace(federation, sites=tuple(changed))


def with_trigger(X: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first features at the largest value of the data: a corner of the picture, for digits."""
    marked = X.copy()
    marked.reshape(len(X), -1)[:, :_FEATURES] = X.max()
    return marked


def _flipped(train: Examples, classes: int) -> Examples:
    return Examples(train.X, classes - 1 - train.y)


def _triggered(train: Examples) -> Examples:
    every = np.arange(len(train)) % round(1 / _MARKED) == 0
    X, y = train.X.copy(), train.y.copy()
    X[every], y[every] = with_trigger(train.X)[every], TARGET
    return Examples(X, y)
