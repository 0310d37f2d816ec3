"""A kept update, to compare later ones with: all of a short one, a sketch of a long one.

The sketch is four blocks of buckets; each coordinate falls in each block into one pseudo-random bucket with a
pseudo-random sign (sparse Johnson-Lindenstrauss, Kane & Nelson 2014), from a seed that the site draws once and tells
nobody. Isolation is the residual of a least-squares problem in the span of at most 200 updates. Solved on sketches it
is at most the sketched length of the one residual that is truly best, and that vector's length, like the newest
update's, is kept with a relative standard deviation of sqrt(1/2k), 1.1 % at k = 4096: so the figure, their quotient,
comes out more than 5 % too high with a probability of about 1e-3. It comes out too low, where 200 rows are fitted, by
a factor of about sqrt(1 - 200/k): 2.5 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from protocol.arithmetic.fixed_point import Real, Update
from protocol.arithmetic.kernels import NUMBA, Kernels
from protocol.arithmetic.prg import Usage, expand_into

Layers: TypeAlias = Sequence[tuple[str, int]]
KEPT_LENGTH: Final = 4096
_BLOCKS: Final = 4
_PIECE: Final = 2**16
_LAYER: Final = 2**40
"""More than the longest layer: each has places of its own."""


def kept_update(update: Update, seed: bytes, layers: Layers = ()) -> Real:
    """The update, or its sketch where it is longer than ``KEPT_LENGTH``; inner products are (nearly) the same.

    Shapes:   float[D] -> float64[min(D, KEPT_LENGTH)]; ``layers`` are names and sizes, none: one layer
    Requires: ``seed`` the same for all updates that are compared
    Raises:   MalformedMessage, when the seed is not 32 bytes
    """
    return update.astype(np.float64) if update.size <= KEPT_LENGTH else sketched(update, seed, layers)


def sketched(update: Update, seed: bytes, layers: Layers = (), kernels: Kernels = NUMBA) -> Real:
    """The sketch, also of a short update: the product of two is that of what their first, second, ... layers share.

    Why: a model with one class more than another has other lengths, and nearly the same updates.

    Shapes:   float[D] -> float64[KEPT_LENGTH]; ``layers`` as :func:`kept_update`
    Raises:   MalformedMessage, when the seed is not 32 bytes
    """
    kept: Real = np.zeros(KEPT_LENGTH)
    first = 0
    for number, (_, size) in enumerate(layers or (("", update.size),)):
        _sketch_into(kept, update[first : first + size], seed, number * _LAYER, kernels)
        first += size
    kept /= np.sqrt(_BLOCKS)
    return kept


def _sketch_into(kept: Real, layer: Update, seed: bytes, place: int, kernels: Kernels) -> None:
    words = np.empty(min(_PIECE, layer.size), dtype=np.uint64)
    for start in range(0, layer.size, _PIECE):
        piece = layer[start : start + _PIECE]
        drawn = words[: piece.size]
        expand_into(seed, Usage.MEMORY, drawn, start=place + start)
        kernels.sketch_reals(kept, drawn, piece)


def rounding_noise(update: Update, weight: float, scale: float) -> float:
    """Squared length that stochastic rounding is expected to add to the weighted, encoded update.

    A value with the fraction phi is rounded up with probability phi, so its error has the variance phi (1 - phi). Of a
    sum's noise this is the site's own part alone: less than there is, so that isolation is not overrated.

    Shapes:   float[D] -> in the update's unit, squared; ``scale`` is 2^f
    """
    total = 0.0
    for start in range(0, update.size, _PIECE):
        fraction = update[start : start + _PIECE].astype(np.float64)
        fraction *= weight * scale
        fraction -= np.floor(fraction)
        total += float(np.sum(fraction * (1.0 - fraction)))
    return total / scale**2
