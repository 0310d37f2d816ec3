"""Data sets as an attacker on one average meets them, and how many true records its candidates hit.

Records of a table are compared in standard deviations of the pool's columns, images in pixels of [0, 1]. A record is
compared with the candidate nearest to it, which says most in the attacker's favour. Guesses are as many, of two kinds:
other people's records, and records whose every column is drawn by itself from other people's; the better kind counts.

Source: Wang et al. 2004 (SSIM)

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

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from scipy.spatial.distance import cdist
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, model_vector, shared_parameters
from client_agent.learning.losses import cross_entropy
from client_agent.learning.models import BuiltIn, build_model, model_spec
from client_agent.learning.trainer import NOISE_STEPS, Grid, clipped_sum, loss_gradient, take
from harness.attack.attacked_study import Line, Reals, program_versions, rounded, timed
from harness.datasets.mnist import DEVIATION, MEAN
from harness.datasets.registry import DataRequest, load_data
from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.arithmetic.ring import derive
from protocol.errors import ConfigurationError
from protocol.messages.control import PrivacySpec

_POOL: Final = 4000
"""Records of a pool at most, so that every digit of MNIST need not be unpacked for every run."""
_WINDOW: Final = 5
_STEADY: Final = (0.01**2, 0.03**2)


@dataclass(frozen=True, eq=False)
class Pool:
    """All sites' training examples together, in an order that the data set's split with seed 0 gives.

    ``shape`` is one example's; ``spread`` the columns' standard deviations, 1 where a column is constant.
    """

    examples: Examples
    shape: tuple[int, ...]
    classes: int
    spread: Reals = field(repr=False)


@dataclass(frozen=True)
class Target:
    """A data set with a model of this kind and these widths.

    ``scale``: factor and summand that take an image's inputs to pixels of [0, 1], None for a table. ``privacy``: sites
    clip every record's gradient and add noise, as in a study with that table.
    """

    key: str
    data: str
    kind: BuiltIn
    widths: tuple[int, ...] = ()
    split: str = ""
    sites: int | None = None
    scale: tuple[float, float] | None = None
    privacy: PrivacySpec | None = None

    @property
    def is_image(self) -> bool:
        return self.scale is not None

    def pool(self, folder: Path | None) -> Pool:
        """Raises: ConfigurationError, where public data are missing"""
        request = DataRequest(self.data, 0, split=self.split, sites=self.sites, folder=folder)
        federation = load_data(request)
        parts = [site.train for site in federation.sites]
        X = np.concatenate([part.X for part in parts])
        y = np.concatenate([np.asarray(part.y) for part in parts])
        order = np.random.default_rng(0).permutation(len(y))[:_POOL]
        spread = X[order].reshape(len(order), -1).astype(np.float64).std(axis=0)
        whole = np.where(spread > 0, spread, 1.0)
        return Pool(Examples(X[order], y[order]), federation.inputs, len(federation.class_names), whole)

    def pixels(self, records: Reals, shape: tuple[int, ...]) -> Reals:
        """Flat inputs as images of [0, 1], float64[n, side, side]. Requires: an image"""
        assert self.scale is not None
        (factor, summand), side = self.scale, round(float(np.sqrt(np.prod(shape))))
        return np.clip(records * factor + summand, 0.0, 1.0).reshape(len(records), side, side)


def structural_similarity(one: Reals, other: Reals) -> float:
    """SSIM of two images of [0, 1], windows of 5 by 5; 1: the same, about 0: nothing in common."""
    means = [uniform_filter(image, _WINDOW) for image in (one, other)]
    squares = [uniform_filter(a * b, _WINDOW) for a, b in ((one, one), (other, other), (one, other))]
    spread_one, spread_other = squares[0] - means[0] ** 2, squares[1] - means[1] ** 2
    together = squares[2] - means[0] * means[1]
    c1, c2 = _STEADY
    above = (2 * means[0] * means[1] + c1) * (2 * together + c2)
    below = (means[0] ** 2 + means[1] ** 2 + c1) * (spread_one + spread_other + c2)
    return float(np.mean(above / below))


def signal_to_noise(one: Reals, other: Reals) -> float:
    """PSNR of two images of [0, 1] in dB, 60 at most: the same but for a thousandth."""
    return float(min(60.0, -10 * np.log10(max(float(np.mean((one - other) ** 2)), 1e-12))))


_LITTLE: Final = PrivacySpec(record_clip=1.0, noise_multiplier=0.1)
_USUAL: Final = PrivacySpec(record_clip=1.0, noise_multiplier=1.0)
_PIXELS: Final = (1.0, 0.0)
_MNIST: Final = (DEVIATION, MEAN)
TARGETS: Final = (
    Target("breast-linear", "breast_cancer", "linear"),
    Target("breast-mlp", "breast_cancer", "mlp", (64,)),
    Target("heart-linear", "heart_disease", "linear"),
    Target("heart-mlp", "heart_disease", "mlp", (64,)),
    Target("digits-linear", "digits", "linear", (), "", 10, _PIXELS),
    Target("digits-mlp", "digits", "mlp", (144,), "", 10, _PIXELS),
    Target("mnist-mlp", "mnist", "mlp", (128,), "A", 10, _MNIST),
    Target("mnist-cnn", "mnist", "cnn", (16, 32, 64), "A", 10, _MNIST),
    Target("heart-noise-little", "heart_disease", "mlp", (64,), privacy=_LITTLE),
    Target("heart-noise", "heart_disease", "mlp", (64,), privacy=_USUAL),
    Target("digits-noise-little", "digits", "mlp", (144,), "", 10, _PIXELS, _LITTLE),
    Target("digits-noise", "digits", "mlp", (144,), "", 10, _PIXELS, _USUAL),
)
"""A small network for tables, the demo's for digits, and two for MNIST, the second without a dense first layer."""


