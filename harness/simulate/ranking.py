"""``moiety simulate rank``: whose data resemble mine, before any training together?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table

from client_agent.cli.tables import console as console_for
from client_agent.learning.ridge import JudgedOn, judging_form, ridge_model
from client_agent.study.results import losses_of
from harness.datasets.registry import DataRequest, load_data
from harness.engine.protected_sum import Measuring, correlations_from
from harness.simulate.options import SimilarityOptions
from harness.simulate.run_one import Protection
from host.frozen import Frozen
from protocol import sharing
from protocol.arithmetic import fixed_point
from protocol.arithmetic.ring import Ring, derive
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import RankingSpec
from protocol.mpc import measurement, sketch
from protocol.parameters import Needs, StudyParameters
from protocol.ranking import (
    GRID,
    LONGEST,
    QuadraticForm,
    TransferLoss,
    error_bound,
    predictor,
    query_scale,
    ranked,
    ranking_parameters,
)
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


DEFAULTS: Final = RankingSpec()


class SiteRank(Frozen):
    """One line of the ranking; ``failed_check`` sites have no loss."""

    site: str
    loss: float | None
    samples: int
    failed_check: bool = False


class Ranking(Frozen):
    """``own_loss`` is the requester's own model on the same examples, which no other site needs to know.

    ``judged_on`` says which of the requester's examples; ``error_bound`` is fixed point's, None in plain.
    """

    data: str
    requester: str
    protection: str
    model: str
    judged_on: str
    own_loss: float
    error_bound: float | None
    sites: tuple[SiteRank, ...]


def rank(request: DataRequest, *, secure: bool, clip_norm: float = DEFAULTS.clip_norm) -> Ranking:
    """Rank by ridge regression, as sites do. Raises: ConfigurationError, UnusableUpdate"""
    federation = load_data(request)
    requester, classes = federation.requester, len(federation.class_names)
    judging = judging_form(requester.train, requester.validation, classes)
    vectors = {s.name: predictor(ridge_model(s.train, classes, DEFAULTS.penalty)) for s in federation.sites}
    losses = {name: judging.form.loss(vector) for name, vector in vectors.items()}
    bound: float | None = None
    failed: tuple[str, ...] = ()
    if secure:
        others = {name: vector for name, vector in vectors.items() if name != requester.name}
        seed = derive(bytes(32), f"moiety rank {request.seed}")
        opened = open_losses(judging.form, others, clip_norm=clip_norm, seed=seed)
        losses = {requester.name: losses[requester.name]} | {one.site: one.loss for one in opened.losses}
        bound, failed = opened.error_bound, opened.failed_check
    samples = {site.name: len(site.train) for site in federation.sites}
    order = ranked(tuple(TransferLoss(name, loss) for name, loss in losses.items() if name != requester.name))
    return Ranking(
        data=federation.title,
        requester=requester.name,
        protection="secure" if secure else "plain",
        model="ridge regression",
        judged_on=judging.judged_on,
        own_loss=losses[requester.name],
        error_bound=bound,
        sites=(
            *(SiteRank(site=one.site, loss=one.loss, samples=samples[one.site]) for one in order),
            *(SiteRank(site=name, loss=None, samples=samples[name], failed_check=True) for name in failed),
        ),
    )


def print_ranking(asked: SimilarityOptions) -> None:
    """Rank, and print the table. Raises: ConfigurationError, UnusableUpdate"""
    protection = Protection(asked.protection)
    if protection is Protection.CKKS:
        raise ConfigurationError("--protection ckks adds updates and ranks no models; take secure, or plain")
    secure = protection is Protection.SECURE
    request = DataRequest(asked.data, asked.seed, asked.split, asked.sites, asked.requester, folder=asked.folder)
    ranking = rank(request, secure=secure, clip_norm=asked.clip_norm)
    if asked.as_json:
        typer.echo(ranking.model_dump_json())
    else:
        console_for(stderr=False).print(_table(ranking))


def _table(ranking: Ranking) -> Table:
    judged = f"on {ranking.requester}'s {ranking.judged_on} data"
    table = Table(title=f"{ranking.data}: {ranking.model}, {ranking.protection}, {judged}")
    for column in ("rank", "site", "transfer loss", "training examples"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for place, one in enumerate(ranking.sites, 1):
        loss = "failed its range check" if one.loss is None else f"{one.loss:.4f}"
        table.add_row(str(place), one.site, loss, str(one.samples))
    own = f"{ranking.requester} itself{JudgedOn(ranking.judged_on).caveat}"
    table.add_row("", own, f"{ranking.own_loss:.4f}", "", style="dim")
    return table
