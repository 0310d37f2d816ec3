"""Shares of small numbers modulo 2^b, taken to modulo 2^64 by each server alone: how often that errs.

Each server reads its share as a signed number. For y = a + b modulo 2^bits with a uniform, a + b is y exactly unless
the reading of b leaves [-2^(bits-1), 2^(bits-1)), which |y| of the 2^bits values of a make it do: so an entry errs with
|y| / 2^bits, and a sketch with at most the sum of its entries' sizes over 2^bits. An error adds or takes 2^bits, which
the range check sees but for 2^-40: the site is left out of that round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from protocol.arithmetic.fixed_point import encode_into, scaling_of
from protocol.arithmetic.ring import Ring, Signed, to_signed
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import StudyParameters

_BLOCKS: Final = 4


@dataclass(frozen=True)
class Lifted:
    """In a ring of ``bits``: how many sketches of ``trials`` had an entry that erred, and how many should have."""

    bits: int
    trials: int
    erred: int
    expected: float


def sketched(update: Ring, challenge: bytes, parameters: StudyParameters) -> Signed:
    """The entries of one encoded update's sketch. Shapes: uint64[D] -> int64[min(D, k)]"""
    return to_signed(sketch_vector(challenge, update, parameters))


def encoded(update: np.ndarray[tuple[int], np.dtype[np.float32]], parameters: StudyParameters, seed: bytes) -> Ring:
    """Clipped to the study's norm, weight 1."""
    out = np.empty(update.size, dtype=np.uint64)
    encode_into(out, update, scaling_of(update, [("all", update.size)], parameters), seed, 0)
    return out


def share_errors(entries: Signed, bits: int, trials: int, rng: np.random.Generator) -> int:
    """In how many of ``trials`` fresh sharings of the entries, lifted by each server alone, any entry is wrong."""
    half, whole, erred = 1 << (bits - 1), 1 << bits, 0
    for _ in range(trials):
        a = rng.integers(-half, half, size=entries.size, dtype=np.int64)
        b = entries - a
        b = (b + half) % whole - half  # as B reads its share, signed
        erred += bool(np.any(a + b != entries))
    return erred


def lifted(entries: Signed, bits: int, trials: int, rng: np.random.Generator) -> Lifted:
    """What was found in a ring of ``bits``, beside what the sizes of the entries say."""
    chance = -math.expm1(float(np.sum(np.log1p(-np.abs(entries) / 2.0**bits))))
    return Lifted(bits, trials, share_errors(entries, bits, trials, rng), trials * chance)


def most_often(bits: int, parameters: StudyParameters) -> float:
    """The mean over challenges of a sketch's chance to err is at most this, for whatever update of norm E.

    The squares of a sketch's entries have mean 4 ||x||^2 in all, so the sum of k sizes has at most sqrt(k) 2 E.
    """
    norm = parameters.encoded_norm * (1.0 if parameters.exact_distances else math.sqrt(_BLOCKS))
    return math.sqrt(parameters.sketched_length) * norm / 2.0**bits
