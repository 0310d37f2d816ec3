"""A ranking of the sites before training: what the requester asks with, opens and keeps (docs/protocol.md 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from client_agent.learning.ridge import JudgedOn, JudgingForm
from client_agent.site.events import Shown
from client_agent.study.contribute import EncodedFile, EncodedUpdate
from client_agent.study.encoding import encode_whole
from protocol.errors import ProtocolViolation, UnusableUpdate
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import StudyParameters
from protocol.ranking import error_bound, query_scale
from protocol.rules.transfer_loss import TransferLoss, predictor, ranked
from protocol.wire.messages import Announcement, Purpose, RankingSpec, Study

if TYPE_CHECKING:
    from client_agent.study.participant import Participant

RANKING_FILE: Final = "ranking.json"
_QUERY: Final = "judging.ring"
_RECORD: Final = "judging.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RankedSite(_Frozen):
    """One line; ``loss`` is None for a site that failed its range check."""

    site: str
    loss: float | None


class UnrankedSite(_Frozen):
    """A site that contributed no model, and why as far as it said so."""

    site: str
    reason: Shown


class Ranking(_Frozen):
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


class Judging(_Frozen):
    """What the requester must remember of its query: how it was scaled, and what an opened product lacks."""

    scale: float
    constant: float
    error_bound: float
    own_loss: float
    judged_on: JudgedOn


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


def encode_model(owner: Participant, announcement: Announcement) -> EncodedUpdate:
    """This site's vector of a ranking, encoded in the journal; the requester, which ranks, puts in zeros.

    Raises: UnusableUpdate, when there is no such model or it is longer than the study allows
    """
    study, parameters = owner.study, owner.study.parameters_in(Purpose.RANKING)
    if owner.context.site == owner.context.roster.requester:
        vector = np.zeros(parameters.dimension)
    else:
        with owner.stopwatch.phase("training"):
            vector = predictor(owner.learner.ridge(spec_of(study).penalty))
    seed = owner.context.randomness.bytes(32, f"rounding {owner.study_digest} round {announcement.round}")
    length = float(np.linalg.norm(vector))
    if length > parameters.clip_norm:
        raise UnusableUpdate(
            f"round {announcement.round}: this site's ridge regression has a vector of length {length:.3g}, the "
            f"ranking's clip_norm allows {parameters.clip_norm:g}: rank with a larger one, or scale the features"
        )
    encode_whole(vector, parameters, seed, owner.encoded_file(announcement).path)
    return EncodedUpdate(numerator=parameters.weight_grid, clipped=False, norm=length)


def try_judging(owner: Participant) -> None:
    """The requester's form and own model, before the study is begun. Raises: UnusableUpdate"""
    _own_loss(owner, owner.learner.judging_form())


def _own_loss(owner: Participant, judging: JudgingForm) -> float:
    return judging.form.loss(predictor(owner.learner.ridge(spec_of(owner.study).penalty)))


def make_judging(owner: Participant, round_number: int) -> Judging:
    """The requester's query, encoded in the journal; made only the first time, so that a restart asks the same.

    Raises: UnusableUpdate
    """
    folder = owner.journal.round_folder(round_number)
    known = owner.journal.read(folder / _RECORD, Judging)
    if known is not None:
        return known
    parameters = owner.study.parameters_in(Purpose.RANKING)
    judging = owner.learner.judging_form()
    form = judging.form
    scale = query_scale(form.length, parameters.clip_norm)
    seed = owner.context.randomness.bytes(32, f"judging rounding {owner.study_digest} round {round_number}")
    encode_whole(form.vector * scale, parameters, seed, folder / _QUERY)
    made = Judging(
        scale=scale,
        constant=form.constant,
        error_bound=error_bound(parameters, form.length),
        own_loss=_own_loss(owner, judging),
        judged_on=judging.judged_on,
    )
    owner.journal.write(folder / _RECORD, made)
    return made


def judging_file(owner: Participant, round_number: int, parameters: StudyParameters) -> EncodedFile:
    """Chunk access to the encoded query."""
    return EncodedFile(owner.journal.round_folder(round_number) / _QUERY, parameters.dimension)
