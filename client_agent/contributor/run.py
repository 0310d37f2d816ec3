"""A contributor's part in one study: it follows what both servers show, and contributes when its policy allows.

Everything it believes is signed: the study by the requester and both operators, the announcement likewise at both
servers, the agreed set by both, the release set by the requester; the weight list and the model by digests in the
announcement (docs/protocol.md 3, 4, 9).
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from typing import Final

from client_agent.contributor.decisions import (
    Decision,
    Decisions,
    approved,
    refused_study,
    resumed,
    send_refusal,
    tell_hindrance,
)
from client_agent.learning.learner import Vector
from client_agent.net.exchange import pause_after
from client_agent.net.watch import Stopped, same_round
from client_agent.site.context import RELAY, SiteContext, drop_sum
from client_agent.site.events import EventKind, RoundEnd
from client_agent.site.failpoints import Point
from client_agent.site.journal import StudyJournal
from client_agent.site.letters import Welcome, require_same
from client_agent.study.isolation import note_welcomed, show_sum
from client_agent.study.mail import attest, fetched, require_attested
from client_agent.study.participant import RETRY_S, Participant
from client_agent.study.release import ShownEnds, shown_outcome
from client_agent.study.transcripts import keep_transcript
from host.audit_log import Action
from host.files import write_durably
from protocol.errors import (
    Clause,
    ConfigurationError,
    MoietyError,
    PolicyRefusal,
    RefusedMessage,
    RosterUnknown,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.messages import letter, paths
from protocol.messages.control import ReadyNotice, RoundState, RoundView, Signed, Study, StudyView, require_signatures
from protocol.messages.letter import LetterKind, Topic, most_bytes
from protocol.policy.clauses import check_first_model
from protocol.policy.memory import remember_skip
from protocol.protection.ckks import welcomed_seed
from protocol.rounds.evidence import PastRelease, check_release
from protocol.shared_model import initial_state, model_digest_of, model_part
from protocol.sharing import Side


def open_welcome(owner: Participant, version: int) -> Welcome:
    """The welcome to one model version. Raises: BrokenSeal, BadSignature, Unavailable"""
    context, requester = owner.context, owner.context.roster.requester
    signed = fetched(owner, Topic(LetterKind.WELCOME, version), requester, Signed[Welcome])
    welcome: Welcome = require_signatures(signed, context.roster, (requester,))
    require_same("study", welcome.study_digest, owner.study_digest)
    require_same("site", welcome.site, context.site)
    require_same("model version", str(welcome.model_version), str(version))
    return welcome


def missed_release(owner: Participant, welcome: Welcome) -> bool:
    """Return whether the welcome proves a release that this site had no part in, after all that it had a part in.

    A site that holds a model takes another only then: otherwise the requester could send the same model as a newer
    one, and all that the policy counts per model would start afresh.

    Requires: it is vouched for
    """
    past = welcome.previous
    newer = past is not None and past.announcement.round > owner.state.memory.last_accepted
    return past is not None and newer and owner.context.site not in past.agreed_set.message.sites


def vouched(owner: Participant, welcome: Welcome) -> bool:
    """Return whether enough contributors of the release that led to this model attest it; else name the problem.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation
    """
    past = welcome.previous
    if past is not None:
        check_release(past, owner.context.roster, owner.study_digest)
        stepped = past.announcement.purpose.plan.steps_model
        if not stepped or past.announcement.model_version != welcome.model_version - 1:
            past = None
    if past is None:
        owner.problem(None, f"model {welcome.model_version} came without the release that led to it: it is not taken")
        return False
    try:
        require_attested(owner, welcome, past)
    except PolicyRefusal as unattested:
        owner.problem(None, unattested.detail)
        return False
    return True


def first_checkpoint(owner: Participant, welcome: Welcome) -> Vector:
    """Version 0: derived here and compared with what the requester names, or the pretrained start that the study pins.

    Raises: PolicyRefusal when the requester names another one; BrokenSeal, Unavailable
    """
    pinned = owner.study.pretrained_digest
    if pinned is None:
        kept = owner.first_kept()
        check_first_model(welcome.checkpoint_digest, hashlib.sha256(kept.astype("<f4").tobytes()).hexdigest())
        return kept
    kept = open_checkpoint(owner, welcome)
    model = model_part(kept, owner.study.model_dimension)
    check_first_model(model_digest_of(model), pinned, "the study pins")
    return initial_state(model, owner.study.rule)


def open_checkpoint(owner: Participant, welcome: Welcome) -> Vector:
    """The model that a welcome names, with the server optimiser's moments behind it. Raises: BrokenSeal, Unavailable"""
    topic = str(Topic(LetterKind.CHECKPOINT, welcome.model_version))
    path = owner.journal.folder / "checkpoint.sealed"
    requester = owner.context.roster.requester
    most = most_bytes(LetterKind.CHECKPOINT, owner.study, len(owner.context.roster.sites))
    owner.context.clients[RELAY].fetch_mail(owner.study.name, topic, paths.EVERY_SITE, requester, path, most)
    sealed = path.read_bytes()
    path.unlink()
    return letter.open_checkpoint(sealed, bytes.fromhex(welcome.content_key), welcome.checkpoint_digest, owner.study)


