"""A study's ranking of its sites before training (docs/protocol.md 8)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field, model_validator

from protocol.parameters import check_clip_norm
from protocol.wire.message import Message

MOST_RANKING_ROUNDS: Final = 3
"""How often a study may try to rank its sites; those rounds do not count among its rounds."""
LEAST_PENALTY: Final = 1e-2
"""The smallest penalty per example that a study may rank with, and that any site's policy can allow."""


class RankingSpec(Message):
    """Sites are ranked once, before the first update, by the squared loss of their own ridge regressions.

    ``penalty`` is the ridge's, per example, at most 1 and at least 1e-2: under a smaller one the coefficient of a
    feature that one patient has comes close to that patient's residual. ``clip_norm`` is the longest model vector that
    a site shares, a power of two from 1 to 1024. The requester chooses both: docs/threat_model.md says what it would
    learn beyond these bounds.
    """

    KIND: ClassVar[str] = "ranking"
    penalty: Annotated[float, Field(ge=LEAST_PENALTY, le=1, allow_inf_nan=False)] = LEAST_PENALTY
    clip_norm: Annotated[float, Field(ge=1, le=1024, allow_inf_nan=False)] = 16.0

    @model_validator(mode="after")
    def _consistent(self) -> RankingSpec:
        check_clip_norm(self.clip_norm)
        return self
