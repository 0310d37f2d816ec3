"""What scripted sites learn with: a quadratic of their own, without any randomness."""

from __future__ import annotations

import numpy as np

from client_agent.scoring.score import FinalScores, Score


class Quadratic:
    """The gradient of |A (x - target)|^2 / 2 over all of a site's data: no randomness."""

    def __init__(self, number: int, dimension: int) -> None:
        rng = np.random.default_rng(number)
        self._matrix = rng.normal(size=(dimension, dimension)) / np.sqrt(dimension)
        self._target = rng.normal(size=dimension)
        self.asked: list[int] = []

    def gradient(self, model: np.ndarray) -> np.ndarray:
        found = self._matrix.T @ (self._matrix @ (model - self._target))
        return np.asarray(found * min(1.0, 2.0 / np.linalg.norm(found)), dtype=np.float32)

    def prepare(self) -> None:
        return

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        self.asked.append(round_number)
        return self.gradient(model)

    def class_counts(self) -> tuple[int, ...]:
        return (10, 40)

    def validation_loss(self, model: np.ndarray) -> float | None:
        return None

    def scores(self, model: np.ndarray) -> tuple[Score, ...]:
        return ()

    def final_scores(self, model: np.ndarray, samples: int) -> FinalScores | None:
        return None


class Stays:
    """A learner whose step is too small to see."""

    def __init__(self, inner: Quadratic) -> None:
        self.scores, self.final_scores = inner.scores, inner.final_scores

    def apply(self, kept: np.ndarray, average: np.ndarray) -> np.ndarray:
        return kept
