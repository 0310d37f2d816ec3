"""The requester's state between two rounds: its plan of one, how the last one ended, who was missing."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from client_agent.site.events import Absence, Absent, RoundEnd
from client_agent.site.letters import CountedClasses
from host.frozen import Frozen
from protocol.errors import Clause, ErrorCode
from protocol.messages.control import Announcement, RoundOutcome, Signed, StudyEnd, WeightList
from protocol.policy.memory import SiteMemory
from protocol.rounds.evidence import PastRelease
from protocol.rounds.planning import Candidate
from protocol.rules.interface import Measured, RuleState
from protocol.text import printable


class Welcomed(Frozen):
    """The model version a site was last sent."""

    site: str
    version: int


class RequesterState(Frozen, hide_input_in_errors=True):
    """The requester's knowledge between two rounds; durable."""

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


class RoundPlan(Frozen):
    """A round as it was decided, before anything was sent."""

    announcement: Signed[Announcement]
    weight_list: WeightList
    previous: PastRelease | None
    skipped: tuple[Signed[RoundOutcome], ...] = ()
    counted: Signed[CountedClasses] | None = None
    isolation: float | None = None


@dataclass(frozen=True)
class Refused:
    """A site that declined, and why; ``reason`` is for people."""

    site: str
    code: ErrorCode
    clause: Clause | None
    reason: str

    @property
    def passes(self) -> bool:
        """True if the site would take part with evidence or a model that it lacks."""
        return self.clause is not None and self.clause.passes


@dataclass(frozen=True)
class Settled:
    """The end of a round. ``past`` is set when a sum was released, ``measured`` when the rule can be applied.

    ``skip`` is set when the round was skipped, with both servers' signatures. ``failed_check`` are agreed sites that
    failed one in a round that sums nothing, or whose tags were wrong; the release set of any other names them.
    ``server_lied``: the servers' words about tags do not fit each other.
    """

    end: RoundEnd
    attempt: int
    reason: str
    declines: tuple[Refused, ...]
    clipped: bool | None
    requester_norm: float | None
    past: PastRelease | None = None
    measured: Measured | None = None
    skip: Signed[RoundOutcome] | None = None
    failed_check: tuple[str, ...] = ()
    server_lied: bool = False

    def took_part(self, requester: str) -> tuple[str, ...]:
        """Return the sites whose updates were summed, or measured where nothing was; the requester among them."""
        if self.past is not None:
            return self.past.release_set.message.sites
        measured = () if self.measured is None else self.measured.took_part
        return (requester, *measured) if measured else ()

    @property
    def failed(self) -> tuple[str, ...]:
        """The agreed sites that failed a check."""
        return self.failed_check if self.past is None else self.past.release_set.message.failed_check


def absences(
    contributors: tuple[str, ...], state: RequesterState, announcement: Announcement, settled: Settled
) -> tuple[Absence, ...]:
    """Return the roster's contributors, in its order, whose vector is not in the round's result.

    ``state`` is as it was when the round was planned, but for the sites that are given up since.
    """
    took_part = settled.took_part("")
    refused = {one.site: one for one in settled.declines}
    return tuple(
        _absence(site, state, announcement, settled, refused.get(site))
        for site in contributors
        if site not in took_part
    )


def _absence(
    site: str, state: RequesterState, announcement: Announcement, settled: Settled, refused: Refused | None
) -> Absence:
    if refused is not None:
        return Absence(site=site, why=Absent.DECLINED, text=printable(f"{_short(refused)}: {refused.reason}"))
    if site in settled.failed:
        return Absence(site=site, why=Absent.FAILED_CHECK)
    if site in announcement.listed:
        return Absence(site=site, why=Absent.NO_CONTRIBUTION)
    before = next((one for one in state.given_up if one.site == site), None)
    if before is not None:
        return before
    if site in state.dropped:
        return Absence(site=site, why=Absent.GIVEN_UP)
    known = {one.site for one in state.welcomed}
    return Absence(site=site, why=Absent.NOT_LISTED if site in known else Absent.NOT_READY)


def given_up(declines: tuple[Refused, ...], sites: list[str], round_number: int) -> tuple[Absence, ...]:
    """Sites that are not listed any more, with what they said."""
    return tuple(
        Absence(
            site=one.site,
            why=Absent.GIVEN_UP,
            text=printable(f"since round {round_number}, {_short(one)}: {one.reason}"),
        )
        for one in declines
        if one.site in sites
    )


def _short(refused: Refused) -> str:
    return refused.code.value if refused.clause is None else refused.clause.value
