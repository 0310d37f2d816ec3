"""A contributor's decisions: to begin a study, and to take part in an announced round; each taken once and journalled.

A study is begun by the site's policy and budget, and by its people's word. A site whose policy forbids what a study
opens, or CKKS, says so before the first round (docs/protocol.md 9): the requester starts no study that a site refuses.
A site whose people declined or paused the study, or must mend something, says so too; that letter is moot as soon as
the site says that it is ready.

A site takes part in a round by its evidence, model and policy. One that does not tells the requester why, signed and
sealed to it (docs/protocol.md 4, 9).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import partial
from typing import Final

from client_agent.net.quiet_hours import LARGE_TRANSFER_BYTES
from client_agent.net.watch import Stopped
from client_agent.site.context import agree_to_cohort, drop_sum, reconcile
from client_agent.site.events import EventKind
from client_agent.site.failpoints import Point
from client_agent.site.letters import CountedClasses, Hindrance, StudyRefusal, WeightMail
from client_agent.site.notifications import Notice
from client_agent.study.approval import allowed_by_policy, approval_of
from client_agent.study.contribution import contribution_bytes
from client_agent.study.isolation import agree_to_sum, colluders, note_sum, show_sum
from client_agent.study.mail import fetched, notice, tell_requester
from client_agent.study.participant import Participant
from client_agent.study.privacy_spending import require_room_for
from client_agent.study.release import require_outcome
from host.audit_log import Action
from host.frozen import Frozen
from protocol.errors import (
    AnnouncementMismatch,
    Clause,
    ConfigurationError,
    ErrorCode,
    ModelDiverged,
    MoietyError,
    OutputGone,
    PolicyRefusal,
    RefusedMessage,
    RosterUnknown,
    Unavailable,
    UnknownResource,
    UnusableUpdate,
)
from protocol.messages.control import (
    Announcement,
    Decline,
    RoundState,
    RoundView,
    Signed,
    WeightList,
    require_signatures,
)
from protocol.messages.letter import LetterKind, Topic, told
from protocol.policy.clauses import Terms, check_altered_sums, check_discarded_sums, check_weight_list
from protocol.policy.memory import remember_contribution, remember_skip
from protocol.policy.site_policy import check_study_allowed
from protocol.protection.ckks import check_key
from protocol.rounds.agreement import model_digest
from protocol.rounds.evidence import PastRelease
from protocol.rules.registry import rule_for
from protocol.sharing import Side
from protocol.tags import require_seed
from protocol.text import printable


class Decision(Frozen):
    """This site's decision about an announced round, before any share was made."""

    announcement: Announcement
    weight_list: WeightList | None = None
    accepted: bool
    listed: bool = True
    code: ErrorCode | None = None
    clause: Clause | None = None
    reason: str = ""
    isolation: float | None = None


