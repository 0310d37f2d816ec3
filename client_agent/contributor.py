"""A contributor's part in one study: it follows what both servers show, and contributes when its policy allows.

Everything it believes is signed: the study by the requester and both operators, the announcement likewise at both
servers, the agreed set by both, the release set by the requester; the weight list and the model by digests in the
announcement (docs/protocol.md 3, 4, 9).
"""

from __future__ import annotations

import hmac
from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.durable import write_durably
from client_agent.events import EventKind, RoundEnd, RoundRecord
from client_agent.failpoints import Point
from client_agent.mail import MODEL_BEHIND, OUTCOME_UNKNOWN, PastRelease, WeightMail, open_letter, seal_letter
from client_agent.participant import RELAY, Participant
from client_agent.server_client import Body
from client_agent.skips import require_skip, shown_skip
from client_agent.watch import Stopped, same_round
from client_agent.welcome import missed_release, open_checkpoint, open_welcome
from protocol.errors import (
    AnnouncementMismatch,
    ConfigurationError,
    ModelDiverged,
    MoietyError,
    RefusedMessage,
    Unavailable,
    UnknownResource,
)
from protocol.lock import model_digest
from protocol.policy import OutcomeUnknown, check_weight_list, remember_contribution, remember_skip
from protocol.rules.registry import rule_for
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import require_signatures, sign
from protocol.wire.messages import (
    Announcement,
    Decline,
    ReadyNotice,
    RoundState,
    RoundView,
    StudyView,
    WeightList,
)

_OPEN: Final = frozenset({RoundState.ANNOUNCED, RoundState.COLLECTING})
_IDLE_S: Final = 30.0
_RETRY_S: Final = 0.5
_REASON_CHARACTERS: Final = 2000
NOT_LISTED = "not_listed"


