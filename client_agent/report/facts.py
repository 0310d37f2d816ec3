"""Facts of a study report, read from this site's own state folder; nothing is asked of a server or kept."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from client_agent.product.card import CardPrivacy, ModelCard, Named
from client_agent.report.outcome import Federated
from client_agent.scoring.score import FinalScores
from client_agent.site.events import Absent, RoundRecord, Shown
from client_agent.site.models.kept_model import KeptModel
from client_agent.study.ranking import Ranking
from client_agent.study.summarising import Summary


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Missed(_Frozen):
    """The rounds that a site missed for one reason, and its own words in the last of them."""

    why: Absent
    rounds: int
    text: Shown = ""


class SiteStory(_Frozen):
    """One contributor over the study: ``sums`` of updates it is in, the rule's first and last weight for it.

    ``distance`` is the last that was opened; None where the rule opens none, and at every site but the requester.
    """

    site: str
    sums: int
    first_weight: float | None
    last_weight: float | None
    distance: float | None
    missed: tuple[Missed, ...]


class Cost(_Frozen):
    """All exchanges with one server for one purpose: bytes at the socket, TLS and headers among them."""

    server: str
    purpose: str
    exchanges: int
    sent_bytes: int
    received_bytes: int


class StudyReport(_Frozen):
    """A study as this site knows it at ``made_s`` (seconds since 1970), in any state.

    ``state`` is a word or two, ``reason`` why; ``outcome`` says what a study that did not end as asked has come to.
    ``settings`` and ``statements`` are in words, by the signed study. ``rounds`` are this site's records; weights and
    what was opened about sites are in them at the requester alone. ``costs`` are the study's own exchanges,
    ``costs_of_all`` those that belong to no single study. Without ``card``, ``no_card`` says why.
    """

    report: Literal["moiety-study-report/1"] = "moiety-study-report/1"
    study: str
    study_digest: str
    roster_digest: str
    federation: str
    site: str
    requester: str
    made_s: float
    state: str
    reason: Shown
    outcome: str
    federated: Federated
    sums: int
    settings: tuple[Named, ...]
    statements: tuple[Named, ...]
    sites: tuple[SiteStory, ...]
    rounds: tuple[RoundRecord, ...]
    scores: FinalScores | None
    best: KeptModel | None
    ranking: Ranking | None
    summary: Summary | None
    privacy: CardPrivacy | None
    costs: tuple[Cost, ...]
    costs_of_all: tuple[Cost, ...]
    card: ModelCard | None
    no_card: Shown
    versions: tuple[Named, ...]

    @property
    def at_requester(self) -> bool:
        return self.site == self.requester
