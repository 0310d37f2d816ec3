"""A site's update as a body of ciphertexts, and the average out of their sum (docs/protocol.md 11).

Every site multiplies its clipped update by its own weight w in [0, 1] before it encrypts, and encrypts w too, as the
first value: so the server only adds, and whoever holds the key divides. Behind the values of each ciphertext come the
check values, which are looked at before anything else of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.fixed_point import Real, Update
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.check import SiteChecks, SumChecks
from protocol.ckks.cipher import Decryptor, Encryptor
from protocol.ckks.ciphertext import BodyHeader, Kind, chunks_of
from protocol.ckks.parameters import DEVIATIONS, CkksParameters
from protocol.ckks.scheme import SecretKey
from protocol.errors import AggregateOutOfBounds


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
