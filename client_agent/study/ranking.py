"""A ranking of the sites before training: what the requester asks with, opens and keeps (docs/protocol.md 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from client_agent.learning.learner import Learner
from client_agent.learning.ridge import JudgedOn
from client_agent.site.events import Shown
from host.frozen import Frozen
from protocol.arithmetic.fixed_point import Real
from protocol.errors import ProtocolViolation, UnusableUpdate
from protocol.messages.control import Purpose, RankingSpec, Study
from protocol.mpc.measurement import OpenedSite
from protocol.ranking import TransferLoss, predictor, ranked

RANKING_FILE: Final = "ranking.json"


class RankedSite(Frozen):
    """One line; ``loss`` is None for a site that failed its range check."""

    site: str
    loss: float | None


class UnrankedSite(Frozen):
    """A site that contributed no model, and why as far as it said so."""

    site: str
    reason: Shown


class Ranking(Frozen):
    """The smaller the loss, the more a site's data resemble the requester's; kept by the requester alone.

    ``own_loss`` is the requester's own model on the same examples, which it was trained on where ``judged_on`` says
    training; ``error_bound`` how far a loss can be from the plain
    one, by fixed point's rounding. ``problem`` says why there is no ranking, where there is none.
    """

    study: str
    requester: str
    round: int
    problem: Shown = ""
    judged_on: JudgedOn | None = None
    own_loss: float | None = None
    error_bound: float | None = None
    sites: tuple[RankedSite, ...] = ()
    unranked: tuple[UnrankedSite, ...] = ()


def losses_of(
    opened: Sequence[OpenedSite], constant: float, scale: float
) -> tuple[tuple[TransferLoss, ...], tuple[str, ...]]:
    """Losses of the sites that passed, smallest first, and the names of those that did not."""
    losses = tuple(
        TransferLoss(one.site, one.inner_product / scale + constant) for one in opened if one.inner_product is not None
    )
    return ranked(losses), tuple(one.site for one in opened if not one.in_range)


def spec_of(study: Study) -> RankingSpec:
    """Raises: ProtocolViolation for a study that ranks nobody"""
    if study.ranking is None:
        raise ProtocolViolation(f"study {study.name!r} ranks no sites")
    return study.ranking


def model_vector(learner: Learner, study: Study, round_number: int) -> Real:
    """Return a site's contribution to a ranking. -> float64[D]

    Raises: UnusableUpdate, when there is no such model or it is longer than the study allows
    """
    allowed = study.parameters_in(Purpose.RANKING).clip_norm
    vector = predictor(learner.ridge(spec_of(study).penalty))
    length = float(np.linalg.norm(vector))
    if length > allowed:
        raise UnusableUpdate(
            f"round {round_number}: this site's ridge regression has a vector of length {length:.3g}, the ranking's "
            f"clip_norm allows {allowed:g}: rank with a larger one, or scale the features"
        )
    return vector
