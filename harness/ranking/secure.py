"""Transfer losses of linear models under secure two-party computation, all parties in one process.

Real: fixed point, shares, range check, products from OT. Left out, since nothing leaves the process: commitments and
coin toss (the challenge comes from the seed), sealing, signatures, files. Opened, to the requester: the losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.correlations import SourceName, correlations_from
from protocol import sharing
from protocol.arithmetic import fixed_point
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.mpc import measurement, sketch
from protocol.parameters import MIN_SKETCH_LENGTH, Needs, StudyParameters
from protocol.rules.transfer_loss import QuadraticForm, TransferLoss
from protocol.sharing import Share, Side

LONGEST: Final = 2**17
_GRID: Final = 1


@dataclass(frozen=True)
class OpenedLosses:
    """``error_bound`` is how far a loss can be from the plain one, by the rounding of fixed point alone."""

    losses: tuple[TransferLoss, ...]
    failed_check: tuple[str, ...]
    error_bound: float


def parameters_for(length: int, clip_norm: float) -> StudyParameters:
    """Numbers under which the sketch is the identity, so that losses are exact but for rounding.

    Raises: ConfigurationError when the vectors are longer than the longest sketch
    """
    if length > LONGEST:
        raise ConfigurationError(
            f"the model's quadratic form has {length} coordinates, at most {LONGEST} can be opened exactly (about 500 "
            "features); use fewer features, or --protection plain"
        )
    longest = max(MIN_SKETCH_LENGTH, 1 << (length - 1).bit_length())
    return StudyParameters(
        dimension=length, clip_norm=clip_norm, weight_grid=_GRID, sketch_length=longest, least_contributors=1
    )


def open_losses(
    form: QuadraticForm,
    predictors: Mapping[str, NDArray[np.float64]],
    *,
    clip_norm: float,
    seed: bytes,
    source: SourceName = "ot",
) -> OpenedLosses:
    """Both servers hold shares of the form and of every predictor; the requester opens one loss a site.

    Shapes:   form.vector and every predictor float64[L]
    Reveals:  each loss and range check, to the requester
    Raises:   UnusableUpdate naming a site whose model is longer than ``clip_norm``; ConfigurationError
    """
    parameters = parameters_for(form.vector.size, clip_norm)
    length = float(np.linalg.norm(form.vector))
    scale = clip_norm / length if length > 0 else 1.0
    query = fixed_point.encode(form.vector * scale, parameters, derive(seed, "rounding of the query"))
    shares = {site: _shared(site, vector, parameters, seed) for site, vector in predictors.items()}
    challenge = derive(seed, "challenge")
    query_shares = {site: _both(query, derive(seed, f"query for {site}")) for site in predictors}
    operands = {
        side: measurement.prepare_all(
            side,
            challenge,
            [
                measurement.SiteSketch(
                    site,
                    sketch.sketch_shares(challenge, [sharing.chunk_source(shares[site][side])], parameters)[0],
                    sharing.expand_share(query_shares[site][side], 0, query.size),
                )
                for site in predictors
            ],
            parameters,
            opens=Needs.INNER_PRODUCTS,
        )
        for side in Side
    }
    opened = _opened(operands, parameters, seed, source)
    losses = tuple(
        TransferLoss(one.site, form.with_product(one.inner_product / scale))
        for one in opened
        if one.inner_product is not None
    )
    failed = tuple(one.site for one in opened if not one.in_range)
    return OpenedLosses(losses, failed, error_bound(parameters, length))


def error_bound(parameters: StudyParameters, form_length: float) -> float:
    """How far an opened loss can be from the plain one.

    Both vectors have length at most C in their own scale; rounding moves each of L coordinates by less than one ring
    unit 2^-f, so each vector by less than e = sqrt(L) 2^-f: |<q', z'> - <q, z>| <= e (C + C + e). Back in the loss's
    scale that is times form_length / C.
    """
    e = math.sqrt(parameters.dimension) / parameters.scale
    return e * (2 * parameters.clip_norm + e) * form_length / parameters.clip_norm


def _opened(
    operands: Mapping[Side, list[measurement.Operands]], parameters: StudyParameters, seed: bytes, source: SourceName
) -> tuple[measurement.OpenedSite, ...]:
    """Products, refreshed shares, and the requester's opening."""
    draw = correlations_from(source, derive(seed, "correlations"))
    halves = dict(zip(Side, draw([one.lengths for one in operands[Side.A]], "ranking"), strict=True))
    masked = {
        side: [measurement.masked(o, h) for o, h in zip(operands[side], halves[side], strict=True)] for side in Side
    }
    zero_key = derive(seed, "zero sharing")
    shares = {
        side: [
            measurement.opening_share(side, own, theirs, half, zero_key, "ranking", parameters)
            for own, theirs, half in zip(operands[side], masked[side.other], halves[side], strict=True)
        ]
        for side in Side
    }
    numerators = {one.site: _GRID for one in operands[Side.A]}
    return measurement.open_all(shares[Side.A], shares[Side.B], numerators, parameters, Needs.INNER_PRODUCTS)


def _shared(site: str, vector: NDArray[np.float64], parameters: StudyParameters, seed: bytes) -> dict[Side, Share]:
    length = float(np.linalg.norm(vector))
    if length > parameters.clip_norm:
        raise UnusableUpdate(
            f"site {site!r}: its model's vector has length {length:.3g}, at most {parameters.clip_norm:g} is allowed; "
            "raise --clip-norm to the next power of two, for all sites"
        )
    encoded = fixed_point.encode(vector, parameters, derive(seed, f"rounding of {site}"))
    return _both(encoded, derive(seed, f"share of {site}"))


def _both(values: Ring, seed: bytes) -> dict[Side, Share]:
    seed_share, vector_share = sharing.split(values, seed)
    return {Side.A: seed_share, Side.B: vector_share}
