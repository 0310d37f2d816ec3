"""Records read out of an average of some sites' gradients by whoever has it: the requester, or any listed site.

The first round of a study with equal weights: every site takes the gradient of its batch at the first model, and the
attacker has taken its own part out. It also knows the model, the number of records and their labels, which is more than
it has. The average is rounded as float32; the protocol's rounding is no coarser where it matters.

Analytic: the first dense layer's rows over its biases. A row's gradient is the sum of delta_i x_i over the records, its
bias's the sum of delta_i: their quotient is a weighted mean of the records, and the record itself where only one has
delta_i other than 0, as with one record in the average, or where a rectifier lets one through.

By descent: records whose gradients come nearest to the average. Tables: the squared distance to the average over its
squared length (DLG). Images: the angle between both, and total variation (Inverting Gradients). Signed Adam steps that
shrink twice on the way; few of them, so that it runs on a CPU: an attacker with a GPU and many restarts does better
where this one is not already exact.

Source: Phong et al. 2018; Geiping et al. 2020, Proposition 3.1; Boenisch et al. 2023; Zhu, Liu, Han 2019
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, model_vector
from client_agent.learning.models import build_model
from client_agent.learning.personal import shared_parameters
from client_agent.learning.private.clipped_gradients import NOISE_STEPS, Grid, clipped_sum
from client_agent.learning.trainer import loss_gradient, take
from client_agent.tasks.losses import cross_entropy
from harness.adversaries.attacked_study import Line, Reals, program_versions, rounded, timed
from harness.adversaries.inversion_targets import Hit, Pool, Target, guesses, hit
from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.arithmetic.ring import derive
from protocol.errors import ConfigurationError

_LEAST: Final = 1e-7
"""Below this part of the largest bias gradient a row says nothing but rounding."""


def rows_over_biases(model: nn.Module, gradient: Reals) -> Reals:
    """Return every row over its bias, float64[rows that fired, inputs]; none where the first layer is not dense.

    Shapes:   gradient float64[D], in the order of the flat vector
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)), None)
    if not isinstance(first, nn.Linear):
        return np.zeros((0, 0))
    rows, inputs = first.out_features, first.in_features
    weights = gradient[: rows * inputs].reshape(rows, inputs)
    biases = gradient[rows * inputs : rows * (inputs + 1)]
    fired = np.abs(biases) > _LEAST * max(float(np.abs(biases).max()), np.finfo(np.float64).tiny)
    return np.asarray(weights[fired] / biases[fired, None])


_RATE: Final = 0.1
_SHRINK: Final = ((0.5, 0.1), (0.8, 0.01))
"""Parts of the steps, and the part of the first rate that counts from there on."""
_TINY: Final = 1e-12


@dataclass(frozen=True)
class Descent:
    """``variation``: how much total variation counts, 0 for tables, which take the distance and not the angle."""

    steps: int
    variation: float = 0.0

    def records(
        self, model: nn.Module, gradient: Reals, labels: NDArray[np.int64], shape: tuple[int, ...], seed: int
    ) -> Reals:
        """As many records as there are labels, from standard normal ones, float64[n, inputs].

        Shapes:   gradient float64[D], the mean over the labels' records
        """
        drawn = torch.Generator().manual_seed(seed)
        found = torch.randn((len(labels), *shape), generator=drawn).requires_grad_(True)
        target, y = torch.from_numpy(gradient.astype(np.float32)), torch.from_numpy(labels)
        optimiser = torch.optim.Adam([found], lr=_RATE)
        milestones = [round(part * self.steps) for part, _ in _SHRINK]
        model.eval()
        for step in range(self.steps):
            for milestone, (_, factor) in zip(milestones, _SHRINK, strict=True):
                if step == milestone:
                    optimiser.param_groups[0]["lr"] = _RATE * factor
            (downhill,) = torch.autograd.grad(self._apart(model, found, y, target), found)
            found.grad = downhill.sign()
            optimiser.step()
        return found.detach().flatten(1).numpy().astype(np.float64)

    def _apart(self, model: nn.Module, found: torch.Tensor, y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(found), y)
        parameters = [parameter for _, parameter in shared_parameters(model)]
        parts = torch.autograd.grad(loss, parameters, create_graph=True)
        made = torch.cat([part.reshape(-1) for part in parts])
        if not self.variation:
            apart: torch.Tensor = ((made - target) ** 2).sum() / (target**2).sum().clamp_min(_TINY)
            return apart
        lengths = (made.norm() * target.norm()).clamp_min(_TINY)
        angle: torch.Tensor = 1 - (made * target).sum() / lengths
        return angle + self.variation * _variation(found)


def _variation(images: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference of neighbouring pixels; flat inputs are square images."""
    side = round((images[0].numel()) ** 0.5)
    square = images.reshape(len(images), side, side)
    down, across = square[:, 1:] - square[:, :-1], square[:, :, 1:] - square[:, :, :-1]
    return down.abs().mean() + across.abs().mean()


FORMAT: Final = "moiety-inversion/1"
InversionKey: TypeAlias = tuple[str, int, int, int]


class How(StrEnum):
    """ANALYTIC: rows over biases. OPTIMISED: descent. GUESSED: without the average; as many guesses as the larger of
    both attacks' candidates."""

    ANALYTIC = "analytic"
    OPTIMISED = "optimised"
    GUESSED = "guessed"


class Inverted(Line):
    """One attack: shares of the true records that it has exactly and closely; PSNR and SSIM of images."""

    how: How
    candidates: int
    exact: float
    close: float
    noise: float | None
    alike: float | None


class InversionLine(Line):
    """One average over ``sites`` sites' gradients, ``batch`` records each."""

    format: str = FORMAT
    target: str
    sites: int
    batch: int
    seed: int
    parameters: int
    attacks: tuple[Inverted, ...]
    seconds: float
    versions: dict[str, str]

    @property
    def key(self) -> InversionKey:
        """The target, sites, batch and seed."""
        return (self.target, self.sites, self.batch, self.seed)

    def by(self, how: How) -> Inverted:
        return next(one for one in self.attacks if one.how is how)


_CPU: Final = torch.device("cpu")
_STEPS: Final = 300
_VARIATION_OF_IMAGES: Final = 0.01
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
        with timed() as seconds:
            return self._line(seconds)

    def _line(self, seconds: Callable[[], float]) -> InversionLine:
        target, pool = self.target, _pool(self.target, self.folder)
        draw = np.random.default_rng([self.seed, self.sites, self.batch])
        true, others = self._dealt(pool, draw)
        truth = _flat(true)
        model = build_model(target.spec(pool), self.seed)
        per_site = [true_part(true, self.batch, site) for site in range(self.sites)]
        sent = [self._sent(model, part, site) for site, part in enumerate(per_site)]
        gradient = np.stack(sent).mean(axis=0, dtype=np.float64)
        analytic = rows_over_biases(model, gradient)
        variation = _VARIATION_OF_IMAGES if target.is_image else 0.0
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
            seconds=seconds(),
            versions=program_versions(),
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
        exact=rounded(found.exact, _DIGITS),
        close=rounded(found.close, _DIGITS),
        noise=None if found.noise is None else rounded(found.noise, _DIGITS),
        alike=None if found.alike is None else rounded(found.alike, _DIGITS),
    )