_OPEN: Final = frozenset({RoundState.ANNOUNCED, RoundState.COLLECTING})
_OPENED: Final = {RoundState.RANKED: RoundEnd.RANKED, RoundState.CLOSED: RoundEnd.CLOSED}
_WITHOUT_SUM: Final = frozenset({RoundEnd.SKIPPED, *_OPENED.values()})
_VERSION: Final = re.compile(r"[0-9]{1,7}")
_IDLE_S: Final = 30.0


class Contributor(Participant):
    """Runs until the study ends or the agent stops."""

    WAITS_FOR_NEWS = True

    def __init__(self, context: SiteContext, signed_study: Signed[Study], journal: StudyJournal) -> None:
        super().__init__(context, signed_study, journal)
        self.decisions = Decisions(self, self._take_missed)
        self._refused_welcome = -1
        self._spent: str | None = None

    def run(self) -> None:
        """Raises: Stopped; ConfigurationError and other errors that end this site's part in the study"""
        if self.state.over:
            return
        refusal = refused_study(self)
        if refusal is not None:
            self._refuse(refusal)
            return
        if not (approved(self) and resumed(self)):
            return
        try:
            self.prepare()
        except ConfigurationError:
            tell_hindrance(self)
            raise
        self._say_ready()
        self.watch.start()
        try:
            while True:
                seen = self.watch.serial
                try:
                    if self.react():
                        return
                    pause_s = _IDLE_S
                except (Unavailable, UnknownResource) as later:
                    self.told_later(None, later)
                    pause_s = pause_after(later, RETRY_S)
                except ConfigurationError:
                    raise
                except RosterUnknown as unknown:
                    self._name_fork(unknown)
                    pause_s = _IDLE_S
                except MoietyError as refused:  # evidence that does not hold: nothing was changed; look again later
                    self.problem(None, refused.detail)
                    pause_s = _IDLE_S
                self.watch.wait(seen, pause_s)
        finally:
            self.watch.close()

    def _name_fork(self, unknown: RosterUnknown) -> None:
        """To this site's people: what is not known here, and where servers show another roster than the one here."""
        self.problem_once(None, unknown.detail)
        fork = self.context.held.fork_shown(self.context.clients)
        if fork:
            self.problem_once(None, fork)

    def _refuse(self, refusal: PolicyRefusal) -> None:
        try:
            self.retried(partial(send_refusal, self, refusal))
        except RefusedMessage as ended:  # or said before with other bytes: this site takes no part all the same
            self.problem(None, ended.detail)
        self.note(Action.STUDY_ENDED, f"refused by this site: {refusal.detail}")
        self.save(finished=f"refused: {refusal.detail}", refused=True)
        self.event(EventKind.FINISHED, None, f"refused: {refusal.detail}")

    def _say_ready(self) -> None:
        for remark in self.context.transfer_remarks(self.study):
            self.problem_once(None, remark)
        notice = ReadyNotice(study_digest=self.study_digest, site=self.context.site)
        waiting = set(Side)
        while waiting:
            pause_s = RETRY_S
            for side in tuple(waiting):
                try:
                    self.context.clients[side].ready(self.study.name, notice)
                    waiting.discard(side)
                except WrongRound as ended:  # its last release may still have to be fetched
                    self.problem(None, ended.detail)
                    waiting.discard(side)
                except (Unavailable, UnknownResource) as later:
                    self.problem(None, later.detail)
                    pause_s = max(pause_s, pause_after(later, RETRY_S))
                except RefusedMessage as refused:
                    self.problem(None, refused.detail)
                    pause_s = _IDLE_S
            if waiting and self.context.pause(pause_s):
                raise Stopped

    def react(self) -> bool:
        """One look at both views; True when this site's part is over."""
        views = self.watch.both()
        if views is None:
            return False
        self.follow_roster(views)
        try:
            self.take_welcome(views[0])
        except PolicyRefusal as crafted:  # no model that this site derives: it has no part in what comes of it
            self._refuse(crafted)
            return True
        rounds = same_round(views)
        if rounds is not None:
            self.follow(*rounds)
        if self._spent is not None:
            self.finish(self._spent, None)
            self.save(refused=True)
            return True
        shown = self.ends(views)
        end = shown.first
        if end is None or self._release_pending(views, shown):
            return False
        text = f"{end.message.state.value}: {end.message.reason}"
        self.finish(text, end)
        return True

    def _release_pending(self, views: tuple[StudyView, StudyView], shown: ShownEnds) -> bool:
        """A released round that this site still has to apply; the view of a server that was away may be an old one."""
        released = [view for view in views if self._is_news(view.current)]
        return len(released) == len(views) or (bool(released) and None in shown.ends)

    def _is_news(self, current: RoundView | None) -> bool:
        if current is None or current.state is not RoundState.RELEASED or self.state.model_version is None:
            return False
        listed = self.context.site in current.announcement.message.listed
        return listed and current.round > self.state.last_recorded_round

    # --- the welcome ---

    def take_welcome(self, view: StudyView) -> None:
        """The newest welcome beyond our model: the sites' key and the model itself, once the site may take it."""
        requester = self.context.roster.requester
        prefix, suffix = f"{LetterKind.WELCOME.value}-", f"/{requester}"
        topics = [entry for entry in view.mail if entry.startswith(prefix) and entry.endswith(suffix)]
        numbers = [entry[len(prefix) : -len(suffix)] for entry in topics]
        versions = [int(number) for number in numbers if _VERSION.fullmatch(number)]
        version = max(versions, default=-1)
        own = self.state.model_version
        if version <= max(self._refused_welcome, -1 if own is None else own):
            return
        welcome = open_welcome(self, version)
        if version > 0 and not vouched(self, welcome):
            self._refused_welcome = version
            return
        if own is not None and not missed_release(self, welcome):
            self._refused_welcome = version
            self.problem(None, f"model {version} came without a release that this site missed; model {own} is kept")
            return
        if welcome.previous is not None:
            note_welcomed(self, welcome.previous)
        vector = first_checkpoint(self, welcome) if version == 0 else open_checkpoint(self, welcome)
        brought, known = (welcome.ckks_key_seed, welcome.ckks_key_id), self.state.ckks_key_seed
        seed = welcomed_seed(self.study, self.study_digest, *brought, known)
        self.adopt_model(vector, version, site_key=welcome.site_key, ckks_key_seed=seed)
        self.event(EventKind.STUDY, None, f"welcomed with model {version}")

    # --- a round ---

    def follow(self, a: RoundView, b: RoundView) -> None:
        """Decide on the round that both views show, carry the decision out, and settle the round once it has ended."""
        if a.round <= self.state.last_recorded_round:
            return
        decision = self.decisions.decide(a, b)
        if not decision.listed:
            return
        if decision.clause is Clause.BUDGET_SPENT:
            self._spent = decision.reason  # it begins with the clause
            return
        both_open = a.state in _OPEN and b.state in _OPEN and a.attempt == b.attempt
        if decision.accepted and both_open:
            decision = self.carry_out(decision, a.attempt)
        if a.state is RoundState.RELEASED and b.state is RoundState.RELEASED:
            self._finish(decision, a, b)
        elif a.state is RoundState.SKIPPED and b.state is RoundState.SKIPPED:
            reason = self._settle_skip(a, b)
            keep_transcript(self, (a, b))
            self._record(decision, RoundEnd.SKIPPED, a.attempt, reason)
        elif a.state is b.state and a.state in _OPENED:
            self._settle_opened(a, b)
            keep_transcript(self, (a, b))
            self._record(decision, _OPENED[a.state], a.attempt, decision.reason)

    def _settle_skip(self, a: RoundView, b: RoundView) -> str:
        """Remember a skip that both servers signed; its reason. Raises: UnknownResource until one of them shows it"""
        skip = shown_outcome(a, b, self.context.roster, self.study_digest)
        if skip is None:
            raise UnknownResource(f"round {a.round}: no server shows the skip with both signatures yet")
        drop_sum(self.context, self.study_digest, a.round)
        self.save(memory=remember_skip(self.state.memory, a.round))
        return skip.message.reason

    def _settle_opened(self, a: RoundView, b: RoundView) -> None:
        if shown_outcome(a, b, self.context.roster, self.study_digest, a.state) is None:
            raise UnknownResource(f"round {a.round}: no server shows that it is {a.state} with both signatures yet")

    def carry_out(self, decision: Decision, attempt: int) -> Decision:
        """Contribute, if it was accepted. -> the decision, a decline where nothing could be contributed"""
        announcement = decision.announcement
        done = self.journal.attempt_folder(announcement.round, attempt) / "done"
        if done.exists() or decision.weight_list is None:
            return decision
        numerator = decision.weight_list.numerator_of(self.context.site)
        try:
            self.decisions.check_stays()
            self.encode(announcement, numerator or 0)
            self.contribute(announcement, attempt, decision.weight_list)
        except Unavailable:
            raise
        except RefusedMessage as refused:  # late, or the servers' view moved on: the round goes on without this site
            self.problem(announcement.round, refused.detail)
        except MoietyError as error:
            return self.decisions.decline(announcement, decision.weight_list, error)
        else:
            self.event(EventKind.PHASE, announcement.round, "contributed")
        self.journal.reach(Point.BEFORE_DONE_JOURNALLED)
        write_durably(done, b"")
        self.journal.reach(Point.AFTER_DONE_JOURNALLED)
        return decision

    def _finish(self, decision: Decision, view: RoundView, other: RoundView) -> None:
        """The round was released: apply the average if this site's model is the announced one."""
        announcement, version = decision.announcement, self.state.model_version
        ahead = int(announcement.purpose.plan.steps_model)
        applied_before_a_crash = self.has_taken(announcement) and version == announcement.model_version + ahead
        past = shown_release(decision, view, other)
        if decision.weight_list is None or not (version == announcement.model_version or applied_before_a_crash):
            if past is not None:
                self._settle_unseen(past, other)
            self._record(decision, RoundEnd.DECLINED, view.attempt, decision.reason)
            return
        if past is None:
            raise UnknownResource(f"round {view.round}: the server shows a release without its evidence")
        end = RoundEnd.RELEASED if applied_before_a_crash else self.take_release(past)
        if end is RoundEnd.RELEASED:
            attest(self, past)
        keep_transcript(self, (view, other), past)
        self._record(decision, end, view.attempt, decision.reason, past)

    def _settle_unseen(self, past: PastRelease, other: RoundView) -> None:
        """The sum of a round that this site takes no average of is remembered as what it was, if that is proven.

        The requester may sign several release sets; only what both servers show is the one that was summed.
        """
        number = past.announcement.round
        if other.release_set is None or other.release_set.message != past.release_set.message:
            self.problem(number, f"round {number}: the servers show different release sets; none is believed")
            return
        try:
            show_sum(self, past)
        except MoietyError as unproven:
            self.problem(number, unproven.detail)

    def _take_missed(self, past: PastRelease, decision: Decision) -> None:
        """A release whose end this site did not see: the evidence came with the next weight list."""
        end = self.take_release(past)
        if end is RoundEnd.RELEASED:
            attest(self, past)
        self._record(decision, end, past.release_set.message.attempt, "", past)

    def _record(
        self, decision: Decision, end: RoundEnd, attempt: int, reason: str, past: PastRelease | None = None
    ) -> None:
        announcement = decision.announcement
        release = None if past is None else past.release_set.message
        encoded = self.journal.round_folder(announcement.round) / "encoded.json"
        self.record(
            self.round_record(
                announcement.round,
                end if decision.accepted or end not in _WITHOUT_SUM else RoundEnd.DECLINED,
                attempt=attempt,
                reason=reason,
                purpose=announcement.purpose,
                weights=() if decision.weight_list is None else decision.weight_list.weights,
                grid=self.study.parameters.weight_grid,
                requester_numerator=None if decision.weight_list is None else decision.weight_list.requester,
                own_weight=self.weight_in(announcement) if decision.accepted else None,
                isolation=decision.isolation,
                took_part=() if release is None else release.sites,
                failed_check=() if release is None else release.failed_check,
                clipped=self.encode(announcement, 0).clipped if encoded.exists() else None,
            )
        )


def shown_release(decision: Decision, view: RoundView, other: RoundView) -> PastRelease | None:
    """The evidence of a released round; None where a piece of it is missing."""
    if decision.weight_list is None or view.agreed_set is None or view.release_set is None:
        return None
    return PastRelease(
        announcement=decision.announcement,
        weight_list=decision.weight_list,
        agreed_set=view.agreed_set,
        release_set=view.release_set,
        sum_release=view.sum_release,
        go=view.go or other.go,
    )