class Decisions:
    """One site's decisions in one study. ``catch_up`` applies a release that the site did not see itself."""

    def __init__(self, owner: Participant, catch_up: Callable[[PastRelease, Decision], None]) -> None:
        self._owner = owner
        self._context = owner.context
        self._apply_missed = catch_up

    def decide(self, a: RoundView, b: RoundView) -> Decision:
        """This site's decision about the announced round; taken once.

        Raises: Unavailable, UnknownResource; BadSignature, AnnouncementMismatch, when this site is not listed in
                something that was not announced at both servers
        """
        owner = self._owner
        path = owner.journal.round_folder(a.round) / "decision.json"
        known = owner.journal.read(path, Decision)
        if known is not None:
            return known
        announcement = a.announcement.message
        if self._context.site not in announcement.listed:
            self._check_announced(a, b)  # one server's word keeps no site out of a round without a word
            return self._not_listed(announcement)
        weight_list: WeightList | None = None
        try:
            self._check_announced(a, b)
            owner.saw(announcement)
            self._check_takes_part(announcement)
            mail = self._weight_mail(announcement)
            weight_list = mail.weight_list
            isolation = self._check_mail(announcement, mail)
        except (Unavailable, UnknownResource, RosterUnknown):
            raise
        except MoietyError as error:
            return self.decline(announcement, weight_list, error)
        owner.save(memory=remember_contribution(owner.state.memory, announcement, weight_list))
        decision = Decision(announcement=announcement, weight_list=weight_list, accepted=True, isolation=isolation)
        owner.journal.write(path, decision, (Point.BEFORE_DECISION_JOURNALLED, Point.AFTER_DECISION_JOURNALLED))
        return decision

    def _check_mail(self, announcement: Announcement, mail: WeightMail) -> float | None:
        """All after the letter. -> the least isolation, see ``_check_isolation``; raises the first wrong thing"""
        owner, weight_list = self._owner, mail.weight_list
        if announcement.purpose.plan.steps_model:
            reconcile(self._context)  # before the requester's word on earlier sums fills what an old memory lacks
        self._catch_up(mail)
        self._check_purpose(announcement)
        self._check_tags(announcement, weight_list)
        check_key(announcement, owner.study, owner.ckks_key())
        check_discarded_sums(announcement, owner.state.discarded)
        self._check_model(announcement)
        self._check_policy(announcement, weight_list)
        return self._check_isolation(announcement, weight_list)

    def _not_listed(self, announcement: Announcement) -> Decision:
        decision = Decision(announcement=announcement, accepted=False, listed=False)
        journal = self._owner.journal
        journal.write(journal.round_folder(announcement.round) / "decision.json", decision)
        return decision

    def decline(self, announcement: Announcement, weight_list: WeightList | None, error: MoietyError) -> Decision:
        """Tell the requester, sealed, why this site does not contribute; the same letter after a restart.

        The decision keeps the whole reason; the letter leaves out what only this site may know.
        """
        owner, context = self._owner, self._context
        clause = error.clause if isinstance(error, PolicyRefusal) else None
        folder = owner.journal.round_folder(announcement.round)

        def write() -> Decline:
            return Decline(
                study_digest=owner.study_digest,
                round=announcement.round,
                site=context.site,
                code=error.code,
                clause=clause,
                reason=told(self._told(announcement, error)),
            )

        topic = Topic(LetterKind.DECLINE, announcement.round)
        body = notice(owner, folder / "decline.sealed", topic, write)
        for side in Side:  # each server closes the round by the letters that it holds itself
            try:
                context.clients[side].put_mail(owner.study.name, str(topic), context.roster.requester, body)
            except RefusedMessage as refused:  # too late, or came with other bytes: this site declines all the same
                owner.problem(announcement.round, refused.detail)
        decision = Decision(
            announcement=announcement,
            weight_list=weight_list,
            accepted=False,
            code=error.code,
            clause=clause,
            reason=error.detail,
        )
        owner.journal.write(folder / "decision.json", decision)
        said = error.detail if clause is not None else f"{error.code.value}: {error.detail}"
        owner.event(EventKind.DECLINED, announcement.round, said)
        return decision

    def _told(self, announcement: Announcement, error: MoietyError) -> str:
        """The reason as the requester reads it: nothing of a weight, counts or model that the site keeps to itself."""
        if announcement.purpose.plan.unusable and isinstance(error, UnusableUpdate):
            return announcement.purpose.plan.unusable
        if self._owner.study.rule.name.self_weighted and isinstance(error, UnusableUpdate):
            return "what this site would share cannot be encoded; the numbers stay at this site"
        if isinstance(error, ConfigurationError):  # it quotes this machine's paths, and what a plug-in raised
            return "this site's files or settings keep it from this round; its own log says which"
        return error.told if isinstance(error, PolicyRefusal) else error.detail

    # --- the evidence ---

    def _check_announced(self, a: RoundView, b: RoundView) -> None:
        roster = self._context.roster
        at_a = require_signatures(a.announcement, roster, (roster.requester, roster.operator_a.name))
        at_b = require_signatures(b.announcement, roster, (roster.requester, roster.operator_b.name))
        if at_a != at_b:
            raise AnnouncementMismatch(f"round {a.round}: the two servers show different announcements")
        if at_a.study_digest != self._owner.study_digest or at_a.round != a.round:
            raise AnnouncementMismatch(f"round {a.round}: the announcement is for another study or round")
        self._context.held.of(at_a)
        if not at_a.purpose.plan.steps_model:
            self._context.sums.rule_out((at_a.study_digest, at_a.round))

    def _check_takes_part(self, announcement: Announcement) -> None:
        self.check_stays()
        self._check_own_keys(announcement)
        self._check_quiet(announcement)

    def _check_own_keys(self, announcement: Announcement) -> None:
        """Raises: PolicyRefusal, clause ``keys_renewed``: the letters of this round can be opened no more"""
        now, then = (
            roster.party(self._context.site) for roster in (self._context.roster, self._context.held.of(announcement))
        )
        if now is not None and then is not None and now.sealing_key != then.sealing_key:
            raise PolicyRefusal(
                Clause.KEYS_RENEWED,
                "this site has other keys than when the round was announced; it takes part from the next one on",
            )

    def _check_quiet(self, announcement: Announcement) -> None:
        """Raises: PolicyRefusal, clause ``quiet_hours``, where none could be sent before the round closes"""
        context, study = self._context, self._owner.study
        now_s = context.clock.now()
        if announcement.purpose.plan.model_sized and contribution_bytes(study) > LARGE_TRANSFER_BYTES:
            until_s = now_s + context.quiet.remaining_s(now_s)
            if until_s > now_s and until_s >= announcement.closes_at_s:
                raise PolicyRefusal(
                    Clause.QUIET_HOURS, f"this site's quiet hours last until {context.quiet.said(until_s)}"
                )

    def _weight_mail(self, announcement: Announcement) -> WeightMail:
        topic = Topic(LetterKind.WEIGHTS, announcement.round)
        mail = fetched(self._owner, topic, self._context.roster.requester, WeightMail)
        if mail.weight_list.digest() != announcement.weight_list_digest:
            raise AnnouncementMismatch(
                f"round {announcement.round}: the weight list is not the announced one; nothing is contributed"
            )
        return mail

    def _catch_up(self, mail: WeightMail) -> None:
        """Learn the ends of rounds that this site missed; the evidence is checked like any other."""
        owner = self._owner
        self._catch_up_releases(mail)
        for skip in mail.skipped:
            number, memory = skip.message.round, owner.state.memory
            name = owner.study_digest, number
            unknown = not self._context.sums.accounted(name) or name in self._context.cohorts.rounds()
            if unknown or number in (memory.unsettled, memory.ranked, memory.apart):
                require_outcome(skip, self._context.roster, owner.study_digest, number, RoundState.SKIPPED)
                drop_sum(owner.context, owner.study_digest, number)
                owner.save(memory=remember_skip(memory, number))
        if mail.counted is not None:
            self._take_counted(mail.counted)

    def _take_counted(self, signed: Signed[CountedClasses]) -> None:
        """The class counts' sum on the requester's word, where this site missed their round; else it must be the same.

        A requester that lies to a site about it moves that site's weight within the bounds that its policy takes
        every other weight to have, no more.
        """
        owner, requester = self._owner, self._context.roster.requester
        counted: CountedClasses = require_signatures(signed, self._context.roster, (requester,))
        if counted.study_digest != owner.study_digest or len(counted.totals) != owner.study.model.classes:
            raise AnnouncementMismatch("the class counts that came with the weights are of another study")
        if owner.state.counted is None:
            owner.save(counted=counted)
        elif owner.state.counted != counted:
            raise ModelDiverged(
                f"this site opened class counts of round {owner.state.counted.round}, the requester names those of "
                f"round {counted.round} or other numbers; one of them was served something else"
            )

    def _catch_up_releases(self, mail: WeightMail) -> None:
        """Open and apply the sums that this site missed, one after the other, with every check of any other round.

        The servers seal them to whomever the present round lists, as long as they keep them; what is gone leaves the
        site behind, and it needs a checkpoint.
        """
        missed = mail.missed if mail.previous is None else (*mail.missed, mail.previous)
        try:
            for past in missed:
                if self._applies_next(past.announcement):
                    took_part = self._context.site in past.agreed_set.message.sites
                    decision = Decision(
                        announcement=past.announcement, weight_list=past.weight_list, accepted=took_part
                    )
                    self._apply_missed(past, decision)
                    show_sum(self._owner, past)  # both servers' outputs named its release set
        except OutputGone as gone:
            self._owner.problem(mail.weight_list.round, gone.detail)
        for past in missed:
            note_sum(self._owner, past)

    def _applies_next(self, past: Announcement) -> bool:
        """Return whether a release is against this site's model and not yet opened; class counts only if listed."""
        state = self._owner.state
        if past.model_version != state.model_version:
            return False
        if past.purpose.plan.steps_model:
            return past.round > state.opened_round
        return past.round > state.last_recorded_round and self._context.site in past.listed

    # --- model and policy ---

    def check_stays(self) -> None:
        """Raises: PolicyRefusal once a person has taken this site out of the study, or paused it here"""
        journal = self._owner.journal
        for reason, clause, what in (
            (journal.left, Clause.LEFT, "this site has left the study"),
            (journal.paused, Clause.PAUSED, "this site is paused by its people"),
        ):
            if reason is not None:
                raise PolicyRefusal(clause, f"{what}{': ' if reason else ''}{printable(reason)}")

    def _check_purpose(self, announcement: Announcement) -> None:
        """Require a purpose that the study has, and no more updates than it has rounds."""
        study, round_number, plan = self._owner.study, announcement.round, announcement.purpose.plan
        if not study.last_round(announcement.purpose):
            raise AnnouncementMismatch(f"round {round_number} {plan.does}, which this study does not")
        number = self._owner.update_number(round_number, announcement.model_version) if plan.steps_model else 0
        if number > study.rounds:
            raise AnnouncementMismatch(f"round {round_number} is update {number} of a study with {study.rounds} rounds")

    def _check_tags(self, announcement: Announcement, weight_list: WeightList) -> None:
        """Tags where the study has them, by the announced seed, and no earlier sum whose tags were wrong."""
        owner, tagged = self._owner, self._owner.study.tagged(announcement.purpose)
        if announcement.tagged is not tagged:
            raise AnnouncementMismatch(
                f"round {announcement.round} is announced {'with' if announcement.tagged else 'without'} tags, the "
                f"study has {'them' if tagged else 'none'} in rounds of this purpose; nothing is contributed"
            )
        require_seed(announcement, weight_list.tag_seed)
        check_altered_sums(announcement, owner.state.altered)

    def _check_model(self, announcement: Announcement) -> None:
        owner = self._owner
        version = owner.state.model_version
        if version != announcement.model_version:
            raise PolicyRefusal(
                Clause.MODEL_BEHIND,
                f"round {announcement.round} is for model {announcement.model_version}, this site has {version}; "
                "it needs the requester's checkpoint",
            )
        key = bytes.fromhex(owner.state.site_key or "")
        own = model_digest(key, owner.study_digest, announcement.round, owner.kept_octets())
        if not hmac.compare_digest(own, announcement.model_digest):
            raise ModelDiverged(
                f"round {announcement.round}: this site's model {version} is not the requester's; "
                "one of them was served something else"
            )

    def _check_isolation(self, announcement: Announcement, weight_list: WeightList) -> float | None:
        """Last, because it trains. -> the least isolation with this round's sum; None where no updates are summed"""
        if announcement.purpose.plan.of_data:
            questions = self._owner.questions(announcement.purpose)
            agree_to_cohort(self._context, announcement, colluders(self._owner), questions)
        if not announcement.purpose.plan.steps_model:
            return None
        return agree_to_sum(self._owner, announcement, weight_list).least

    def _check_policy(self, announcement: Announcement, weight_list: WeightList) -> None:
        study, context = self._owner.study, self._context
        rule = rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
        contributors = tuple(party.name for party in context.held.of(announcement).contributors)
        terms = Terms(study.parameters, contributors, rule, context.policy)
        own_weight = self._owner.weight_in(announcement)
        check_weight_list(context.site, announcement, weight_list, terms, self._owner.state.memory, own_weight)


