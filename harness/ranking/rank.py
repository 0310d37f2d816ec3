"""Ranks a federation's contributors by transfer loss on the requester's data (docs/protocol.md 8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.learning.ridge import judging_form, ridge_model
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation
from harness.engine.rounds.ranking import OpenedLosses, open_losses
from harness.ranking.models import loss_of_own_model, study_for
from protocol.arithmetic.prg import derive
from protocol.errors import ConfigurationError
from protocol.rules.transfer_loss import TransferLoss, predictor, ranked

PLAIN_DISCLOSES: Final = (
    "In the plain variant every site gives its own trained model to the requester as it is: the requester learns the "
    "model, and whatever can be read out of a model about the patients that it was trained on. Nothing is encrypted."
)


@dataclass(frozen=True)
class RankOptions:
    """``study`` is the model of the plain variant; None is ridge regression, which the secure variant always takes."""

    request: DataRequest
    secure: bool
    study: Path | None = None
    penalty: float = 1e-2
    clip_norm: float = 16.0


class SiteRank(BaseModel):
    """One line of the ranking; ``failed_check`` sites have no loss."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    site: str
    loss: float | None
    samples: int
    failed_check: bool = False


class Ranking(BaseModel):
    """``own_loss`` is the requester's own model on the same examples, which no other site needs to know.

    ``judged_on`` says which of the requester's examples; ``error_bound`` is fixed point's, None in plain.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    data: str
    requester: str
    protection: str
    model: str
    judged_on: str
    own_loss: float
    error_bound: float | None
    sites: tuple[SiteRank, ...]


def rank(options: RankOptions) -> Ranking:
    """Raises: ConfigurationError, UnusableUpdate"""
    federation = load_data(options.request)
    requester, classes = federation.requester, len(federation.class_names)
    judging = judging_form(requester.train, requester.validation, classes)
    if options.study is not None:
        if options.secure:
            raise ConfigurationError(
                "--study: only linear models can be ranked securely; leave it out, or give --protection plain"
            )
        study = study_for(options.study, federation, options.request.seed)
        seed, judged = options.request.seed, judging.examples
        losses = {s.name: loss_of_own_model(study, s, seed, judged).loss for s in federation.sites}
        return _ranking(options, federation, study.model.kind, judging.judged_on, losses, None)
    form, judged_on = judging.form, judging.judged_on
    vectors = {s.name: predictor(ridge_model(s.train, classes, options.penalty)) for s in federation.sites}
    losses = {name: form.loss(vector) for name, vector in vectors.items()}
    if not options.secure:
        return _ranking(options, federation, "ridge regression", judged_on, losses, None)
    others = {name: vector for name, vector in vectors.items() if name != requester.name}
    draws = derive(bytes(32), f"moiety rank {options.request.seed}")
    opened = open_losses(form, others, clip_norm=options.clip_norm, seed=draws)
    kept = {requester.name: losses[requester.name]} | {one.site: one.loss for one in opened.losses}
    return _ranking(options, federation, "ridge regression", judged_on, kept, opened)


def _ranking(
    options: RankOptions,
    federation: Federation,
    model: str,
    judged_on: str,
    losses: dict[str, float],
    opened: OpenedLosses | None,
) -> Ranking:
    requester = federation.requester.name
    samples = {site.name: len(site.train) for site in federation.sites}
    order = ranked(tuple(TransferLoss(name, loss) for name, loss in losses.items() if name != requester))
    failed = () if opened is None else opened.failed_check
    return Ranking(
        data=federation.title,
        requester=requester,
        protection="secure" if options.secure else "plain",
        model=model,
        judged_on=judged_on,
        own_loss=losses[requester],
        error_bound=None if opened is None else opened.error_bound,
        sites=(
            *(SiteRank(site=one.site, loss=one.loss, samples=samples[one.site]) for one in order),
            *(SiteRank(site=name, loss=None, samples=samples[name], failed_check=True) for name in failed),
        ),
    )
