"""An average of some sites' gradients, attacked by whoever has it: the requester, or any listed site.

The first round of a study with equal weights: every site takes the gradient of its batch at the first model, and the
attacker has taken its own part out. What it knows besides: the model, how many records there are, and their labels,
which is more than it has. The average is rounded as float32; the protocol's rounding is no coarser where it matters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, model_vector
from client_agent.learning.models import build_model
from client_agent.learning.private.clipped_gradients import NOISE_STEPS, Grid, clipped_sum
from client_agent.learning.trainer import loss_gradient, take
from client_agent.tasks.losses import cross_entropy
from harness.adversaries.inverting.analytic import rows_over_biases
from harness.adversaries.inverting.lines import How, InversionKey, InversionLine, Inverted
from harness.adversaries.inverting.matching import Hit, guesses, hit
from harness.adversaries.inverting.optimised import Descent
from harness.adversaries.inverting.targets import Pool, Target
from harness.engine.training import one_thread
from harness.versions import versions
from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.arithmetic.prg import derive
from protocol.errors import ConfigurationError

Reals = NDArray[np.float64]
_CPU: Final = torch.device("cpu")
_STEPS: Final = 300
_VARIATION: Final = 0.01
_DIGITS: Final = 5


@cache
def _pool(target: Target, folder: Path | None) -> Pool:
    return target.pool(folder)


@dataclass(frozen=True)
class InvertedRun:
    """One average to attack; ``steps`` are those of the descent."""

    target: Target
    sites: int
    batch: int
    seed: int
    folder: Path | None = None
    steps: int = _STEPS

    @property
    def key(self) -> InversionKey:
        """As the line's that comes of it."""
        return (self.target.key, self.sites, self.batch, self.seed)

    def line(self) -> InversionLine:
        """Raises: ConfigurationError for data that are missing or too few"""
        with one_thread():
            return self._line(time.monotonic())

    def _line(self, begun: float) -> InversionLine:
        target, pool = self.target, _pool(self.target, self.folder)
        draw = np.random.default_rng([self.seed, self.sites, self.batch])
        true, others = self._dealt(pool, draw)
        truth = _flat(true)
        model = build_model(target.spec(pool), self.seed)
        per_site = [true_part(true, self.batch, site) for site in range(self.sites)]
        sent = [self._sent(model, part, site) for site, part in enumerate(per_site)]
        gradient = np.stack(sent).mean(axis=0, dtype=np.float64)
        analytic = rows_over_biases(model, gradient)
        variation = _VARIATION if target.is_image else 0.0
        descent = Descent(self.steps, variation).records(model, gradient, np.asarray(true.y), pool.shape, self.seed)
        tried = max(len(analytic), len(descent))
        guessed = [hit(target, pool, truth, one) for one in guesses(_flat(others), tried, draw)]
        best = max(guessed, key=lambda one: (one.close, one.alike or 0.0))
        found = [(How.ANALYTIC, len(analytic), hit(target, pool, truth, analytic))]
        found += [(How.OPTIMISED, len(descent), hit(target, pool, truth, descent)), (How.GUESSED, tried, best)]
        return InversionLine(
            target=target.key,
            sites=self.sites,
            batch=self.batch,
            seed=self.seed,
            parameters=len(model_vector(model)),
            attacks=tuple(_inverted(how, number, one) for how, number, one in found),
            seconds=round(time.monotonic() - begun, 3),
            versions={one.name: one.version for one in versions()},
        )

    def _sent(self, model: nn.Module, part: Examples, site: int) -> Vector:
        """One site's gradient, with the noise that the target's sites add, if any."""
        if self.target.privacy is None:
            return loss_gradient(model, part, _CPU)
        grid, size = Grid.of(self.target.privacy), len(model_vector(model))
        noise = discrete_gaussian(size, NOISE_STEPS, derive(bytes(32), f"noise {self.key} {site}"))
        batch = take(part, np.arange(len(part)), _CPU)
        return np.asarray(
            (noise + clipped_sum(model, batch, cross_entropy, grid)) * (grid.step / len(part)), np.float32
        )

    def _dealt(self, pool: Pool, draw: np.random.Generator) -> tuple[Examples, Examples]:
        """The sites' records, one site after the other, and those that the attacker may guess from."""
        wanted, there = self.sites * self.batch, len(pool.examples)
        if wanted >= there:
            raise ConfigurationError(
                f"{self.target.key}: {self.sites} sites of {self.batch} records and somebody to guess from need more "
                f"than the {there} records that there are"
            )
        order = draw.permutation(there)
        rows, left = order[:wanted], order[wanted:]
        X, y = pool.examples.X, np.asarray(pool.examples.y)
        return Examples(X[rows], y[rows]), Examples(X[left], y[left])


def true_part(true: Examples, batch: int, site: int) -> Examples:
    """One site's records."""
    rows = slice(site * batch, (site + 1) * batch)
    return Examples(true.X[rows], np.asarray(true.y)[rows])


def _flat(examples: Examples) -> Reals:
    return examples.X.reshape(len(examples), -1).astype(np.float64)


def _inverted(how: How, candidates: int, found: Hit) -> Inverted:
    return Inverted(
        how=how,
        candidates=candidates,
        exact=_rounded(found.exact),
        close=_rounded(found.close),
        noise=None if found.noise is None else _rounded(found.noise),
        alike=None if found.alike is None else _rounded(found.alike),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
