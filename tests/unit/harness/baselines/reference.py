"""The baselines once more, slowly: softmax regression in float64, one loop a line of the papers' algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Slope = Callable[[np.ndarray, np.ndarray], np.ndarray]


def softmax_slope(X: np.ndarray, y: np.ndarray, classes: int) -> Slope:
    """Gradient of the mean cross-entropy over some rows, weights class by class and then the biases."""

    def slope(w: np.ndarray, rows: np.ndarray) -> np.ndarray:
        features = X.shape[1]
        W, b = w[: classes * features].reshape(classes, features), w[classes * features :]
        dW, db = np.zeros_like(W), np.zeros_like(b)
        for row in rows:
            scores = W @ X[row] + b
            p = np.exp(scores - scores.max())
            p /= p.sum()
            for label in range(classes):
                error = p[label] - (label == y[row])
                dW[label] += error * X[row] / len(rows)
                db[label] += error / len(rows)
        return np.concatenate([dW.reshape(-1), db])

    return slope


@dataclass
class Site:
    slope: Slope
    batches: Callable[[int], Sequence[np.ndarray]]
    control: np.ndarray = field(default_factory=lambda: np.zeros(0))
    personal: np.ndarray = field(default_factory=lambda: np.zeros(0))
    mixing: float = 0.0


@dataclass
class Federation:
    """``rate`` is the local learning rate, ``server`` what the mean of (start - end) / rate is multiplied by."""

    x: np.ndarray
    sites: list[Site]
    rate: float
    server: float
    c: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.c = np.zeros_like(self.x)
        for site in self.sites:
            site.control, site.personal = np.zeros_like(self.x), self.x.copy()

    def move(self, ends: Sequence[np.ndarray]) -> None:
        change = np.mean([end - self.x for end in ends], axis=0)
        self.x = self.x + self.server / self.rate * change


def fedprox(federation: Federation, number: int, there: Sequence[int], mu: float) -> None:
    ends = []
    for site in (federation.sites[place] for place in there):
        w = federation.x.copy()
        for rows in site.batches(number):
            w = w - federation.rate * (site.slope(w, rows) + mu * (w - federation.x))
        ends.append(w)
    federation.move(ends)


def scaffold(federation: Federation, number: int, there: Sequence[int]) -> None:
    ends, changes = [], []
    for site in (federation.sites[place] for place in there):
        y, taken = federation.x.copy(), 0
        for rows in site.batches(number):
            y = y - federation.rate * (site.slope(y, rows) - site.control + federation.c)
            taken += 1
        new = site.control - federation.c + (federation.x - y) / (taken * federation.rate)
        changes.append(new - site.control)
        site.control = new
        ends.append(y)
    federation.move(ends)
    federation.c = federation.c + np.sum(changes, axis=0) / len(federation.sites)


def ditto(federation: Federation, number: int, there: Sequence[int], pull: float) -> None:
    ends = []
    for site in (federation.sites[place] for place in there):
        w = federation.x.copy()
        for rows in site.batches(number):
            w = w - federation.rate * site.slope(w, rows)
        for rows in site.batches(number):
            v = site.personal
            site.personal = v - federation.rate * (site.slope(v, rows) + pull * (v - federation.x))
        ends.append(w)
    federation.move(ends)


def pfedme(
    federation: Federation, number: int, there: Sequence[int], pull: float, steps: int, personal_rate: float
) -> None:
    ends = []
    for site in (federation.sites[place] for place in there):
        w = federation.x.copy()
        for rows in site.batches(number):
            theta = w.copy()
            for _ in range(steps):
                theta = theta - personal_rate * (site.slope(theta, rows) + pull * (theta - w))
            w = w - federation.rate * pull * (w - theta)
            site.personal = theta
        ends.append(w)
    federation.move(ends)


def apfl(federation: Federation, number: int, there: Sequence[int], start: float, adaptive: bool) -> None:
    ends = []
    for site in (federation.sites[place] for place in there):
        site.mixing = site.mixing or start
        w = federation.x.copy()
        for batch, rows in enumerate(site.batches(number)):
            v, a = site.personal, site.mixing
            mixed = site.slope(a * v + (1 - a) * w, rows)
            if adaptive and batch == 0:
                site.mixing = min(1.0, max(0.0, a - federation.rate * np.dot(v - w, mixed)))
            site.personal = v - federation.rate * site.mixing * mixed
            w = w - federation.rate * site.slope(w, rows)
        ends.append(w)
    federation.move(ends)