_ASK_AGAIN_S: Final = 1.0


def refused_study(owner: Participant) -> PolicyRefusal | None:
    """Why this site's policy forbids the study, or its privacy budget does not hold it; None where neither does.

    Raises: ConfigurationError, where data that a budget is asked about do not fit
    """
    context = owner.context
    try:
        check_study_allowed(owner.study, context.policy)
        if owner.study.privacy is not None:
            require_room_for(owner.study, owner.learner.sample_count(), context.budget, context.policy)
    except PolicyRefusal as refusal:
        return refusal
    return None


def send_refusal(owner: Participant, refusal: PolicyRefusal) -> None:
    """Tell the requester that this site takes no part. Raises: Unavailable; what the server refuses with"""

    def write() -> StudyRefusal:
        return StudyRefusal(
            study_digest=owner.study_digest,
            site=owner.context.site,
            code=refusal.code,
            clause=refusal.clause,
            reason=told(refusal.told),
        )

    tell_requester(owner, owner.journal.folder / "refusal.sealed", Topic(LetterKind.REFUSAL), write)


def approved(owner: Participant) -> bool:
    """Wait for a person's word where this site asks for one; a no ends this site's part. Raises: Stopped"""
    word = approval_of(owner.journal, owner.study_digest)
    if word is None and owner.context.asks_people and owner.journal.left is None:
        name = owner.study.name
        owner.event(EventKind.STUDY, None, f"waits for a person: moiety agent show {name}, approve {name}")
        _tell_people(owner)
    while word is None and owner.context.asks_people:
        if not _waited(owner):
            return False
        word = approval_of(owner.journal, owner.study_digest)
    if word is not None and not word.approved:
        return _declined(owner, f"declined by {printable(word.person)}: {printable(word.reason)}")
    if word is None:
        allowed_by_policy(owner.journal, owner.context.policy, partial(owner.note, Action.APPROVED))
    return True


