"""A second study over the same data whose model has one class more, that nobody has: nearly the same updates.

The first model has many classes that nobody has already, so that one more changes little. The memory of one site that
is asked for both sums is real.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.site.remembered_sums import SumMemory
from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from protocol.errors import PolicyRefusal
from protocol.first_model import seeded_model
from protocol.policy.site_policy import SitePolicy
from protocol.policy.summed_rows import SummedRow, SummedWeight
from protocol.wire.messages import LayerShape

_LABELS, _CLASSES, _PATIENTS, _SEED = 4, 30, 40, 3
_FEATURES: Final = (12, 140)
"""With 140 both updates are longer than what a site keeps whole of one."""
_SITES: Final = "abcd"
_READ: Final = 0.2


def _layers(classes: int, features: int) -> tuple[tuple[str, int], ...]:
    return (("weight", classes * features), ("bias", classes))


def _row(study: str, sites: str, classes: int, features: int) -> SummedRow:
    layers = _layers(classes, features)
    return SummedRow(
        study_digest=study,
        round=1,
        dimension=sum(size for _, size in layers),
        weights=tuple(SummedWeight(site=site, weight=1.0) for site in sites),
        least=len(sites),
        layers=layers,
    )


class Patients:
    """Four sites' patients, of so many features."""

    def __init__(self, features: int) -> None:
        draw = np.random.default_rng(1)
        self._features = features
        self._of = {
            site: (draw.normal(size=(_PATIENTS, features)), draw.integers(0, _LABELS, _PATIENTS)) for site in _SITES
        }

    def update(self, site: str, classes: int) -> NDArray[np.float64]:
        """The full-batch gradient of a softmax regression in its first model; a study's seed fixes that in both."""
        x, y = self._of[site]
        shapes = (LayerShape(name="weight", shape=(classes, self._features)), LayerShape(name="bias", shape=(classes,)))
        model = seeded_model(shapes, _SEED).astype(np.float64)
        split = classes * self._features
        scores = np.exp(x @ model[:split].reshape(classes, self._features).T + model[split:])
        missed = (scores / scores.sum(axis=1, keepdims=True) - np.eye(classes)[y]) / len(y)
        return np.concatenate([(missed.T @ x).ravel(), missed.sum(axis=0)])

    def error(self) -> float:
        """Of site a's update, from the sums of all with one model and of all but a with the other."""
        common = _CLASSES * self._features
        first = np.sum([self.update(site, _CLASSES)[:common] for site in _SITES], axis=0)
        second = np.sum([self.update(site, _CLASSES + 1)[:common] for site in _SITES[1:]], axis=0)
        truth = self.update("a", _CLASSES)[:common]
        return float(np.linalg.norm(first - second - truth) / np.linalg.norm(truth))

    def agreed_to(self, folder: Path) -> bool:
        """Whether site b agrees to both sums."""
        memory = SumMemory(folder, lambda: bytes(32))
        for name, sites, classes in (("first", _SITES, _CLASSES), ("second", _SITES[1:], _CLASSES + 1)):
            update = memory.kept(self.update("b", classes), _layers(classes, self._features))
            try:
                memory.agree(_row(name, sites, classes, self._features), update, SitePolicy(), 0)
            except PolicyRefusal:
                return False
        return True


class OneClassMore(Attack):
    """The figure is the better of two studies', with few and with many features."""

    name = "sums-one-class-more"
    party = Party.REQUESTER
    tries = "a second study over all sites but one, whose model has one class more, which nobody has"
    defence = "the site's memory of sums compares layers of one shape, whatever classes follow"
    figure = "relative error of the missing site's update"
    without: Mapping[str, object] = {"client_agent.site.remembered_sums.check_isolation": passes}

    def attempt(self, folder: Path) -> Found:
        error = 1.0
        for features in _FEATURES:
            patients, own = Patients(features), folder / str(features)
            own.mkdir()
            if patients.agreed_to(own):
                error = min(error, patients.error())
        return Found(error < _READ, error)


def more_classes() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (OneClassMore(),)
