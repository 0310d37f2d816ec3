"""How many true records an attack's candidates hit, beside as many guesses by somebody who never saw the average.

A record is held against the candidate that is nearest to it, which says most in the attacker's favour. Guesses are as
many, of two kinds: other people's records, and records whose every column is drawn by itself from other people's; the
better kind counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.adversaries.inverting.targets import Pool, Target, signal_to_noise, structural_similarity

Reals = NDArray[np.float64]
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