class Decision(BaseModel):
    """What this site decided about an announced round, before any share was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    announcement: Announcement
    weight_list: WeightList | None = None
    accepted: bool
    code: str = ""
    reason: str = ""


class Contributor(Participant):
    """Runs until the study ends or the agent stops."""

    _refused_welcome: int = -1

    def run(self) -> None:
        """Raises: Stopped; ConfigurationError and other errors that end this site's part in the study"""
        if self.state.finished is not None:
            return
        self.prepare()
        self._say_ready()
        self.watch.start()
        try:
            while True:
                seen = self.watch.serial
                try:
                    if self._react():
                        return
                    pause_s = _IDLE_S
                except (Unavailable, UnknownResource) as later:
                    self.problem(None, later.detail)
                    pause_s = _RETRY_S
                except ConfigurationError:
                    raise
                except MoietyError as refused:  # evidence that does not hold: nothing was changed; look again later
                    self.problem(None, refused.detail)
                    pause_s = _IDLE_S
                self.watch.wait(seen, pause_s)
        finally:
            self.watch.close()

    def _say_ready(self) -> None:
        notice = ReadyNotice(study_digest=self.study_digest, site=self.context.site)
        waiting = set(Side)
        while waiting:
            for side in tuple(waiting):
                try:
                    self.context.clients[side].ready(self.study.name, notice)
                    waiting.discard(side)
                except (Unavailable, UnknownResource) as later:
                    self.problem(None, later.detail)
                except RefusedMessage as refused:
                    # an ended study takes no notice, but its last release may still have to be fetched
                    self.problem(None, refused.detail)
                    waiting.discard(side)
            if waiting and self.context.stop.wait(_RETRY_S):
                raise Stopped

    def _react(self) -> bool:
        """One look at both views; True when this site's part is over."""
        views = self.watch.both()
        if views is None:
            return False
        self._take_welcome(views[0])
        rounds = same_round(views)
        if rounds is not None and self.state.model_version is not None:
            self._follow(*rounds)
        ended = next((view for view in views if view.state.ended), None)
        if ended is None or self._release_pending(views):
            return False
        self.save(finished=f"{ended.state.value}: {ended.reason}")
        self.event(EventKind.FINISHED, None, f"{ended.state.value}: {ended.reason}")
        return True

    def _release_pending(self, views: tuple[StudyView, StudyView]) -> bool:
        """A released round that this site still has to apply; the view of a server that was away may be an old one."""
        released = [view for view in views if self._is_news(view.current)]
        return len(released) == len(views) or (bool(released) and not all(view.state.ended for view in views))

    def _is_news(self, current: RoundView | None) -> bool:
        if current is None or current.state is not RoundState.RELEASED or self.state.model_version is None:
            return False
        listed = self.context.site in current.announcement.message.listed
        return listed and current.round > self.state.last_recorded_round

    # --- the welcome ---

    def _take_welcome(self, view: StudyView) -> None:
        """The newest welcome beyond our model: the sites' key and the model itself, once the site may take it."""
        requester = self.context.roster.requester
        prefix, suffix = paths.fill(paths.WELCOME_TOPIC, version=""), f"/{requester}"
        versions = [
            int(entry[len(prefix) : -len(suffix)])
            for entry in view.mail
            if entry.startswith(prefix) and entry.endswith(suffix) and entry[len(prefix) : -len(suffix)].isdigit()
        ]
        version = max(versions, default=-1)
        own = self.state.model_version
        if version <= max(self._refused_welcome, -1 if own is None else own):
            return
        welcome = open_welcome(self, version)
        if own is not None and not missed_release(self, welcome):
            self._refused_welcome = version
            self.problem(None, f"model {version} came without a release that this site missed; model {own} is kept")
            return
        vector = open_checkpoint(self, welcome)
        self.adopt_model(vector, version, site_key=welcome.site_key)
        self.event(EventKind.STUDY, None, f"welcomed with model {version}")

    # --- a round ---

    def _follow(self, a: RoundView, b: RoundView) -> None:
        if a.round <= self.state.last_recorded_round:
            return
        decision = self._decision(a, b)
        if decision.code == NOT_LISTED:
            return
        both_open = a.state in _OPEN and b.state in _OPEN and a.attempt == b.attempt
        if decision.accepted and both_open:
            decision = self._contribute(decision, a.attempt)
        if a.state is RoundState.RELEASED and b.state is RoundState.RELEASED:
            self._finish(decision, a)
        elif a.state is RoundState.SKIPPED and b.state is RoundState.SKIPPED:
            self._record(decision, RoundEnd.SKIPPED, a.attempt, self._settle_skip(a, b))

    def _settle_skip(self, a: RoundView, b: RoundView) -> str:
        """Remember a skip that both servers signed; its reason. Raises: UnknownResource until one of them shows it"""
        skip = shown_skip(a, b, self.context.roster, self.study_digest)
        if skip is None:
            raise UnknownResource(f"round {a.round}: no server shows the skip with both signatures yet")
        self.save(memory=remember_skip(self.state.memory, a.round))
        return skip.message.reason

    def _decision(self, a: RoundView, b: RoundView) -> Decision:
        """This site's decision about the announced round; taken once."""
        path = self.journal.round_folder(a.round) / "decision.json"
        known = self.journal.read(path, Decision)
        if known is not None:
            return known
        announcement = a.announcement.message
        if self.context.site not in announcement.listed:
            decision = Decision(announcement=announcement, accepted=False, code=NOT_LISTED)
            self.journal.write(path, decision)
            return decision
        weight_list: WeightList | None = None
        try:
            self._check_announced(a, b)
            mail = self._weight_mail(announcement)
            weight_list = mail.weight_list
            self._catch_up(mail)
            self._check_model(announcement)
            self._check_policy(announcement, weight_list)
        except (Unavailable, UnknownResource):
            raise
        except MoietyError as error:
            return self._decline(announcement, weight_list, error)
        self.save(memory=remember_contribution(self.state.memory, announcement, weight_list))
        decision = Decision(announcement=announcement, weight_list=weight_list, accepted=True)
        self.journal.reach(Point.BEFORE_DECISION_JOURNALLED)
        self.journal.write(path, decision)
        self.journal.reach(Point.AFTER_DECISION_JOURNALLED)
        return decision

    def _check_announced(self, a: RoundView, b: RoundView) -> None:
        """Both servers countersigned one and the same announcement of the requester."""
        roster = self.context.roster
        at_a = require_signatures(a.announcement, roster, (roster.requester, roster.operator_a.name))
        at_b = require_signatures(b.announcement, roster, (roster.requester, roster.operator_b.name))
        if at_a != at_b:
            raise AnnouncementMismatch(f"round {a.round}: the two servers show different announcements")
        if at_a.study_digest != self.study_digest or at_a.round != a.round:
            raise AnnouncementMismatch(f"round {a.round}: the announcement is for another study or round")

    def _weight_mail(self, announcement: Announcement) -> WeightMail:
        context, requester = self.context, self.context.roster.requester
        topic = paths.fill(paths.WEIGHTS_TOPIC, round=announcement.round)
        sealed = context.clients[RELAY].get_mail(self.study.name, topic, context.site, requester)
        mail = open_letter(
            sealed,
            WeightMail,
            "weights",
            self.study_digest,
            requester,
            context.site,
            announcement.round,
            context.keys.sealing,
        )
        if mail.weight_list.digest() != announcement.weight_list_digest:
            raise AnnouncementMismatch(
                f"round {announcement.round}: the weight list is not the announced one; nothing is contributed"
            )
        return mail

    def _catch_up(self, mail: WeightMail) -> None:
        """How rounds ended that this site saw no end of; the evidence is checked like any other."""
        if mail.previous is not None:
            self._catch_up_release(mail.previous)
        for skip in mail.skipped:
            number = skip.message.round
            if number == self.state.memory.unsettled:
                require_skip(skip, self.context.roster, self.study_digest, number)
                self.save(memory=remember_skip(self.state.memory, number))

    def _catch_up_release(self, previous: PastRelease) -> None:
        """Apply it, if this site was listed: to others the servers give no output, they need the checkpoint."""
        past = previous.announcement
        if past.round <= self.state.last_recorded_round or past.model_version != self.state.model_version:
            return
        if self.context.site not in past.listed:
            return
        end = self.take_release(previous)
        decision = Decision(announcement=past, weight_list=previous.weight_list, accepted=True)
        self._record(decision, end, previous.release_set.message.attempt, "", previous)

    def _check_model(self, announcement: Announcement) -> None:
        version = self.state.model_version
        if version != announcement.model_version:
            raise _ModelBehind(
                f"round {announcement.round} is for model {announcement.model_version}, this site has {version}; "
                "it needs the requester's checkpoint"
            )
        key = bytes.fromhex(self.state.site_key or "")
        own = model_digest(key, self.study_digest, announcement.round, self.require_model().astype("<f4").tobytes())
        if not hmac.compare_digest(own, announcement.model_digest):
            raise ModelDiverged(
                f"round {announcement.round}: this site's model {version} is not the requester's; "
                "one of them was served something else"
            )

    def _check_policy(self, announcement: Announcement, weight_list: WeightList) -> None:
        study, context = self.study, self.context
        rule = rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
        check_weight_list(
            context.site,
            announcement,
            weight_list,
            study.parameters,
            rule_declares_never_rising=rule.weights_never_rise,
            policy=context.policy,
            memory=self.state.memory,
            contributors=tuple(party.name for party in context.roster.contributors),
            needs=rule.needs,
        )

    def _contribute(self, decision: Decision, attempt: int) -> Decision:
        announcement = decision.announcement
        done = self.journal.attempt_folder(announcement.round, attempt) / "done"
        if done.exists() or decision.weight_list is None:
            return decision
        numerator = decision.weight_list.numerator_of(self.context.site)
        try:
            self.encode(announcement, numerator or 0)
            self.contribute(announcement, attempt)
        except Unavailable:
            raise
        except RefusedMessage as refused:  # late, or the servers' view moved on: the round goes on without this site
            self.problem(announcement.round, refused.detail)
        except MoietyError as error:
            return self._decline(announcement, decision.weight_list, error)
        else:
            self.event(EventKind.PHASE, announcement.round, "contributed")
        self.journal.reach(Point.BEFORE_DONE_JOURNALLED)
        write_durably(done, b"")
        self.journal.reach(Point.AFTER_DONE_JOURNALLED)
        return decision

    def _decline(self, announcement: Announcement, weight_list: WeightList | None, error: MoietyError) -> Decision:
        """Tell the requester, sealed, why this site does not contribute; the same letter after a restart."""
        code = _decline_code(error)
        folder = self.journal.round_folder(announcement.round)
        letter = folder / "decline.sealed"
        context, requester = self.context, self.context.roster
        if not letter.exists():
            decline = Decline(
                study_digest=self.study_digest,
                round=announcement.round,
                site=context.site,
                code=code,
                reason=error.detail[:_REASON_CHARACTERS],
            )
            signed = sign(decline, context.site, context.keys.signing)
            to = next(party for party in requester.sites if party.name == requester.requester)
            sealed = seal_letter(signed, "decline", self.study_digest, context.site, to, announcement.round)
            write_durably(letter, sealed)
        topic = paths.fill(paths.DECLINE_TOPIC, round=announcement.round)
        context.clients[RELAY].put_mail(self.study.name, topic, requester.requester, Body.of(letter.read_bytes()))
        decision = Decision(
            announcement=announcement, weight_list=weight_list, accepted=False, code=code, reason=error.detail
        )
        self.journal.write(folder / "decision.json", decision)
        self.event(EventKind.DECLINED, announcement.round, f"{code}: {error.detail}")
        return decision

    def _finish(self, decision: Decision, view: RoundView) -> None:
        """The round was released: apply the average if this site's model is the announced one."""
        announcement, version = decision.announcement, self.state.model_version
        applied_before_a_crash = version == announcement.model_version + 1
        if decision.weight_list is None or not (version == announcement.model_version or applied_before_a_crash):
            self._record(decision, RoundEnd.DECLINED, view.attempt, decision.reason)
            return
        if view.agreed_set is None or view.release_set is None:
            raise UnknownResource(f"round {view.round}: the server shows a release without its evidence")
        past = PastRelease(
            announcement=announcement,
            weight_list=decision.weight_list,
            agreed_set=view.agreed_set,
            release_set=view.release_set,
        )
        end = RoundEnd.RELEASED if applied_before_a_crash else self.take_release(past)
        self._record(decision, end, view.attempt, decision.reason, past)

    def _record(
        self, decision: Decision, end: RoundEnd, attempt: int, reason: str, past: PastRelease | None = None
    ) -> None:
        announcement = decision.announcement
        release = None if past is None else past.release_set.message
        encoded = self.journal.round_folder(announcement.round) / "encoded.json"
        self.record(
            RoundRecord(
                time_s=self.context.clock(),
                study=self.study.name,
                site=self.context.site,
                round=announcement.round,
                state=end if decision.accepted or end is not RoundEnd.SKIPPED else RoundEnd.DECLINED,
                attempt=attempt,
                reason=reason,
                model_version=self.state.model_version or 0,
                weights=() if decision.weight_list is None else decision.weight_list.weights,
                took_part=() if release is None else release.sites,
                failed_check=() if release is None else release.failed_check,
                clipped=self.encode(announcement, 0).clipped if encoded.exists() else None,
            )
        )


class _ModelBehind(ModelDiverged):
    """This site missed a release that it cannot fetch any more; the requester can send a checkpoint."""


def _decline_code(error: MoietyError) -> str:
    """What the requester reads; the two named first do not drop the site."""
    if isinstance(error, _ModelBehind):
        return MODEL_BEHIND
    return OUTCOME_UNKNOWN if isinstance(error, OutcomeUnknown) else error.code.value