EXACT: Final = 0.01
"""Every column within a hundredth of a standard deviation (images: of a pixel's range)."""
CLOSE: Final = 0.3
"""Columns within 0.3 standard deviations, root mean square."""
RECOGNISED: Final = 20.0
"""PSNR in dB from which an image counts as read: so near to another image of the same digit, guesses hardly come."""


class Hit(Line):
    """Shares of the true records. ``close`` is by columns for tables, by PSNR for images; ``noise`` and ``alike`` are
    mean PSNR (dB) and SSIM, None for tables.
    """

    exact: float
    close: float
    noise: float | None = None
    alike: float | None = None


def hit(target: Target, pool: Pool, truth: Reals, candidates: Reals) -> Hit:
    """Shapes: truth float64[n, inputs], candidates float64[m, inputs]; without candidates nothing is hit"""
    if not len(candidates):
        none = 0.0 if target.is_image else None
        return Hit(exact=0.0, close=0.0, noise=none, alike=none)
    if target.is_image:
        return _images(target, pool, truth, candidates)
    nearest = _nearest(truth / pool.spread, candidates / pool.spread)
    off = (candidates[nearest] - truth) / pool.spread
    exact = float(np.mean(np.max(np.abs(off), axis=1) <= EXACT))
    return Hit(exact=exact, close=float(np.mean(np.sqrt(np.mean(off**2, axis=1)) <= CLOSE)))


def guesses(others: Reals, number: int, draw: np.random.Generator) -> tuple[Reals, Reals]:
    """Other people's records, and columns of theirs drawn one by one; float64[number, inputs] each."""
    records = others[draw.integers(0, len(others), number)]
    mixed = np.stack([draw.permuted(column)[draw.integers(0, len(others), number)] for column in others.T], axis=1)
    return records, mixed


