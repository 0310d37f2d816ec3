"""Data sets as an attacker on one average meets them, and how many true records its candidates hit.

Records of a table are compared in standard deviations of the pool's columns, images in pixels of [0, 1]. A record is
compared with the candidate nearest to it, which says most in the attacker's favour. Guesses are as many, of two kinds:
other people's records, and records whose every column is drawn by itself from other people's; the better kind counts.

Source: Wang et al. 2004 (SSIM)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from client_agent.learning.data import Examples
from client_agent.learning.models import model_spec
from harness.adversaries.attacked_study import Reals
from harness.datasets.mnist import DEVIATION, MEAN
from harness.datasets.registry import DataRequest, load_data
from protocol.messages.control import ModelSpec, PrivacySpec

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
    """A data set with a model; ``scale`` takes an image's inputs to pixels of [0, 1], None for a table.

    ``privacy``: sites clip every record's gradient and add noise, as in a study with that table.
    """

    key: str
    title: str
    data: str
    spec: Callable[[Pool], ModelSpec]
    split: str = ""
    sites: int | None = None
    scale: Callable[[Reals], Reals] | None = None
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
        side = round(float(np.sqrt(np.prod(shape))))
        return np.clip(self.scale(records), 0.0, 1.0).reshape(len(records), side, side)


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


def _linear(pool: Pool) -> ModelSpec:
    return model_spec("linear", pool.shape, (), pool.classes)


def _network(width: int) -> Callable[[Pool], ModelSpec]:
    return lambda pool: model_spec("mlp", pool.shape, (width,), pool.classes)


def _convolutions(pool: Pool) -> ModelSpec:
    return model_spec("cnn", pool.shape, (16, 32, 64), pool.classes)


def _normalised(records: Reals) -> Reals:
    return records * DEVIATION + MEAN


def _as_they_are(records: Reals) -> Reals:
    return records


_LITTLE: Final = PrivacySpec(record_clip=1.0, noise_multiplier=0.1)
_USUAL: Final = PrivacySpec(record_clip=1.0, noise_multiplier=1.0)
TARGETS: Final = (
    Target("breast-linear", "breast cancer, linear", "breast_cancer", _linear),
    Target("breast-mlp", "breast cancer, MLP of 64", "breast_cancer", _network(64)),
    Target("heart-linear", "heart disease, linear", "heart_disease", _linear),
    Target("heart-mlp", "heart disease, MLP of 64", "heart_disease", _network(64)),
    Target("digits-linear", "digits, linear", "digits", _linear, sites=10, scale=_as_they_are),
    Target("digits-mlp", "digits, MLP of 144", "digits", _network(144), sites=10, scale=_as_they_are),
    Target("mnist-mlp", "MNIST, MLP of 128", "mnist", _network(128), "A", 10, _normalised),
    Target("mnist-cnn", "MNIST, convolutions", "mnist", _convolutions, "A", 10, _normalised),
    Target("heart-noise-little", "heart disease, MLP of 64, noise 0.1", "heart_disease", _network(64), privacy=_LITTLE),
    Target("heart-noise", "heart disease, MLP of 64, noise 1", "heart_disease", _network(64), privacy=_USUAL),
    Target(
        "digits-noise-little", "digits, MLP of 144, noise 0.1", "digits", _network(144), "", 10, _as_they_are, _LITTLE
    ),
    Target("digits-noise", "digits, MLP of 144, noise 1", "digits", _network(144), "", 10, _as_they_are, _USUAL),
)
"""A small network for tables, the demo's for digits, and two for MNIST, the second without a dense first layer."""


EXACT: Final = 0.01
"""Every column within a hundredth of a standard deviation (images: of a pixel's range)."""
CLOSE: Final = 0.3
"""Columns within 0.3 standard deviations, root mean square."""
RECOGNISED: Final = 20.0
"""PSNR in dB from which an image counts as read: so near to another image of the same digit, guesses hardly come."""


@dataclass(frozen=True)
class Hit:
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
        return Hit(0.0, 0.0, 0.0, 0.0) if target.is_image else Hit(0.0, 0.0)
    if target.is_image:
        return _images(target, pool, truth, candidates)
    nearest = _nearest(truth / pool.spread, candidates / pool.spread)
    off = (candidates[nearest] - truth) / pool.spread
    exact = np.max(np.abs(off), axis=1) <= EXACT
    return Hit(float(np.mean(exact)), float(np.mean(np.sqrt(np.mean(off**2, axis=1)) <= CLOSE)))


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
    """The place of every true record's nearest candidate, by squared distance."""
    usable = np.nan_to_num(candidates, nan=1e6, posinf=1e6, neginf=-1e6)
    apart = (truth**2).sum(axis=1)[:, None] - 2 * truth @ usable.T + (usable**2).sum(axis=1)[None]
    return np.asarray(np.argmin(apart, axis=1), np.int64)