def resumed(owner: Participant) -> bool:
    """Wait while a person has paused this site, before it says that it is ready. Raises: Stopped

    A site that is welcome is awaited in every round, and declines each while it is paused.
    """
    if owner.journal.paused is None or owner.state.model_version is not None:
        return True
    owner.event(EventKind.STUDY, None, f"paused by a person here: moiety agent resume {owner.study.name}")
    tell_hindrance(owner, paused=True)
    while owner.journal.paused is not None:
        if not _waited(owner):
            return False
    return True


def _waited(owner: Participant) -> bool:
    """Wait a little for a person; False where one took this site out of the study. Raises: Stopped"""
    if owner.journal.left is not None:
        return _declined(owner, "a person took this site out of the study")
    if owner.context.pause(_ASK_AGAIN_S):
        raise Stopped
    return True


def tell_hindrance(owner: Participant, *, declined: bool = False, paused: bool = False) -> None:
    """``declined``: its people take no part in the study; ``paused``: for now; else they must mend something.

    Once; whether it arrives or not, this site's own log has the reason.
    """

    def write() -> Hindrance:
        since_s, site = int(owner.context.clock.now()), owner.context.site
        digest = owner.study_digest
        return Hindrance(study_digest=digest, site=site, since_s=since_s, declined=declined, paused=paused)

    try:
        tell_requester(owner, owner.journal.folder / "hindered.sealed", Topic(LetterKind.HINDERED), write)
    except MoietyError as later:
        owner.problem(None, f"the requester was not told that this site cannot begin: {later.detail}")


def _declined(owner: Participant, why: str) -> bool:
    tell_hindrance(owner, declined=True)
    owner.note(Action.STUDY_ENDED, why)
    owner.save(finished=why, refused=True)
    owner.event(EventKind.FINISHED, None, why)
    return False


def _tell_people(owner: Participant) -> None:
    context = owner.context
    context.tell_people(
        Notice(
            site=context.site,
            federation=context.roster.federation,
            study=owner.study.name,
            study_digest=owner.study_digest,
            since_s=int(context.clock.now()),
        )
    )
