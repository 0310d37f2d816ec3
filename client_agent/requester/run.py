"""The requester's part in one study: it creates the study, announces rounds, opens distances, runs the rule, releases.

Every message that a server answers only once (announcement, mail, queries, release set) is journalled before it is
sent, so that a restarted requester sends the same bytes again (docs/protocol.md 4, 8 to 10).
"""

from __future__ import annotations

from functools import partial
from typing import Final, TypeVar

from client_agent.learning.learner import Vector
from client_agent.requester.admission import (
    admit,
    await_contributors,
    bring_up_to_date,
    show_model,
    wait_for_quiet_hours,
    welcome,
)
from client_agent.requester.measurement import (
    MeasuringRound,
    RankingRound,
    after_measurement,
    after_ranking,
    try_judging,
)
from client_agent.requester.own_update import finish_locally, go_alone, keep_best, keep_from_mean, learns_from
from client_agent.requester.plan import after_summary, hindrance, plan_round, situation, summary_missing
from client_agent.requester.round import RequesterRound, RoundStuckError
from client_agent.requester.study import (
    RELEASES_KEPT,
    RequesterStudy,
    RoundPlan,
    Settled,
    StudyOver,
    absences,
    declared_samples,
    given_up,
)
from client_agent.site.events import Absence, EventKind, RoundEnd, opened_values, site_values
from client_agent.site.failpoints import Point
from client_agent.study.outbox import PRETRAINED, load_pretrained
from client_agent.study.privacy_spending import require_room_for
from protocol.ckks.scheme import KEY_SEED_BYTES
from protocol.errors import (
    Clause,
    ConfigurationError,
    ErrorCode,
    LocalOptimumReached,
    PolicyRefusal,
    ProtocolViolation,
    RefusedMessage,
    UnusableUpdate,
)
from protocol.messages.control import EndCause, Purpose, RuleName, StudyEndState, require_signatures
from protocol.parameters import Needs
from protocol.policy.memory import remember_contribution
from protocol.policy.site_policy import list_terms
from protocol.rounds.evidence import PastRelease
from protocol.rounds.planning import Candidate, next_purpose
from protocol.rules.interface import Measured, RiskRule
from protocol.shared_model import first_model, initial_state, model_digest_of
from protocol.sharing import Side

T = TypeVar("T")
_NOTHING_OPENED: Final = Measured(round=1, requester_norm=0.0, took_part=())
_OF_UPDATES: Final = frozenset({Purpose.UPDATE, Purpose.MEASURE})
_UNUSABLE_TIMES: Final = 2
_SHORT_ROUNDS: Final = 2


