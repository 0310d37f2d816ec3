"""A second study over the same data whose model has one class more, that nobody has: nearly the same updates.

The first model has many classes that nobody has already, so that one more changes little.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.remembered_sums import SumMemory
from protocol.errors import PolicyRefusal
from protocol.first_model import seeded_model
from protocol.policy.site_policy import SitePolicy
from protocol.policy.summed_rows import SummedRow, SummedWeight
from protocol.wire.messages import LayerShape

FEATURES, LABELS, CLASSES, SEED = 12, 4, 30, 3
RNG = np.random.default_rng(1)
DATA = {site: (RNG.normal(size=(40, FEATURES)), RNG.integers(0, LABELS, 40)) for site in "abcd"}


def layers(classes: int) -> tuple[tuple[str, int], ...]:
    return (("weight", classes * FEATURES), ("bias", classes))


def update(site: str, classes: int) -> np.ndarray:
    """The full-batch gradient of a softmax regression in its first model; a study's seed fixes that in both."""
    x, y = DATA[site]
    shapes = (LayerShape(name="weight", shape=(classes, FEATURES)), LayerShape(name="bias", shape=(classes,)))
    model = seeded_model(shapes, SEED).astype(np.float64)
    weight, bias = model[: classes * FEATURES].reshape(classes, FEATURES), model[classes * FEATURES :]
    scores = np.exp(x @ weight.T + bias)
    missed = (scores / scores.sum(axis=1, keepdims=True) - np.eye(classes)[y]) / len(y)
    return np.concatenate([(missed.T @ x).ravel(), missed.sum(axis=0)])


def row(study: str, sites: str, classes: int) -> SummedRow:
    named = layers(classes)
    return SummedRow(
        study_digest=study,
        round=1,
        dimension=sum(size for _, size in named),
        weights=tuple(SummedWeight(site=site, weight=1.0) for site in sites),
        least=len(sites),
        layers=named,
    )


@pytest.mark.parametrize("features", [12, 140])
def test_one_class_more_over_all_sites_but_one(tmp_path: Path, features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference over the common coordinates is site a's update; site b, which is asked, refuses the second sum.

    With 140 features both updates are longer than what is kept whole of one.
    """
    rng = np.random.default_rng(1)
    monkeypatch.setattr(sys.modules[__name__], "FEATURES", features)
    for site in DATA:
        monkeypatch.setitem(DATA, site, (rng.normal(size=(40, features)), rng.integers(0, LABELS, 40)))
    common = CLASSES * features
    first = sum(update(site, CLASSES)[:common] for site in "abcd")
    second = sum(update(site, CLASSES + 1)[:common] for site in "bcd")
    truth = update("a", CLASSES)[:common]
    assert np.linalg.norm(first - second - truth) < 0.2 * np.linalg.norm(truth)
    memory = SumMemory(tmp_path, lambda: bytes(32))
    small = memory.kept(update("b", CLASSES), layers(CLASSES))
    large = memory.kept(update("b", CLASSES + 1), layers(CLASSES + 1))
    memory.agree(row("four", "abcd", CLASSES), small, SitePolicy(), 0)
    with pytest.raises(PolicyRefusal, match="isolation"):
        memory.agree(row("five", "bcd", CLASSES + 1), large, SitePolicy(), 0)
    memory.agree(row("five", "abcd", CLASSES + 1), large, SitePolicy(), 0)
