"""Real vectors <-> ring vectors: clipping, stochastic rounding, decoding (docs/protocol.md 2).

A site clips its update to the study's norm, multiplies it by its weight, then encodes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.prg import Usage, expand
from protocol.arithmetic.ring import Ring, from_signed, to_signed
from protocol.errors import ProtocolViolation, UnusableUpdate
from protocol.parameters import StudyParameters

Real: TypeAlias = NDArray[np.float64]
Update: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

_LARGEST_ENCODED = 2.0**62
_UNIFORM_BITS = 53


def check_finite(update: Update, layers: Sequence[tuple[str, int]]) -> None:
    """Refuse an update that has the wrong shape or dtype, or holds NaN or infinity.

    ``layers`` names the pieces of the flat vector in order, each with its number of coordinates.

    Raises:   UnusableUpdate, which names the layer
    """
    expected = sum(size for _, size in layers)
    if update.dtype not in (np.float32, np.float64) or update.shape != (expected,):
        raise UnusableUpdate(
            f"the update is {update.dtype}{list(update.shape)}, but the model's layers make float32 or float64"
            f"[{expected}]; check that the model is the study's"
        )
    start = 0
    for name, size in layers:
        bad = size - int(np.count_nonzero(np.isfinite(update[start : start + size])))
        if bad:
            raise UnusableUpdate(
                f"layer {name!r}: {bad} of {size} values are NaN or infinite; lower the learning rate or check the data"
            )
        start += size


def clip(update: Update, clip_norm: float) -> tuple[Real, bool]:
    """Scale ``update`` down to L2 norm ``clip_norm`` if it is longer; says whether it was.

    The norm is accumulated in float64, relative to the largest entry, so that no finite update overflows.

    Shapes:   float[D] -> float64[D]
    """
    values = update.astype(np.float64)
    peak = float(np.max(np.abs(values), initial=0.0))
    if peak == 0.0:
        return values, False
    relative = values / peak
    relative_norm = math.sqrt(float(np.sum(np.square(relative))))
    if peak * relative_norm <= clip_norm:
        return values, False
    return relative * (clip_norm / relative_norm), True


def encode(values: Update, parameters: StudyParameters, rand_seed: bytes, *, start: int = 0) -> Ring:
    """Fixed point with stochastic rounding: floor(x * 2^f), plus one with the probability of the fraction.

    Why: the expectation is exact, so rounding errors of many sites cancel instead of adding up; every error is
    below 2^-f.

    Shapes:   float[n] -> uint64[n], ring 2^64, f fraction bits; ``start`` is the place of the piece in the vector
    Requires: ``rand_seed`` fresh from the agent's random source (or a canary round's key)
    Raises:   UnusableUpdate, when a value is not finite or does not fit the ring
    """
    scaled = values.astype(np.float64) * parameters.scale
    if not np.all(np.abs(scaled) < _LARGEST_ENCODED):
        raise UnusableUpdate(
            f"a value is not finite or reaches 2^62 at {parameters.fraction_bits} fraction bits; "
            "check the update and clip it before encoding"
        )
    whole = np.floor(scaled)
    words = expand(rand_seed, Usage.ROUNDING, scaled.size, start=start)
    uniform = (words >> np.uint64(64 - _UNIFORM_BITS)) * 2.0**-_UNIFORM_BITS
    return from_signed(whole.astype(np.int64) + (uniform < scaled - whole))


def decode(x: Ring, parameters: StudyParameters) -> Real:
    """The real vector behind a ring vector: its signed reading over 2^f.

    Shapes:   uint64[n], f fraction bits -> float64[n]
    """
    return to_signed(x) / parameters.scale


def quantise_weight(alpha: float, grid: int) -> int:
    """Numerator of the multiple of 1/``grid`` nearest to ``alpha``; a tie goes to the even numerator.

    Raises:   ProtocolViolation, when alpha is outside [0, 1]
    """
    if not 0.0 <= alpha <= 1.0:
        raise ProtocolViolation(f"a weight lies in [0, 1], found {alpha}; the rule that computed it is wrong")
    return round(Fraction(alpha) * grid)
