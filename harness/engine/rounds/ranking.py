"""Transfer losses of linear models under secure two-party computation, all parties in one process.

Real: fixed point, shares, range check, products from OT. Left out, since nothing leaves the process: commitments and
coin toss (the challenge comes from the seed), sealing, signatures, files. Opened, to the requester: the losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_agent.study.ranking import losses_of
from harness.engine.rounds.correlations import Measuring, correlations_from
from protocol import sharing
from protocol.arithmetic import fixed_point
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.mpc import measurement, sketch
from protocol.parameters import Needs, StudyParameters
from protocol.ranking import GRID, LONGEST, error_bound, query_scale, ranking_parameters
from protocol.rules.transfer_loss import QuadraticForm, TransferLoss
from protocol.sharing import Share, Side


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
    return ranking_parameters(length, clip_norm)


def open_losses(
    form: QuadraticForm, predictors: Mapping[str, NDArray[np.float64]], *, clip_norm: float, seed: bytes
) -> OpenedLosses:
    """Both servers hold shares of the form and of every predictor; the requester opens one loss per site.

    Shapes:   form.vector and every predictor float64[L]
    Reveals:  each loss and range check, to the requester
    Raises:   UnusableUpdate naming a site whose model is longer than ``clip_norm``; ConfigurationError
    """
    parameters = parameters_for(form.vector.size, clip_norm)
    scale = query_scale(form.length, clip_norm)
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
    halves = correlations_from("ot", derive(seed, "correlations"))([o.lengths for o in operands[Side.A]], "ranking")
    numerators = dict.fromkeys(predictors, GRID)
    measuring = Measuring(parameters, numerators, Needs.INNER_PRODUCTS, derive(seed, "zero sharing"), "ranking")
    losses, failed = losses_of(measuring.opened(operands, halves), form.constant, scale)
    return OpenedLosses(losses, failed, error_bound(parameters, form.length))


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
