"""A requester's study: its durable state, and what all steps of a round in client_agent/requester/run.py use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import Field

from client_agent.learning.learner import Vector
from client_agent.site.context import SiteContext, drop_sum
from client_agent.site.events import Absence, Absent, EventKind, RoundEnd
from client_agent.site.failpoints import Point
from client_agent.site.journal import StudyJournal
from client_agent.site.letters import CountedClasses
from client_agent.study.mail import Notice, read_notice
from client_agent.study.participant import Participant
from host.frozen import Frozen
from protocol.errors import (
    Clause,
    ConfigurationError,
    ErrorCode,
    PolicyRefusal,
    RefusedMessage,
    Unavailable,
    UnknownResource,
)
from protocol.messages.control import (
    Announcement,
    EndCause,
    RoundOutcome,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    StudyView,
    WeightList,
)
from protocol.messages.letter import LetterKind, Topic
from protocol.policy.memory import SiteMemory, remember_skip
from protocol.policy.site_policy import list_terms
from protocol.rounds.evidence import PastRelease
from protocol.rounds.planning import Candidate
from protocol.rules.interface import Measured, RuleState
from protocol.rules.registry import rule_for
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


T = TypeVar("T")
_LOOK_AGAIN_S: Final = 1.0
_REASON_CHARACTERS: Final = 500
_SKIPS_KEPT: Final = 32
RELEASES_KEPT: Final = 7
"""Their evidence fits a weight list; a site that missed more takes a checkpoint."""


class StudyOver(Exception):
    """The study ended at the servers; nothing more can be announced."""

    def __init__(self, end: Signed[StudyEnd]) -> None:
        super().__init__(f"{end.message.state.value}: {end.message.reason}")
        self.end = end


def declared_samples(context: SiteContext) -> int:
    """This site's number of samples as the roster has it, 1 where it has none: as a rule is told of all others."""
    return next(party.samples or 1 for party in context.roster.sites if party.name == context.site)


class RequesterStudy(Participant):
    """One study at its requester, durable; no step of a round is here."""

    def __init__(self, context: SiteContext, signed_study: Signed[Study], journal: StudyJournal) -> None:
        super().__init__(context, signed_study, journal)
        study = self.study
        self.rule = rule_for(
            study.rule,
            batch_size=study.training.batch_size,
            grid=study.parameters.weight_grid,
            terms=list_terms(study, context.policy, declared_samples(context)),
        )
        self._path = journal.folder / "requester.json"
        known = journal.read(self._path, RequesterState)
        self.progress = known if known is not None else RequesterState(rule_state=self.rule.init(()))

    def trained(self, round_number: int) -> Vector:
        """As at every site. Raises: ConfigurationError, where a person must mend this site's count of its budget"""
        try:
            return self.retried(lambda: super(RequesterStudy, self).trained(round_number))
        except PolicyRefusal as refusal:
            if refusal.clause is Clause.BUDGET_UNRECONCILED:
                raise ConfigurationError(refusal.detail) from None
            raise

    def keep(self, **changes: object) -> None:
        self.progress = self.progress.model_copy(update=changes)
        self.journal.write(self._path, self.progress)

    def heard(self, topic: Topic, sender: str, form: type[Signed[Notice]], *, patient: bool = True) -> Notice | None:
        """A site's notice that a view names; None where it is not there, or cannot be read, or not now if not patient.

        One that cannot be read is named once, with its sender, and not fetched again, restarts included.
        Raises: Stopped
        """
        entry = f"{topic}/{sender}"
        if entry in self.progress.unreadable:
            return None
        try:
            if not patient:
                return read_notice(self, topic, sender, form)
            return self.retried(lambda: read_notice(self, topic, sender, form))
        except (UnknownResource, Unavailable):  # look again with the next view
            return None
        except RefusedMessage as refused:
            self._put_aside(topic, entry, refused.detail)
            return None

    def _put_aside(self, topic: Topic, entry: str, why: str) -> None:
        """Those of the study as a whole stay remembered, of rounds' those of this topic."""
        kept = {str(topic), LetterKind.REFUSAL.value, LetterKind.HINDERED.value}
        before = tuple(other for other in self.progress.unreadable if other.partition("/")[0] in kept)
        self.keep(unreadable=(*before, entry))
        self.problem(None, f"the letter {entry} cannot be read: {why}")

    def led_here(self) -> PastRelease | None:
        """The release that led to the present model; None for version 0."""
        before = (self.state.model_version or 0) - 1
        led = [past for past in self.progress.history if past.announcement.model_version == before]
        return led[-1] if led else None

    def missed_by(self, site: str) -> tuple[PastRelease, ...]:
        """The releases before the last one whose sums a site may still have to apply: since it last took part."""
        history = self.progress.history
        rounds = [at for at, past in enumerate(history) if site in past.agreed_set.message.sites]
        since = rounds[-1] if rounds else 0
        return tuple(past for past in history[since:] if past != self.progress.previous)

    def after_skip(self, settled: Settled, number: int) -> dict[str, object]:
        """The skip is settled here, and kept as evidence for sites that did not see it."""
        kept = self.progress.skipped if settled.skip is None else (*self.progress.skipped, settled.skip)
        if settled.skip is not None:
            drop_sum(self.context, self.study_digest, number)
        return {"memory": remember_skip(self.progress.memory, number), "skipped": kept[-_SKIPS_KEPT:]}

    def end_study(
        self,
        state: StudyEndState,
        cause: EndCause,
        reason: str,
        why: str | None = None,
        *,
        clause: Clause | None = None,
        site: str | None = None,
    ) -> None:
        """Decide the end; journalled, delivered by ``_deliver_end``.

        The servers read ``reason``, which must hold no weight and nothing of an update; ``why`` stays at this site.
        """
        end = StudyEnd(
            study_digest=self.study_digest,
            state=state,
            cause=cause,
            clause=clause,
            site=site,
            reason=reason[:_REASON_CHARACTERS],
        )
        self.journal.reach(Point.BEFORE_END_JOURNALLED)
        self.keep(end=self.signed(end), why=f"{state.value}: {why or reason}", alone=state is StudyEndState.LOCAL_ONLY)
        self.journal.reach(Point.AFTER_END_JOURNALLED)
        self.event(EventKind.STUDY, None, self.progress.why)

    def until(self, found: Callable[[StudyView, StudyView], T | None]) -> T:
        """Wait until both views give an answer. Raises: StudyOver, Stopped"""
        while True:
            seen = self.watch.serial
            views = self.watch.both()
            if views is not None:
                self.follow_roster(views)
                end = self.ends(views).first
                if end is not None and self.progress.end is None:
                    raise StudyOver(end)
                answer = found(*views)
                if answer is not None:
                    return answer
            self.watch.wait(seen, _LOOK_AGAIN_S)
