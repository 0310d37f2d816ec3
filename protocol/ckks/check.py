"""Check values: a sum that was served holds every released site's ciphertext exactly once (docs/protocol.md 11).

Whoever adds ciphertexts without the key can as well leave one out, take one several times, take one of another round
or place, or add something. So the last slots of every ciphertext hold

    <K, z> / S + v        for the ciphertext's other values z,

with K common to all sites of a round and v a site's own, both pseudo-random under a key that only sites hold. The sum
of the check values then is <K, sum of z> / S + sum of v, which every site can compute; nothing else that can be made
out of the ciphertexts has that value, but for a probability that docs/protocol.md derives.

Source: the inner-product MAC of Agrawal and Boneh 2009, section 3, over the reals and within the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.prg import Usage, derive, expand
from protocol.ckks.parameters import DEVIATIONS, CkksParameters
from protocol.ckks.scheme import SecretKey
from protocol.errors import SumForged
from protocol.parameters import PROTOCOL_VERSION

_CHUNKS_AT_ONCE: Final = 128
_UNUSED_BITS: Final = 11
_HALF_RANGE: Final = 2.0**52


def _uniform(seed: bytes, length: int, start: int = 0) -> NDArray[np.float64]:
    """Pseudo-random numbers in [-1, 1), in steps of 2^-52."""
    words = expand(seed, Usage.CHECKS, length, start=start) >> np.uint64(_UNUSED_BITS)
    return words.astype(np.float64) / _HALF_RANGE - 1.0


class _RoundChecks:
    """K of one round, and the sum of v over some of its sites."""

    def __init__(self, key: SecretKey, announcement_digest: str, sites: Sequence[str]) -> None:
        self._parameters: CkksParameters = key.scheme.parameters
        round_key = derive(key.check_key, f"{PROTOCOL_VERSION} ckks checks of {announcement_digest}")
        self._seeds = [derive(round_key, f"site {site}") for site in sites]
        checks, values = self._parameters.check_slots, self._parameters.value_slots
        factors = _uniform(derive(round_key, "factors"), checks * values).reshape(checks, values)
        self._factors = factors / self._parameters.check_divisor
        self._start, self._known = 0, np.empty((0, checks))

    def of(self, number: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The check values of ciphertext ``number``: <K, z> / S and the sites' v.

        Shapes:   float64[n], n at most ``value_slots`` -> float64[check_slots]
        """
        tags: NDArray[np.float64] = self._factors[:, : values.size] @ values + self._sites_values(number)
        return tags

    def _sites_values(self, number: int) -> NDArray[np.float64]:
        """The sum of the sites' v, made for many ciphertexts at once."""
        if not self._start <= number < self._start + len(self._known):
            checks = self._parameters.check_slots
            length = _CHUNKS_AT_ONCE * checks
            total = np.zeros(length)
            for seed in self._seeds:
                total += _uniform(seed, length, number * checks)
            self._start, self._known = number, total.reshape(-1, checks)
        known: NDArray[np.float64] = self._known[number - self._start]
        return known


class SiteChecks:
    """The check values that a site puts behind the values of each of its ciphertexts."""

    def __init__(self, key: SecretKey, announcement_digest: str, site: str) -> None:
        self._parameters = key.scheme.parameters
        self._round = _RoundChecks(key, announcement_digest, (site,))

    def filled(self, number: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """All slots of ciphertext ``number``: its values, zeros, and the check values.

        Shapes:   float64[n], n at most ``value_slots`` -> float64[slots]
        """
        slots = np.zeros(self._parameters.slots)
        slots[: values.size] = values
        slots[self._parameters.value_slots :] = self._round.of(number, values)
        return slots


class SumChecks:
    """The check values that a sum over ``sites`` must have."""

    def __init__(self, key: SecretKey, announcement_digest: str, sites: Sequence[str]) -> None:
        self._parameters = key.scheme.parameters
        self._round = _RoundChecks(key, announcement_digest, sites)
        self.summed = len(sites)
        """How many sites the sum must hold."""

    def require(self, number: int, slots: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of decrypted ciphertext ``number`` of the sum, once its check values are right.

        Shapes:   float64[slots] -> float64[value_slots]
        Raises:   SumForged; what was decrypted is overwritten
        """
        values = slots[: self._parameters.value_slots]
        off = slots[self._parameters.value_slots :] - self._round.of(number, values)
        if not np.all(np.abs(off) <= self.tolerance):
            slots.fill(0.0)
            raise SumForged(
                f"ciphertext {number} of the sum is not that of the {self.summed} released sites, each once: server A, "
                "which alone adds, changed it, or one of these sites broke the protocol; what was decrypted is deleted "
                "and the round discarded: tell the other sites and compare server A's records"
            )
        return values

    @property
    def tolerance(self) -> float:
        """Eight standard deviations of the noise in a check value and, through K / S, in all values."""
        return DEVIATIONS * math.sqrt(2 * self.summed) * self._parameters.value_deviation
