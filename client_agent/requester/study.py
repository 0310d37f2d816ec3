"""A requester's study: what it knows, and what all steps of a round use (client_agent/requester/run.py runs them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from client_agent.learning.learner import Vector
from client_agent.requester.state import RequesterState, Settled
from client_agent.site.context import SiteContext, drop_sum
from client_agent.site.events import EventKind
from client_agent.site.failpoints import Point
from client_agent.site.journal import StudyJournal
from client_agent.study.mail import Notice, read_notice
from client_agent.study.participant import Participant
from protocol.errors import Clause, ConfigurationError, PolicyRefusal, RefusedMessage, Unavailable, UnknownResource
from protocol.messages.control import EndCause, Signed, Study, StudyEnd, StudyEndState, StudyView
from protocol.messages.letter import LetterKind, Topic
from protocol.policy.memory import remember_skip
from protocol.policy.site_policy import list_terms
from protocol.rounds.evidence import PastRelease
from protocol.rules.registry import rule_for

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
