"""The requester's query when it ranks the sites (docs/protocol.md 8)."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.learning.ridge import JudgedOn, JudgingForm
from client_agent.study.contribute import EncodedFile
from client_agent.study.participant import Participant
from client_agent.study.ranking import spec_of
from host.files import write_pieces
from protocol.messages.control import Purpose
from protocol.parameters import StudyParameters
from protocol.protection.shares import encode_vector
from protocol.ranking import error_bound, predictor, query_scale

_QUERY: Final = "judging.ring"
_RECORD: Final = "judging.json"


class Judging(BaseModel):
    """The requester's memory of its query: its scale, and what an opened product lacks."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    scale: float
    constant: float
    error_bound: float
    own_loss: float
    judged_on: JudgedOn


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
    write_pieces(folder / _QUERY, encode_vector(form.vector * scale, parameters, seed).pieces)
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