class Requester(RequesterStudy):
    """Runs one study from its creation to its end."""

    def run(self) -> None:
        """Raises: Stopped; errors that nothing here can mend, after the study was ended as failed"""
        if self.state.over:
            return
        self.prepare()
        if self.rule.needs is Needs.INNER_PRODUCTS:
            self.learner.probe(first_model(self.study))  # without validation data no study is begun
        if isinstance(self.rule, RiskRule):
            self._weigh_by_own_samples(self.rule)
        if self.study.ranking is not None and self.state.model_version is None:
            try_judging(self)  # nor without examples to judge by and a model of its own
        if self.state.model_version is None:
            self._require_budget()
        self._first_model()
        self._create()
        self.watch.start()
        try:
            self._shared_part()
            go_alone(self)
            finish_locally(self)
            self.finish(self.progress.why, self.progress.end)
        except StudyOver as over:
            self.finish(str(over), over.end)
        except (ProtocolViolation, UnusableUpdate) as broken:
            public = "the requester's update cannot be shared" if isinstance(broken, UnusableUpdate) else broken.detail
            cause = EndCause.UPDATE_UNUSABLE if isinstance(broken, UnusableUpdate) else EndCause.PROTOCOL_BROKEN
            self.end_study(StudyEndState.FAILED, cause, public, broken.detail)
            self._deliver_end()
            self.finish(self.progress.why, self.progress.end)
        finally:
            self.watch.close()

    # --- beginning ---

    def _weigh_by_own_samples(self, rule: RiskRule) -> None:
        """The noise is that of the examples seen, which a local finish leaves fewer of than the roster declares.

        Raises: UnusableUpdate, before the study is begun, where this site cannot tell how noisy its update is
        """
        samples = min(declared_samples(self.context), self.learner.sample_count())
        self.rule = rule.within(list_terms(self.study, self.context.policy, samples))
        if self.state.model_version is None:
            self.learner.update_noise(first_model(self.study), 1)

    def _require_budget(self) -> None:
        if self.study.privacy is not None:
            try:
                require_room_for(self.study, self.learner.sample_count(), self.context.budget, self.context.policy)
            except PolicyRefusal as refusal:
                raise ConfigurationError(refusal.detail) from None

    def _first_model(self) -> None:
        if self.state.model_version is None:
            key = self.context.randomness.bytes(32, f"site key {self.study_digest}")
            seed = None
            if self.study.protection.plan.keyed:
                seed = self.context.randomness.bytes(KEY_SEED_BYTES, f"ckks key seed {self.study_digest}").hex()
            self.adopt_model(self._first_kept(), 0, site_key=key.hex(), ckks_key_seed=seed)

    def _first_kept(self) -> Vector:
        """Version 0: derived, or the pretrained start that came with the study. Raises: ConfigurationError"""
        if self.study.pretrained_digest is None:
            return self.first_kept()
        model = load_pretrained(self.journal.folder / PRETRAINED, self.study.model_dimension)
        if model_digest_of(model) != self.study.pretrained_digest:
            raise ConfigurationError(f"study {self.study.name!r} pins another pretrained model than the one kept here")
        return initial_state(model, self.study.rule)

    def _create(self) -> None:
        signed = self.signed_study
        if self.journal.is_withdrawn:
            raise ConfigurationError(f"study {self.study.name!r} was cancelled before a server had it")
        for side in Side:
            client = self.context.clients[side]
            answer = self.retried(partial(client.create_study, signed))
            self.journal.reach(Point.AFTER_STUDY_SENT)
            requester, operator = self.context.roster.requester, self.context.roster.operator(side).name
            if require_signatures(answer, self.context.roster, (requester, operator)) != self.study:
                raise ProtocolViolation(f"server {side} countersigned another study than this one")
        self.event(EventKind.STUDY, None, "created at both servers")

    def _shared_part(self) -> None:
        if self.progress.end is None and self.journal.is_withdrawn:  # while the servers were being asked
            self.end_study(StudyEndState.CANCELLED, EndCause.CANCELLED, "cancelled while it was created")
        if self.progress.end is None and self.study.unsupported is not None:  # an older version began it
            self.end_study(StudyEndState.FAILED, EndCause.STUDY_REFUSED, self.study.unsupported, clause=Clause.NOISE)
        if self.progress.end is None and self.study.rule.name is RuleName.LOCAL:
            self.end_study(StudyEndState.LOCAL_ONLY, EndCause.NO_CONTRIBUTOR_NEEDED, "the rule uses no contributor")
        if self.progress.end is None and self.progress.next_round == 1:
            await_contributors(self)
        while self.progress.end is None and self._more_to_do():
            admit(self)
            bring_up_to_date(self)
            wait_for_quiet_hours(self)
            plan = self.next_plan()
            if plan is None:
                break
            show_model(self, plan)
            try:
                self.settle(plan, self.round_of(plan).run())
            except LocalOptimumReached as optimum:
                self.end_study(StudyEndState.COMPLETED, EndCause.LOCAL_OPTIMUM, optimum.detail)
            except RoundStuckError as stuck:
                self.end_study(StudyEndState.FAILED, EndCause.ROUND_NOT_ENDED, str(stuck))
        if self.progress.end is None:
            self._end_after_all()
        self._deliver_end()

    def _more_to_do(self) -> bool:
        return self.progress.updates_done < self.study.rounds or next_purpose(situation(self)) not in _OF_UPDATES

    def _end_after_all(self) -> None:
        missing = summary_missing(self)
        if missing and not self.study.rounds:
            public = "the sites' summaries were not summed"
            self.end_study(StudyEndState.FAILED, EndCause.NOT_SUMMARISED, public, f"{public}: {missing}")
        else:
            self.end_study(StudyEndState.COMPLETED, EndCause.ALL_ROUNDS_DONE, "all rounds are done")

    def round_of(self, plan: RoundPlan) -> RequesterRound:
        """Return the driver of the planned round: a ranking, a measurement, or a round that sums."""
        drivers = {Purpose.RANKING: RankingRound, Purpose.MEASURE: MeasuringRound}
        return drivers.get(plan.announcement.message.purpose, RequesterRound)(self, plan)

    def average(self, past: PastRelease) -> Vector:
        """As at every site; what the rule learns from it is kept before the model steps."""
        average = super().average(past)
        if learns_from(self.rule, past.announcement.purpose):
            keep_from_mean(self, past, average)
        return average

    # --- a round ---

    def next_plan(self) -> RoundPlan | None:
        """The round's announcement and weight list; None when the study was ended instead."""
        path = self.journal.round_folder(self.progress.next_round) / "plan.json"
        plan = self.journal.read(path, RoundPlan)
        hindered = hindrance(self)
        if plan is None and hindered is not None:
            self.end_study(StudyEndState.FAILED, hindered.cause, hindered.public, hindered.why)
            return None
        if plan is None:
            try:
                plan = plan_round(self)
            except PolicyRefusal as refusal:
                self._end_by_policy(refusal)
                return None
            if plan is None:
                return None
            path = self.journal.round_folder(plan.announcement.message.round) / "plan.json"
            self.journal.write(path, plan, (Point.BEFORE_PLAN_JOURNALLED, Point.AFTER_PLAN_JOURNALLED))
        memory = remember_contribution(self.progress.memory, plan.announcement.message, plan.weight_list)
        self.keep(memory=memory)
        return plan

    # --- after a round ---

    def settle(self, plan: RoundPlan, settled: Settled) -> None:
        """Rule, memory and list of absentees after a round; then its record."""
        absent = absences(self.contributors, self.progress, plan.announcement.message, settled)
        changes = self._after(plan, settled)
        # The record comes before the durable write: a crash in between settles the round again, and records it once.
        changes["next_round"] = plan.announcement.message.round + 1
        self.progress = self.progress.model_copy(update=changes)
        self._record_round(plan, settled, absent)
        if settled.end is RoundEnd.RELEASED and plan.announcement.message.purpose.plan.steps_model:
            keep_best(self)
        self.journal.reach(Point.BEFORE_SETTLED)
        self.keep()
        self.journal.reach(Point.AFTER_SETTLED)
        behind = [refused.site for refused in settled.declines if refused.clause is Clause.MODEL_BEHIND]
        if behind and self.progress.end is None:
            welcome(self, behind)
        if settled.server_lied and self.progress.end is None:
            self._end_by_server(plan.announcement.message.round)
        if self.progress.short_rounds >= _SHORT_ROUNDS and self.progress.end is None:
            self.end_study(
                StudyEndState.LOCAL_ONLY,
                EndCause.TOO_FEW_WILLING,
                f"too few sites were willing in {_SHORT_ROUNDS} rounds in a row: {settled.reason}",
            )

    def _after(self, plan: RoundPlan, settled: Settled) -> dict[str, object]:
        announcement = plan.announcement.message
        purpose = announcement.purpose
        changes = {} if purpose.plan.dispensable else self.after_declines(settled)
        if any(refused.clause is Clause.ISOLATION for refused in settled.declines):
            weight_list = plan.weight_list
            changes["exposing"] = Candidate(weight_list.weights, announcement.least_contributors, weight_list.requester)
        if purpose is Purpose.RANKING:
            return changes | after_ranking(self, settled, announcement)
        if purpose is Purpose.MEASURE:
            return changes | after_measurement(self, settled, announcement.round)
        if settled.past is not None:
            changes |= self._after_release(plan, settled.past)
        elif not purpose.plan.dispensable:
            changes |= self._after_no_sum(plan, settled)
        if purpose is Purpose.SUMMARY:
            changes |= after_summary(self, settled, announcement)
        elif not purpose.plan.steps_model:
            changes["counts_rounds"] = self.progress.counts_rounds + 1
        elif settled.end is RoundEnd.RELEASED and settled.measured is not None:
            changes["rule_state"] = self.rule.apply(self.progress.rule_state, settled.measured)
            changes["measure_tries"] = 0
        return changes

    def _after_release(self, plan: RoundPlan, past: PastRelease) -> dict[str, object]:
        memory = self.remembered(self.progress.memory, past)
        changes: dict[str, object] = {"memory": memory, "previous": past, "short_rounds": 0}
        changes["tags_wrong"] = ()
        if past.announcement.purpose.plan.steps_model:
            before, weight_list = self.progress.memory, plan.weight_list
            again = (weight_list.weights, weight_list.requester) == (before.summed_list, before.summed_requester)
            changes |= {"exposing": None, "too_few": False, "list_kept": self.progress.list_kept + 1 if again else 1}
            changes["history"] = (*self.progress.history, past)[-RELEASES_KEPT:]
        return changes

    def _after_no_sum(self, plan: RoundPlan, settled: Settled) -> dict[str, object]:
        announcement, before = plan.announcement.message, self.progress.tags_wrong_before
        again = [site for site in settled.failed_check if site in before and site not in self.progress.dropped]
        willing = len(plan.weight_list.weights) - len(settled.declines)
        short_rounds = self.progress.short_rounds + 1 if willing < announcement.least_contributors else 0
        changes: dict[str, object] = {"short_rounds": short_rounds, "too_few": True}
        if settled.failed_check:
            changes["tags_wrong"] = tuple(sorted({*self.progress.tags_wrong, *settled.failed_check}))
            changes["tags_wrong_before"] = tuple(sorted({*before, *settled.failed_check}))
            changes["dropped"] = (*self.progress.dropped, *again)
        return self.after_skip(settled, announcement.round) | changes

    def after_declines(self, settled: Settled) -> dict[str, object]:
        """Drop sites that are not listed again: a refusal or a diverged model at once, an unusable update the second
        time.

        A site that declines for isolation stays; the list does not come again.
        """
        unusable = tuple(r.site for r in settled.declines if r.code is ErrorCode.UNUSABLE_UPDATE)
        gone = [
            refused.site
            for refused in settled.declines
            if not refused.passes
            and (refused.site not in unusable or self.progress.unusable.count(refused.site) + 1 >= _UNUSABLE_TIMES)
        ]
        dropped = (*self.progress.dropped, *(site for site in gone if site not in self.progress.dropped))
        new = [site for site in gone if site not in self.progress.dropped]
        left = (*self.progress.given_up, *given_up(settled.declines, new, self.progress.next_round))
        return {"unusable": unusable, "dropped": dropped, "given_up": left}

    def _record_round(self, plan: RoundPlan, settled: Settled, absent: tuple[Absence, ...]) -> None:
        self.record(
            self.round_record(
                plan.announcement.message.round,
                settled.end,
                attempt=settled.attempt,
                reason=settled.reason,
                purpose=plan.announcement.message.purpose,
                weights=plan.weight_list.weights,
                grid=plan.weight_list.grid,
                requester_numerator=plan.weight_list.requester,
                own_weight=self.weight_in(plan.announcement.message),
                isolation=plan.isolation,
                took_part=settled.took_part(self.context.site),
                failed_check=settled.failed,
                declined=tuple(refused.site for refused in settled.declines),
                alphas=site_values((s.name, s.alpha) for s in self.progress.rule_state.sites),
                **opened_values(settled.measured or _NOTHING_OPENED),
                requester_norm=settled.requester_norm,
                clipped=settled.clipped,
                absences=absent,
            )
        )

    # --- the end ---

    def _end_by_policy(self, refusal: PolicyRefusal) -> None:
        """No further weight list passes; the servers may know of it the clause, not the numbers."""
        if refusal.clause is Clause.ENOUGH_CONTRIBUTORS:
            cause, reason = EndCause.TOO_FEW_CONTRIBUTORS, "too few contributors are left"
        elif refusal.clause is Clause.BUDGET_SPENT:
            cause, reason = EndCause.BUDGET_SPENT, "the requester's privacy budget is spent"
        else:
            cause = EndCause.ISOLATION if refusal.clause is Clause.ISOLATION else EndCause.POLICY
            reason = f"the next weight list would break the sites' policy ({refusal.clause.value})"
        self.end_study(StudyEndState.LOCAL_ONLY, cause, reason, refusal.detail, clause=refusal.clause)

    def _end_by_server(self, number: int) -> None:
        text = (
            f"round {number}: the two servers' words about the sum's tags do not fit each other, so one of them "
            "deviated; nothing was opened. Verify the kept messages (moiety study verify) and start another study when "
            "the operators have compared their records"
        )
        self.end_study(StudyEndState.FAILED, EndCause.SERVER_DEVIATED, text)

    def _deliver_end(self) -> None:
        end = self.progress.end
        if end is None:
            return
        for side in Side:
            client = self.context.clients[side]
            try:
                self.retried(partial(client.end, self.study.name, end))
                self.journal.reach(Point.AFTER_END_SENT)
            except RefusedMessage as refused:  # ended otherwise in the meantime, by a cancellation
                self.problem(None, refused.detail)