def _images(target: Target, pool: Pool, truth: Reals, candidates: Reals) -> Hit:
    true, found = (target.pixels(one, pool.shape) for one in (truth, candidates))
    nearest = found[_nearest(true.reshape(len(true), -1), found.reshape(len(found), -1))]
    pairs = list(zip(true, nearest, strict=True))
    noise = [signal_to_noise(one, other) for one, other in pairs]
    return Hit(
        exact=float(np.mean([np.max(np.abs(one - other)) <= EXACT for one, other in pairs])),
        close=float(np.mean([value >= RECOGNISED for value in noise])),
        noise=float(np.mean(noise)),
        alike=float(np.mean([structural_similarity(one, other) for one, other in pairs])),
    )


def _nearest(truth: Reals, candidates: Reals) -> NDArray[np.int64]:
    usable = np.nan_to_num(candidates, nan=1e6, posinf=1e6, neginf=-1e6)
    return np.asarray(np.argmin(cdist(truth, usable), axis=1), np.int64)


_LEAST: Final = 1e-7
"""Below this part of the largest bias gradient a row says nothing but rounding."""


def rows_over_biases(model: nn.Module, gradient: Reals, least: float = 0.0) -> Reals:
    """Return every row over its bias, float64[rows that fired, inputs]; none where the first layer is not dense.

    A bias's gradient below ``least`` is none.

    Shapes:   gradient float64[D], in the order of the flat vector
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)), None)
    if not isinstance(first, nn.Linear):
        return np.zeros((0, 0))
    rows, inputs = first.out_features, first.in_features
    weights = gradient[: rows * inputs].reshape(rows, inputs)
    biases = gradient[rows * inputs : rows * (inputs + 1)]
    fired = np.abs(biases) > max(least, _LEAST * float(np.abs(biases).max()), np.finfo(np.float64).tiny)
    return np.asarray(weights[fired] / biases[fired, None])


_RATE: Final = 0.1
_SHRINKS_AT: Final = (0.5, 0.8)
"""Parts of the steps from which on the rate is a tenth of what it was."""
_TINY: Final = 1e-12


def descend(
    model: nn.Module,
    gradient: Reals,
    labels: NDArray[np.int64],
    shape: tuple[int, ...],
    seed: int,
    steps: int,
    variation: float = 0.0,
) -> Reals:
    """As many records as there are labels, from standard normal ones, float64[n, inputs].

    ``variation``: how much total variation counts, 0 for tables, which take the distance and not the angle.

    Shapes:   gradient float64[D], the mean over the labels' records
    """
    drawn = torch.Generator().manual_seed(seed)
    found = torch.randn((len(labels), *shape), generator=drawn).requires_grad_(True)
    target, y = torch.from_numpy(gradient.astype(np.float32)), torch.from_numpy(labels)
    optimiser = torch.optim.Adam([found], lr=_RATE)
    rate = torch.optim.lr_scheduler.MultiStepLR(optimiser, [round(part * steps) for part in _SHRINKS_AT])
    model.eval()
    for _ in range(steps):
        (downhill,) = torch.autograd.grad(_apart(model, found, y, target, variation), found)
        found.grad = downhill.sign()
        optimiser.step()
        rate.step()
    return found.detach().flatten(1).numpy().astype(np.float64)


def _apart(
    model: nn.Module, found: torch.Tensor, y: torch.Tensor, target: torch.Tensor, variation: float
) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(found), y)
    parameters = [parameter for _, parameter in shared_parameters(model)]
    parts = torch.autograd.grad(loss, parameters, create_graph=True)
    made = torch.cat([part.reshape(-1) for part in parts])
    if not variation:
        apart: torch.Tensor = ((made - target) ** 2).sum() / (target**2).sum().clamp_min(_TINY)
        return apart
    lengths = (made.norm() * target.norm()).clamp_min(_TINY)
    angle: torch.Tensor = 1 - (made * target).sum() / lengths
    return angle + variation * _variation(found)


def _variation(images: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference of neighbouring pixels; flat inputs are square images."""
    side = round((images[0].numel()) ** 0.5)
    square = images.reshape(len(images), side, side)
    down, across = square[:, 1:] - square[:, :-1], square[:, :, 1:] - square[:, :, :-1]
    return down.abs().mean() + across.abs().mean()


