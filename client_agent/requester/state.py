"""The requester's durable state between two rounds, and its decision on a round."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from client_agent.site.events import Absence
from client_agent.site.letter import CountedClasses
from protocol.messages.control import Announcement, RoundOutcome, Signed, StudyEnd, WeightList
from protocol.policy.memory import SiteMemory
from protocol.rounds.evidence import PastRelease
from protocol.rounds.planning import Candidate
from protocol.rules.interface import RuleState


class Welcomed(BaseModel):
    """The model version a site was last sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    site: str
    version: int


class RequesterState(BaseModel):
    """The requester's knowledge between two rounds; durable."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    next_round: int = 1
    rule_state: RuleState
    memory: SiteMemory = SiteMemory()
    welcomed: tuple[Welcomed, ...] = ()
    dropped: tuple[str, ...] = ()
    given_up: tuple[Absence, ...] = Field(default=(), description="what sites said that are not listed any more")
    unusable: tuple[str, ...] = Field(default=(), description="sites whose update was unusable in the last round")
    tags_wrong: tuple[str, ...] = Field(default=(), description="sites whose tags were wrong since the last sum")
    tags_wrong_before: tuple[str, ...] = Field(default=(), description="sites whose tags were ever wrong")
    short_rounds: int = 0
    too_few: bool = Field(default=False, description="whether the last round of updates came to no sum")
    list_kept: int = Field(default=0, description="how many sums in a row had the last sum's list")
    exposing: Candidate | None = Field(
        default=None, description="the list and least number that a site declined since the last sum, for isolation"
    )
    previous: PastRelease | None = None
    history: tuple[PastRelease, ...] = Field(default=(), description="the last releases of updates, oldest first")
    skipped: tuple[Signed[RoundOutcome], ...] = Field(default=(), description="the last rounds that were skipped")
    counts_rounds: int = Field(default=0, description="how many rounds summed class counts, skipped ones included")
    ranking_rounds: int = Field(default=0, description="how many rounds ranked the sites, skipped ones included")
    ranked: bool = Field(default=False, description="whether the sites are ranked, or will not be")
    summary_rounds: int = Field(default=0, description="how many rounds summed summaries, skipped ones included")
    summarised: bool = Field(default=False, description="whether there is a summary, or will be none")
    unsummarised: tuple[str, ...] = Field(default=(), description="sites that declined the summary, and that alone")
    measured_rounds: int = Field(default=0, description="how many rounds measured updates, skipped ones included")
    measure_tries: int = Field(default=0, description="how many of them came to nothing since the last sum")
    unreadable: tuple[str, ...] = Field(default=(), description="letters that do not open, as views name them")
    end: Signed[StudyEnd] | None = None
    why: str = Field(default="", description="the end and its full reason, for this site only")
    alone: bool = False

    @property
    def updates_done(self) -> int:
        """Rounds of updates behind this one; only those count among the study's rounds."""
        apart = self.counts_rounds + self.ranking_rounds + self.summary_rounds + self.measured_rounds
        return self.next_round - 1 - apart


class RoundPlan(BaseModel):
    """A round as it was decided, before anything was sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    announcement: Signed[Announcement]
    weight_list: WeightList
    previous: PastRelease | None
    skipped: tuple[Signed[RoundOutcome], ...] = ()
    counted: Signed[CountedClasses] | None = None
    isolation: float | None = None
