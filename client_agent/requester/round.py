"""One round as the requester drives it, from the announcement to the released sum (docs/protocol.md 4, 8, 9).

Nothing here waits for a particular order of events: each turn looks at both servers' views and does what is due. All
that leaves is journalled first, so a restart takes the same turns again with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from client_agent.net.envelopes import Body
from client_agent.net.server_client import ServerClient
from client_agent.net.watch import same_round
from client_agent.requester.openings import Openings, TagChecks, Wrong, query_vector, seal_queries
from client_agent.requester.own_update import Probe, kept_from_mean, learns_from, make_probe, own_noise, probe_file
from client_agent.requester.postbox import send_weights
from client_agent.requester.study import Refused, RequesterStudy, RoundPlan, Settled
from client_agent.site.events import EventKind, RoundEnd
from client_agent.site.failpoints import Point
from client_agent.site.letters import WeightMail
from client_agent.study.contribution import EncodedUpdate
from client_agent.study.mail import senders
from client_agent.study.release import shown_outcome
from client_agent.study.transcripts import keep_transcript
from host.files import write_durably
from protocol.arithmetic.ring import Ring
from protocol.errors import (
    BadSignature,
    ErrorCode,
    LocalOptimumReached,
    ProtocolViolation,
    RefusedMessage,
    TranscriptMismatch,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import (
    Announcement,
    Decline,
    RoundOutcome,
    RoundState,
    RoundView,
    Signed,
    StudyView,
    require_signatures,
)
from protocol.messages.letter import LetterKind, Topic
from protocol.parameters import Needs
from protocol.rounds.evidence import PastRelease
from protocol.rounds.judgement import RequesterFacts
from protocol.sharing import Side
from protocol.text import printable

TOLD_AFTER_S: Final = 900.0


class RoundStuckError(Exception):
    """The study ends: what was waited for, and since when."""


class StuckRound:
    """Watches one round. Time counts once the round has closed, and anew with every step that either server shows.

    Reveals:  to the servers, with the study's end, which of them showed what for how long
    """

    def __init__(self, owner: RequesterStudy, announcement: Announcement) -> None:
        self._owner = owner
        self._announcement = announcement
        self._shown: object = None
        self._since_s = owner.context.clock.monotonic()

    def look(self, a: RoundView | None, b: RoundView | None) -> None:
        """Look at what both servers show now. Raises: RoundStuckError, after three days without anything new"""
        clock, number = self._owner.context.clock, self._announcement.round
        now = clock.monotonic()
        shown = (_shown(a), _shown(b))
        if shown != self._shown or clock.now() < self._announcement.closes_at_s:
            self._shown, self._since_s = shown, now
        waited_s = now - self._since_s
        if waited_s < TOLD_AFTER_S and waited_s < self._owner.context.stuck_after_s:
            return
        stands = f"server a shows {shown[0]} and server b {shown[1]}"
        if waited_s >= self._owner.context.stuck_after_s:
            raise RoundStuckError(
                f"the servers did not end round {number} in the {waited_s / 3600:.1f} hours after it closed or after "
                f"they last went on: {stands}"
            )
        self._owner.problem_once(
            number,
            f"round {number} has closed and {stands} without anything new: the servers may not reach each other; ask "
            "both operators. The study waits for them, and ends as failed if they do not go on",
        )


def _shown(view: RoundView | None) -> str:
    return "no round" if view is None else f"round {view.round}, attempt {view.attempt}, {view.state.value}"


T = TypeVar("T")
_OPEN: Final = frozenset({RoundState.ANNOUNCED, RoundState.COLLECTING})
_UNREADABLE: Final = "its letter cannot be read"


class RequesterRound:
    """Drives one round to its end."""

    def __init__(self, owner: RequesterStudy, plan: RoundPlan) -> None:
        self._owner = owner
        self._context = owner.context
        self.plan = plan
        self._announcement = plan.announcement.message
        self._number = self._announcement.round
        self._openings = Openings(owner, plan)
        self._encoded: EncodedUpdate | None = None
        self._probe: Probe | None = None
        self._declines: dict[str, Refused] = {}
        self._taken: set[tuple[str, int]] = set()
        """Steps, by name and attempt."""
        self._tags = TagChecks(owner, plan)
        self._stuck = StuckRound(owner, self._announcement)

    def run(self) -> Settled:
        """Announce, then follow both views until the round is over at both servers.

        Raises: StudyOver, Stopped, ProtocolViolation, UnusableUpdate, LocalOptimumReached, RoundStuckError
        """
        owner = self._owner
        with owner.stopwatch.phase("announcing"):
            self._announce()
        owner.event(EventKind.PHASE, self._number, f"announced to {len(self._announcement.listed)} sites")
        self.prepare_own()
        return owner.until(self._turn)

    # --- announcing ---

    def _announce(self) -> None:
        plan, owner = self.plan, self._owner
        mail = WeightMail(
            weight_list=plan.weight_list, previous=plan.previous, skipped=plan.skipped, counted=plan.counted
        )
        owner.retried(lambda: send_weights(owner, mail, self._announcement.listed))

        def announce(client: ServerClient) -> None:
            owner.journal.reach(Point.BEFORE_ANNOUNCED)
            answer = owner.retried(lambda: client.announce(owner.study.name, plan.announcement))
            owner.journal.reach(Point.AFTER_ANNOUNCED)
            signers = (self._context.site, self._context.roster.operator(client.side).name)
            if require_signatures(answer, self._context.roster, signers) != self._announcement:
                raise TranscriptMismatch(
                    f"server {client.side} countersigned another announcement than the requester's"
                )

        self._context.at_both(announce)

    def prepare_own(self) -> None:
        """The requester's own update, of weight 1 or the list's. Raises: UnusableUpdate, LocalOptimumReached"""
        self._encoded = self._owner.encode(self._announcement, self.plan.weight_list.own_numerator)
        if self._announcement.opens is Needs.DISTANCES and self._encoded.norm == 0:
            raise LocalOptimumReached(
                f"round {self._number}: the requester's update is zero, so relative distances are undefined: "
                "its model has reached a local optimum and the study can be completed"
            )
        if self._announcement.opens is Needs.INNER_PRODUCTS:
            self._probe = make_probe(self._owner, self._announcement)

    # --- turns ---

    def _turn(self, view_a: StudyView, view_b: StudyView) -> Settled | None:
        self._stuck.look(view_a.current, view_b.current)
        rounds = same_round((view_a, view_b))
        if rounds is None or rounds[0].round != self._number:
            return None
        self._read_declines(view_a)
        a, b = rounds
        if a.attempt != b.attempt:
            return None
        settled = self.ended(a, b)
        if settled is not None:
            said = self._tags.said(a.attempt)
            keep_transcript(self._owner, rounds, settled.past, said.failed, self._tags.shares(a.attempt))
            return settled
        due = self.due(a, b)
        if due is not None:
            self.once(due, a, b)
        return None

    def ended(self, a: RoundView, b: RoundView) -> Settled | None:
        if a.state is RoundState.SKIPPED and b.state is RoundState.SKIPPED:
            return self.skipped(a, b)
        if a.state is RoundState.RELEASED and b.state is RoundState.RELEASED:
            return self._finish(a, b)
        return None

    def due(self, a: RoundView, b: RoundView) -> Callable[[RoundView, RoundView], None] | None:
        """The step that the attempt is waiting for, if it was not taken yet."""
        states = {a.state, b.state}
        due: Callable[[RoundView, RoundView], None] | None = None
        tossed = a.transcript is not None and b.transcript is not None
        if self._encoded is not None and states <= _OPEN:
            due = self._contribute
        elif self._announcement.opens.queried and tossed and RoundState.LOCKED in states:
            due = self._query
        elif self._announcement.purpose.plan.summed and states == {RoundState.MEASURED}:
            due = self.release
        elif states == {RoundState.COMMITTED}:
            due = self._check_tags
        return None if due is None or (due.__name__, a.attempt) in self._taken else due

    def once(self, step: Callable[[RoundView, RoundView], None], a: RoundView, b: RoundView) -> None:
        """Take a step; a server that refuses it as too late lets the round go on to its skip or next attempt.

        Evidence that one server shows without the signatures that it needs is nobody's word: it ends nothing.
        """
        try:
            self._owner.retried(lambda: step(a, b))
            self._taken.add((step.__name__, a.attempt))
        except (WrongRound, UnknownResource) as late:
            self._owner.problem(self._number, late.detail)
        except BadSignature as forged:
            self._owner.problem_once(self._number, forged.detail)
        except RefusedMessage as refused:
            raise ProtocolViolation(f"round {self._number}: {refused.detail}") from refused

    def _contribute(self, a: RoundView, b: RoundView) -> None:
        self._owner.contribute(self._announcement, a.attempt, self.plan.weight_list)
        self._owner.event(EventKind.PHASE, self._number, "contributed")
        if learns_from(self._owner.rule, self._announcement.purpose):
            own_noise(self._owner, self._number)  # while the others train

    def _query(self, a: RoundView, b: RoundView) -> None:
        owner, study = self._owner, self._owner.study
        with owner.stopwatch.phase("queries"):
            folder = owner.journal.attempt_folder(self._number, a.attempt)
            kept = {side: folder / f"queries-{side}.sealed" for side in Side}
            if not all(path.exists() for path in kept.values()):
                agreed, challenge, transcript_digest = self._openings.transcript(a, b)
                targets = tuple(site for site in agreed.sites if site != self._context.site)
                queries = self.query_vector(challenge, targets)
                label = f"{owner.study_digest} round {self._number} attempt {a.attempt}"
                sealed = seal_queries(
                    queries,
                    targets,
                    transcript_digest,
                    self._number,
                    self._context.roster,
                    study.parameters_in(self._announcement.purpose),
                    self._context.randomness,
                    label,
                )
                for side in Side:
                    owner.journal.reach(Point.BEFORE_QUERIES_JOURNALLED)
                    write_durably(kept[side], sealed[side])
                    owner.journal.reach(Point.AFTER_QUERIES_JOURNALLED)
            bodies = {side: Body.sealed(kept[side].read_bytes()) for side in Side}
            self._context.at_both(
                lambda client: client.send_queries(study.name, self._number, a.attempt, bodies[client.side])
            )
        owner.journal.reach(Point.AFTER_QUERIES_SENT)
        owner.event(EventKind.PHASE, self._number, "queries sent")

    def query_vector(self, challenge: bytes, targets: tuple[str, ...]) -> Ring:
        """Every target's query: its weight times the own sketched update; with the probe, the probe's sketch."""
        owner, parameters = self._owner, self._owner.study.parameters
        if self._probe is not None:
            ones = (parameters.weight_grid,) * len(targets)
            return query_vector(challenge, probe_file(owner, self._number), ones, parameters)
        numerators = tuple(self._openings.numerator(site) for site in targets)
        return query_vector(challenge, owner.encoded_file(self._announcement), numerators, parameters)

    def _facts(self) -> RequesterFacts:
        own, norm = self._context.site, 0.0 if self._encoded is None else self._encoded.norm
        if self._probe is None:
            return RequesterFacts(own, norm)
        return RequesterFacts(own, norm, self._probe.norm, self._probe.inner_product)

    def release(self, a: RoundView, b: RoundView) -> None:
        """Open both servers' shares, leave out who fails, sign the release set."""
        owner = self._owner
        with owner.stopwatch.phase("opening"):
            opened = self._openings.opened(a, b, self._facts())
            release = opened.release_set
            if release is not None:
                self._context.at_both(lambda client: client.release(owner.study.name, release))
        owner.journal.reach(Point.AFTER_RELEASE_SENT)
        if release is None:
            text = f"too few sites are left after the checks; left out: {', '.join(opened.left_out)}"
            owner.problem(self._number, text)
        else:
            owner.event(EventKind.PHASE, self._number, f"release of {len(release.message.sites)} sites signed")

    def _check_tags(self, a: RoundView, b: RoundView) -> None:
        """Both servers have fixed what they will serve: whether its tags are right, and what follows."""
        owner = self._owner
        release = self._openings.opened(a, b, self._facts()).release_set
        if release is None:
            raise ProtocolViolation(f"round {self._number}: the servers sum a release that this requester did not sign")
        with owner.stopwatch.phase("tags"):
            said = self._tags.take(release, a, b)
        if said.go is not None:
            owner.event(EventKind.PHASE, self._number, "the sum's tags are right: go")
        else:
            owner.problem(self._number, "the sum's tags are wrong: nothing is opened, and the round ends without a sum")

    def _read_declines(self, view: StudyView) -> None:
        topic = Topic(LetterKind.DECLINE, self._number)
        for sender in senders(view, topic):
            if sender in self._declines or sender not in self._announcement.listed:
                continue
            decline = self._owner.heard(topic, sender, Signed[Decline])
            if decline is None:
                if f"{topic}/{sender}" in self._owner.progress.unreadable:
                    self._declines[sender] = Refused(sender, ErrorCode.MALFORMED_MESSAGE, None, _UNREADABLE)
                continue
            reason = printable(decline.reason)
            self._declines[sender] = Refused(sender, decline.code, decline.clause, reason)
            self._owner.event(EventKind.DECLINED, self._number, f"{sender}: {decline.code.value}: {reason}")

    # --- the end ---

    def _shown_end(self, a: RoundView, b: RoundView, state: RoundState) -> Signed[RoundOutcome] | None:
        """Return the end that both servers signed; one that is forged is named once, and ends nothing."""
        try:
            return shown_outcome(a, b, self._context.roster, self._owner.study_digest, state)
        except RefusedMessage as forged:
            self._owner.problem_once(self._number, forged.detail)
            return None

    def opened_without_sum(self, a: RoundView, b: RoundView) -> bool:
        """Return whether both servers ended a round that sums nothing, and show it with both signatures."""
        ends_as = self._announcement.purpose.plan.ends_as
        return a.state is b.state is ends_as and self._shown_end(a, b, ends_as) is not None

    def skipped(self, a: RoundView, b: RoundView) -> Settled | None:
        """None until a view shows the skip with both signatures, as the sites need it."""
        skip = self._shown_end(a, b, RoundState.SKIPPED)
        if skip is None:
            return None
        wrong = self._wrong_tags(a, b)
        settled = replace(self.settled(RoundEnd.SKIPPED, a, skip.message.reason), skip=skip)
        if wrong is None:
            return settled
        return replace(settled, failed_check=wrong.sites, server_lied=wrong.server_lied)

    def settled(self, end: RoundEnd, view: RoundView, reason: str = "") -> Settled:
        """The round's end with what sites declined and this site encoded."""
        encoded = self._encoded
        return Settled(
            end=end,
            attempt=view.attempt,
            reason=reason,
            declines=tuple(self._declines.values()),
            clipped=None if encoded is None else encoded.clipped,
            requester_norm=None if encoded is None else encoded.norm,
        )

    def opened_or_none(self, opened: Callable[[], T]) -> T | None:
        """Return what both servers keep of a round that sums nothing; None where one has nothing to open any more."""
        try:
            return self._owner.retried(opened)
        except UnknownResource:
            return None
        except RefusedMessage as refused:
            raise ProtocolViolation(f"round {self._number}: {refused.detail}") from refused

    def _wrong_tags(self, a: RoundView, b: RoundView) -> Wrong | None:
        if self._tags.said(a.attempt).failed is None:
            return None
        release = self._openings.opened(a, b, self._facts()).release_set
        return None if release is None else self._owner.retried(lambda: self._tags.wrong(release, a.attempt))

    def _finish(self, a: RoundView, b: RoundView) -> Settled:
        """Open the average like every site, and hand the measurement to the rule."""
        owner, encoded = self._owner, self._encoded
        opened = self._openings.opened(a, b, self._facts())
        if opened.release_set is None or a.agreed_set is None or encoded is None:
            raise ProtocolViolation(f"round {self._number} was released without this requester's release set")
        past = PastRelease(
            announcement=self._announcement,
            weight_list=self.plan.weight_list,
            agreed_set=a.agreed_set,
            release_set=opened.release_set,
            sum_release=a.sum_release,
            go=self._tags.said(a.attempt).go,
        )
        end, found = RoundEnd.RELEASED, {"requester_norm": encoded.norm}
        if learns_from(owner.rule, self._announcement.purpose):
            found["variance"] = own_noise(owner, self._number).variance
        if not owner.has_taken(self._announcement):
            end = owner.retried(lambda: owner.take_release(past))
        if "variance" in found and end is RoundEnd.RELEASED:
            found["from_mean"] = kept_from_mean(owner, self._number)
        return replace(self.settled(end, a), past=past, measured=opened.measured.model_copy(update=found))
