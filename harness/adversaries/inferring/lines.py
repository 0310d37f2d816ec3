"""What was inferred about one site in one study, as a line of JSON."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

FORMAT: Final = "moiety-inference/1"


class Told(BaseModel):
    """How well members are told from others: area under the ROC curve, and the true positive rate at 1 % false ones.

    0.5 and 0.01 are chance.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    auc: float
    at_one_percent: float


class InferenceLine(BaseModel):
    """One contributor of one study.

    ``by_loss``, ``by_reference`` and ``by_averages`` are three attacks on membership (``membership.py``); the last is
    None where nothing was summed. ``apart`` is half the absolute difference of the site's class shares from the
    requester's, 0 to 1. ``distance`` is the mean opened distance over the requester's own norm, ``weight`` the site's
    last weight; None where the rule opens or changes none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    study: str
    variant: str
    rule: str
    requester: str
    site: str
    seed: int
    sites: int
    members: int
    others: int
    released: int
    by_loss: Told
    by_reference: Told
    by_averages: Told | None
    apart: float
    distance: float | None
    weight: float | None
    seconds: float

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What tells a study's lines from another's."""
        return (self.study, self.variant, self.requester, self.seed)
