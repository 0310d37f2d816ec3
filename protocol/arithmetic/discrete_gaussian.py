"""Exact discrete Gaussian noise from a seed: integers in, integers out, no floating point (docs/protocol.md 19).

N_Z(0, sigma^2) gives x with a probability proportional to exp(-x^2 / (2 sigma^2)). Every draw compares uniform integers
with integers, so what comes out has that law exactly, and no low-order bit of it tells what noise was added to.

Source: Canonne, Kamath, Steinke 2020, "The discrete Gaussian for differential privacy", algorithms 1 to 3, with
        t = sigma; a Bernoulli of num / (den k) is drawn as one of num / den and one of 1 / k.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Usage, expand
from protocol.errors import ProtocolViolation

LARGEST_SIGMA: Final = 2**26
"""Beyond it the squares of what is drawn leave 64 bits."""
_WORDS_EACH: Final = 16
_FEWEST_WORDS: Final = 1 << 10
_MOST_WORDS: Final = 1 << 17

Integers = NDArray[np.int64]


def discrete_gaussian(count: int, sigma: int, seed: bytes) -> Integers:
    """Independent draws of N_Z(0, sigma^2), the same ones for the same seed. ``sigma`` is a whole number.

    Shapes:   -> int64[count]
    Reveals:  nothing; whoever has the seed has the noise, so it comes from a secret generator and is used once
    Raises:   ProtocolViolation for a sigma outside of 1 to 2^26, and, with a probability below exp(-480) per draw,
              where a draw leaves 64 bits
    """
    from protocol.arithmetic.noise_kernels import fill

    if not 1 <= sigma <= LARGEST_SIGMA:
        raise ProtocolViolation(f"sigma is a whole number from 1 to {LARGEST_SIGMA}, found {sigma}")
    out = np.empty(count, dtype=np.int64)
    done = place = 0
    while done < count:
        length = min(_MOST_WORDS, _FEWEST_WORDS + _WORDS_EACH * (count - done))
        words = expand(seed, Usage.NOISE, length, start=place)
        filled, used = fill(words, np.int64(sigma), out[done:])
        if filled < 0:
            raise ProtocolViolation("a draw of noise left 64 bits; train the round again")
        done, place = done + filled, place + used
    return out