FORMAT: Final = "moiety-inversion/1"


class How(StrEnum):
    """ANALYTIC: rows over biases. OPTIMISED: descent. GUESSED: without the average; as many guesses as the larger of
    both attacks' candidates."""

    ANALYTIC = "analytic"
    OPTIMISED = "optimised"
    GUESSED = "guessed"


class Inverted(Hit):
    """One attack and its hits."""

    how: How
    candidates: int


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

    def by(self, how: How) -> Inverted:
        return next(one for one in self.attacks if one.how is how)


_CPU: Final = torch.device("cpu")
_STEPS: Final = 300
_VARIATION_OF_IMAGES: Final = 0.01
_DIGITS: Final = 5


@cache
def _pool(target: Target, folder: Path | None) -> Pool:
    return target.pool(folder)


def inverted_line(
    target: Target, sites: int, batch: int, seed: int, folder: Path | None = None, steps: int = _STEPS
) -> InversionLine:
    """Attack one average; ``steps`` are those of the descent.

    Raises: ConfigurationError for data that are missing or too few
    """
    with timed() as seconds:
        pool, draw = _pool(target, folder), np.random.default_rng([seed, sites, batch])
        X, y, there = pool.examples.X, np.asarray(pool.examples.y), len(pool.examples)
        if sites * batch >= there:
            raise ConfigurationError(
                f"{target.key}: {sites} sites of {batch} records and somebody to guess from need more than the {there} "
                "records that there are"
            )
        dealt, left = np.split(draw.permutation(there), [sites * batch])
        true, truth, others = Examples(X[dealt], y[dealt]), _flat(X[dealt]), _flat(X[left])
        model = build_model(model_spec(target.kind, pool.shape, target.widths, pool.classes), seed)
        sent = [
            _sent(target, model, true_part(true, batch, site), f"noise {(target.key, sites, batch, seed)} {site}")
            for site in range(sites)
        ]
        gradient = np.stack(sent).mean(axis=0, dtype=np.float64)
        variation = _VARIATION_OF_IMAGES if target.is_image else 0.0
        candidates = {
            How.ANALYTIC: rows_over_biases(model, gradient),
            How.OPTIMISED: descend(model, gradient, np.asarray(true.y), pool.shape, seed, steps, variation),
        }
        tried = max(map(len, candidates.values()))
        guessed = [hit(target, pool, truth, one) for one in guesses(others, tried, draw)]
        found = [(how, len(read), hit(target, pool, truth, read)) for how, read in candidates.items()]
        found.append((How.GUESSED, tried, max(guessed, key=lambda one: (one.close, one.alike or 0.0))))
        return InversionLine(
            target=target.key,
            sites=sites,
            batch=batch,
            seed=seed,
            parameters=len(model_vector(model)),
            attacks=tuple(
                Inverted(
                    how=how,
                    candidates=number,
                    **{name: None if value is None else rounded(value, _DIGITS) for name, value in one},
                )
                for how, number, one in found
            ),
            seconds=seconds(),
            versions=program_versions(),
        )


def _sent(target: Target, model: nn.Module, part: Examples, label: str) -> Vector:
    """One site's gradient, with the noise that the target's sites add, if any."""
    if target.privacy is None:
        return loss_gradient(model, part, _CPU)
    grid, size = Grid.of(target.privacy), len(model_vector(model))
    noise = discrete_gaussian(size, NOISE_STEPS, derive(bytes(32), label))
    batch = take(part, np.arange(len(part)), _CPU)
    return np.asarray((noise + clipped_sum(model, batch, cross_entropy, grid)) * (grid.step / len(part)), np.float32)


def true_part(true: Examples, batch: int, site: int) -> Examples:
    rows = slice(site * batch, (site + 1) * batch)
    return Examples(true.X[rows], np.asarray(true.y)[rows])


def _flat(records: NDArray[np.float32]) -> Reals:
    return records.reshape(len(records), -1).astype(np.float64)
