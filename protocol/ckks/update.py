"""A site's update as ciphertexts, the average out of their sum, and the check of that sum (docs/protocol.md 11).

Every site multiplies its clipped update by its own weight w in [0, 1] before it encrypts, and encrypts w too, as the
first value: so the server only adds, and whoever holds the key divides.

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
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.fixed_point import Real, Update
from protocol.arithmetic.kernels import Scaling
from protocol.arithmetic.ring import Usage, derive, expand
from protocol.ckks.ciphertext import DEVIATIONS, BodyHeader, CkksParameters, Kind, chunks_of
from protocol.ckks.scheme import Decryptor, Encryptor, SecretKey
from protocol.errors import AggregateOutOfBounds, SumForged
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
        """The number of sites that the sum must hold."""

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


def body_header(kind: Kind, key: SecretKey, dimension: int) -> BodyHeader:
    """Return the head of a body: D coordinates and the weight."""
    return BodyHeader(kind, key.scheme.fingerprint, key.id, dimension + 1)


def contribution(
    encryptor: Encryptor, header: BodyHeader, update: Update, scaling: Scaling, clip_norm: float, checks: SiteChecks
) -> Iterator[bytes]:
    """The body that a site seals to the summing server, ciphertext by ciphertext.

    Shapes:   float[D]; ``scaling`` from :func:`protocol.arithmetic.fixed_point.scaling_of`, which checks and clips
    Reveals:  to holders of the key: everything. To the server: its length
    Raises:   UnusableUpdate, as :meth:`Encryptor.encrypt`
    """
    yield header.to_bytes()
    slots = encryptor.parameters.value_slots
    for number, start in enumerate(range(0, header.values, slots)):
        piece = np.empty(min(slots, header.values - start))
        coordinates = piece[1:] if start == 0 else piece
        begin = max(start - 1, 0)
        coordinates[:] = _scaled(update[begin : begin + coordinates.size], scaling, clip_norm)
        if start == 0:
            piece[0] = scaling.weight
        yield encryptor.encrypt(checks.filled(number, piece))


def _scaled(piece: Update, scaling: Scaling, clip_norm: float) -> Real:
    return piece.astype(np.float64) * scaling.unit * scaling.factor * scaling.weight / clip_norm


def average(
    pieces: Iterable[bytes],
    decryptor: Decryptor,
    header: BodyHeader,
    checks: SumChecks,
    least_weight: float,
    clip_norm: float,
) -> NDArray[np.float32]:
    """The weighted average out of a server's sum of the contributions that ``checks`` expects.

    Nothing of a ciphertext is used before its check values are right; where they are not, all that was decrypted is
    overwritten.

    Shapes:   -> float32[D]
    Reveals:  approximate values, which depend on the key: they stay with holders of the key, whose number must be
              the cohort's (Li and Micciancio 2021; docs/threat_model.md)
    Raises:   MalformedMessage; SumForged; AggregateOutOfBounds, when the weights do not add up to between
              ``least_weight`` and 1 a contribution, or the sum is longer than clipped updates of these weights can be
    """
    out = np.empty(header.values - 1, dtype=np.float32)
    try:
        _open_into(out, pieces, decryptor, header, checks, least_weight, clip_norm)
    except BaseException:
        out.fill(0.0)
        raise
    return out


def _open_into(
    out: NDArray[np.float32],
    pieces: Iterable[bytes],
    decryptor: Decryptor,
    header: BodyHeader,
    checks: SumChecks,
    least_weight: float,
    clip_norm: float,
) -> None:
    parameters = decryptor.parameters
    weights, squares = math.nan, 0.0
    for number, chunk in enumerate(chunks_of(pieces, parameters, header)):
        start = number * parameters.value_slots
        values = checks.require(number, decryptor.decrypt(chunk))[: header.values - start]
        if number == 0:
            weights = _checked_weights(float(values[0]), checks.summed, least_weight, parameters)
            values = values[1:]
        begin = max(start - 1, 0)
        squares += float(np.dot(values, values))
        out[begin : begin + values.size] = values * (clip_norm / weights)
    _require_norm(math.sqrt(squares), weights, checks.summed, header.values, parameters)


def _checked_weights(found: float, summed: int, least: float, parameters: CkksParameters) -> float:
    slack = DEVIATIONS * math.sqrt(summed) * parameters.value_deviation
    if not least * summed - slack <= found <= summed + slack:
        raise AggregateOutOfBounds(
            f"the weights of {summed} contributions add up to {found:.6g}, must lie between {least * summed:.6g} and "
            f"{summed}: a site or the server broke the protocol; the round is discarded"
        )
    return found


def _require_norm(found: float, weights: float, summed: int, values: int, parameters: CkksParameters) -> None:
    most = weights + DEVIATIONS * math.sqrt(summed * values) * parameters.value_deviation
    if not found <= most:
        raise AggregateOutOfBounds(
            f"the decrypted sum has norm {found:.6g}, clipped updates of weight {weights:.6g} reach {most:.6g}: a site "
            "or the server broke the protocol; the round is discarded"
        )
