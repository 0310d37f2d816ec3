"""A whole run in one process: a study's, in the open or as its protection says, or a baseline's.

Rounds, seeds, batches, policy and rule are the same in the open and protected; only the way the updates are added up
and measured differs, so that the two histories can be compared round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, load_vector, model_vector, personal_vector, require_batches
from client_agent.learning.local_finish import LocalFinish
from client_agent.learning.models import build_model
from client_agent.learning.plugin import Plugin, assessor, site_loss
from client_agent.learning.study_file import FinishTable
from harness.datasets.site_data import SiteData
from harness.engine.baseline_rounds import BaselineRounds
from harness.engine.history import RoundKind, RoundRecord, RunEnd, RunHistory
from harness.engine.protected_sum import SourceName, TamperInRound, ckks_sum, secure_sum, seed_of
from harness.engine.run_state import (
    USUAL,
    AfterRound,
    Announced,
    Conditions,
    Progress,
    Reached,
    Run,
    RunState,
    S,
    final_scores,
    require_no_divergence,
    round_record,
    round_updates,
    with_judgement,
)
from harness.engine.study_round import (
    Trained,
    announce,
    answers,
    inputs_of,
    isolations,
    lists_to_try,
    measured_round,
    present,
    remembered,
    require_isolated,
    require_validation,
    require_willing,
    skipped,
    with_own_noise,
)
from harness.engine.training import own_sources, repeated
from harness.engine.updates import PlainSum, Summing, average, class_counts, clipped_update
from protocol.errors import LocalOptimumReached, PolicyRefusal
from protocol.messages.control import RuleName, Study
from protocol.policy.memory import SiteMemory, remember_contribution, remember_release
from protocol.policy.site_policy import list_terms
from protocol.rounds.planning import Candidate
from protocol.rules.interface import RuleState, SiteFacts
from protocol.rules.registry import require_sites, rule_for
from protocol.shared_model import apply_aggregate, first_model, initial_state


class Rounds(Protocol[S]):
    """The rounds of a study or a baseline, counted from 1; ``S`` is all that moves from round to round."""

    def start(self) -> S: ...

    def round(self, state: S, number: int) -> tuple[S, RoundRecord]:
        """Do one round. Raises: LocalOptimumReached, with the state as it was; UnusableUpdate"""
        ...

    def shown(self, state: S) -> RunState:
        """Return the requester's model as a study's state has it."""
        ...


def without_held_out(
    sites: Sequence[SiteData], finish: FinishTable | None, seed: int
) -> tuple[Sequence[SiteData], Examples]:
    """The sites as the shared rounds see them, and what the requester holds out of them. Raises: ConfigurationError"""
    train = sites[0].train
    if finish is None:
        return sites, Examples(train.X[:0], train.y[:0])
    seen, held = finish.parts(train, seed)
    return (replace(sites[0], train=seen), *sites[1:]), held


def finished(run: Run, progress: Progress, held: Examples) -> tuple[Progress, str]:
    """One record more, and how strong the pull was. Raises: ConfigurationError, UnusableUpdate"""
    state, requester = progress.state, run.requester
    loss = site_loss(run.study, run.conditions.plugin, requester.train.y)
    ended = LocalFinish(run.model, loss, run.study.training.l2, requester.train, held).run(run.model_of(state))
    vector = state.vector.copy()
    vector[: ended.vector.size] = ended.vector
    after = replace(state, vector=vector)
    record = round_record(run, after, len(progress.records) + 1, RoundKind.FINISHED, ())
    how = "the local finish kept the shared model" if ended.pull is None else f"local finish with pull {ended.pull:.2g}"
    return Progress(after, (*progress.records, record)), how


_IN_THE_OPEN: Final = PlainSum()


def run_rounds(
    study: Study,
    sites: Sequence[SiteData],
    summing: Summing = _IN_THE_OPEN,
    conditions: Conditions = USUAL,
    *,
    protection: str = "plain",
    resume: Reached[Any] | None = None,
    after_round: Callable[[Reached[Any]], None] = lambda progress: None,
) -> RunHistory:
    """A whole run, however ``summing`` adds the updates up; the first of ``sites`` is the requester.

    When the sites' policy refuses a list the requester goes on alone for the remaining rounds (LOCAL_ONLY); at a
    local optimum the run stops. ``resume`` goes on where ``after_round`` was last called, to the same bits. Rounds of
    class counts have numbers and records too, but do not count among ``study.rounds``.

    Raises: ConfigurationError when the study has no seed, too few sites for its rule, or a rule that opens what the
            sites' policy forbids; UnusableUpdate when an update is no number or the model has diverged
    """
    seed = seed_of(study)
    sites, held = without_held_out(sites, conditions.finish, seed)
    run = _run_of(study, seed, sites, summing, conditions)
    rounds: Rounds[Any] = StudyRounds(run) if conditions.baseline is None else BaselineRounds(run, conditions.baseline)
    begun: Reached[Any] = Reached(rounds.start())
    first = round_record(run, rounds.shown(begun.state), 0, RoundKind.SKIPPED, ())  # the model before round 1
    reached, optimum = resume or begun, None
    for record in reached.records[-1:]:
        require_no_divergence(record, first)
    while len(reached.records) - rounds.shown(reached.state).rounds_apart < study.rounds:
        try:
            state, record = rounds.round(reached.state, len(reached.records) + 1)
        except LocalOptimumReached as stopped:
            optimum = stopped.detail
            break
        reached = Reached(state, (*reached.records, record))
        after_round(reached)
        require_no_divergence(record, first)
    progress = Progress(rounds.shown(reached.state), reached.records)
    end, reason = _end_of(run, progress.state, optimum)
    if conditions.finish is not None:
        progress, how = finished(run, progress, held)
        reason = f"{reason}; {how}"
    return RunHistory(
        study.name,
        study.rule.name,
        protection,
        seed,
        run.requester.name,
        run.names,
        end,
        reason,
        progress.records,
        run.model_of(progress.state),
        final_scores(run, progress.state, conditions.bootstrap),
        ended_by=progress.state.alone_by if end is RunEnd.LOCAL_ONLY else None,
        personal=run.personal_of(run.requester, progress.state),
    )


def _end_of(run: Run, state: RunState, optimum: str | None) -> tuple[RunEnd, str]:
    if state.alone_because is not None and run.study.rule.name is not RuleName.LOCAL:
        return RunEnd.LOCAL_ONLY, state.alone_because
    return (RunEnd.COMPLETED, "all rounds are done") if optimum is None else (RunEnd.LOCAL_OPTIMUM, optimum)


def _run_of(study: Study, seed: int, sites: Sequence[SiteData], summing: Summing, conditions: Conditions) -> Run:
    require_sites(study.rule, [site.name for site in sites[1:]], study.parameters.least_contributors)
    grid, policy = study.parameters.weight_grid, conditions.policy
    terms = list_terms(study, policy, len(sites[0].train))
    run = Run(
        study,
        requester=sites[0],
        contributors=tuple(sites[1:]),
        rule=conditions.rule or rule_for(study.rule, batch_size=study.training.batch_size, grid=grid, terms=terms),
        model=conditions.model or _model_of(study, seed, conditions.plugin),
        summing=summing,
        conditions=conditions,
    )
    for site in sites:
        require_batches(run.model, len(site.train), study.training.batch_size, f"site {site.name!r}")
    if study.model.kind in ("plugin", "library"):
        judge = assessor(study, conditions.plugin, conditions.computing.device)
        judge.try_once(study, run.model, run.requester.train)
    for needs in (run.rule.needs, study.rule.name.declared.measures):
        require_willing(needs, policy, run.names)
    require_validation(run)
    return run


def _model_of(study: Study, seed: int, plugin: Plugin | None) -> nn.Module:
    """Version 0, as a study with this seed begins at its sites. Raises: ConfigurationError, UnusableUpdate"""
    if plugin is None:
        return build_model(study.model, seed, own_sources())
    model = plugin.model(study.model, seed)
    load_vector(model, first_model(study))
    return model


@dataclass(frozen=True)
class StudyRounds:
    """A study's rounds as a scheme, plain or protected, as ``run.summing`` adds the updates up."""

    run: Run

    def start(self) -> RunState:
        """Every site begins with the same personal layers."""
        run = self.run
        personal = repeated(personal_vector(run.model), len(run.sites)).copy()
        vector = initial_state(model_vector(run.model), run.study.rule)
        return RunState(vector, run.rule.init(()), SiteMemory(), personal=personal)

    def round(self, state: RunState, number: int) -> tuple[RunState, RoundRecord]:
        """Announce, check the policy, train, clip, weigh, sum, apply, run the rule.

        Raises: LocalOptimumReached, with the model as it was
        """
        run, state = self.run, replace(state, rule_state=_admitted(self.run, state.rule_state, number))
        if state.alone_because is None:
            try:
                announced, trained = _planned(run, state, number)
            except PolicyRefusal as refusal:
                state = replace(state, alone_because=refusal.detail, alone_by=refusal.clause)
            else:
                return _announced_round(run, state, announced, trained)
        return _round_alone(run, state, number)

    def shown(self, state: RunState) -> RunState:
        return state


def _planned(run: Run, state: RunState, round_number: int) -> tuple[Announced, Trained | None]:
    """The announcement; where updates are summed, the requester trains before it and the listed sites after it.

    Isolation is about what each of them has trained. Raises: PolicyRefusal
    """
    tried = lists_to_try(run, state)
    if not run.purpose(state).plan.steps_model:
        return announce(run, state, round_number, tried), None
    own = round_updates(run, state, (run.requester,), round_number)
    demand = partial(require_isolated, run, state, trained=Trained.of(run, own))
    announced = announce(run, state, round_number, tried, demand)
    others = present(run, announced.announcement.listed, round_number)
    trained = round_updates(run, state, others, round_number) if others else {}
    return announced, Trained.of(run, {**own, **trained})


def _announced_round(
    run: Run, state: RunState, announced: Announced, trained: Trained | None
) -> tuple[RunState, RoundRecord]:
    memory = remember_contribution(state.memory, announced.announcement, announced.weight_list)
    if not announced.announcement.purpose.plan.summed:
        return measured_round(run, replace(state, memory=memory), announced)
    answer = answers(run, state, announced)
    before = state
    state = replace(
        state,
        memory=memory,
        declined=(*state.declined, *answer.declined),
        counts_rounds=state.counts_rounds + (trained is None),
    )
    if trained is None:
        after, record = _counts_round(run, state, announced, answer.taking_part)
    else:
        after, record = _isolated_round(run, before, state, announced, trained, answer.taking_part)
    declined = (*answer.declined, *record.declined)
    return _out_of_sites(run, after, answer.why), record.model_copy(update={"declined": declined})


def _isolated_round(
    run: Run, before: RunState, state: RunState, announced: Announced, trained: Trained, willing: tuple[str, ...]
) -> tuple[RunState, RoundRecord]:
    """Run a round without the sites that demand more isolation; a list that was declined does not come again before a
    sum.
    """
    figures = isolations(run, before, announced, trained, willing)
    refusals = {site: refusal for site, refusal in figures.refusals.items() if site != run.requester.name}
    taking_part = tuple(site for site in willing if site not in refusals)
    if len(taking_part) < announced.announcement.least_contributors:
        after, record = skipped(run, state, announced)
    else:
        after, record = _update_round(run, state, announced, trained, taking_part)
    if refusals and record.kind is not RoundKind.RELEASED:
        weights = announced.weight_list
        exposing = Candidate(weights.weights, announced.announcement.least_contributors, weights.requester)
        after = replace(after, exposing=exposing)
    if record.kind is not RoundKind.RELEASED:
        after = replace(after, too_few=True)
    return after, record.model_copy(update={"isolation": figures.found, "declined": tuple(refusals)})


def _counts_round(
    run: Run, state: RunState, announced: Announced, taking_part: tuple[str, ...]
) -> tuple[RunState, RoundRecord]:
    if len(taking_part) < announced.announcement.least_contributors:
        return skipped(run, state, announced)
    classes = run.study.model.classes
    sites = (run.requester, *(site for site in run.contributors if site.name in taking_part))
    counted = run.summing.counts(announced.announcement, {site.name: class_counts(site, classes) for site in sites})
    if counted.totals is None:
        after, record = skipped(run, state, announced)
        return after, record.model_copy(update={"failed_check": counted.failed})
    memory = remember_release(state.memory, announced.announcement, announced.weight_list, counted.took_part)
    after = replace(state, memory=memory, class_totals=counted.totals)
    record = round_record(run, after, announced.announcement.round, RoundKind.COUNTED, announced.weight_list.weights)
    sums = {"took_part": counted.took_part, "failed_check": counted.failed, "class_totals": counted.totals}
    return after, record.model_copy(update=sums)


def _update_round(
    run: Run, state: RunState, announced: Announced, trained: Trained, taking_part: tuple[str, ...]
) -> tuple[RunState, RoundRecord]:
    announcement, weight_list = announced.announcement, announced.weight_list
    inputs = inputs_of(run, state, announced, trained, taking_part)
    personal = {name: update.personal for name, update in inputs.updates.items()}
    began, state = state, run.with_personal(state, {**personal, run.requester.name: inputs.own.personal})
    summed = run.summing.updates(inputs)
    if summed.average is None or summed.judgement is None:
        after, record = skipped(run, state, announced)
        return after, record if summed.judgement is None else with_judgement(record, summed.judgement)
    measured = with_own_noise(run, began, inputs, summed, summed.judgement.measured)
    rule_state = run.rule.apply(state.rule_state, measured)
    aggregate = summed.average
    if run.conditions.erosion_applies == "same_round":
        used = [(w, inputs.updates[w.site]) for w in run.rule.numerators(rule_state) if w.site in inputs.updates]
        aggregate = average(inputs.own.values, used, weight_list.grid)
    last = state.memory.summed_list, state.memory.summed_requester
    same_list = (weight_list.weights, weight_list.requester) == last
    after = replace(
        remembered(run, state, announced, trained, measured.took_part),
        vector=_applied(run, state, aggregate),
        rule_state=rule_state,
        memory=remember_release(state.memory, announcement, weight_list, measured.took_part),
        model_version=state.model_version + 1,
        list_kept=state.list_kept + 1 if same_list else 1,
        exposing=None,
        too_few=False,
        measure_tries=0,
    )
    record = round_record(run, after, announcement.round, RoundKind.RELEASED, weight_list.weights)
    clipped = [inputs.own.was_clipped, *(update.was_clipped for update in inputs.updates.values())]
    sums = {
        "took_part": measured.took_part,
        "clipped_share": sum(clipped) / len(clipped),
        "sum_of_weights": summed.sum_of_weights,
    }
    return after, with_judgement(record, summed.judgement).model_copy(update=sums)


def _applied(run: Run, state: RunState, aggregate: Vector) -> Vector:
    return apply_aggregate(state.vector, aggregate, run.study.rule, run.study.training.server_learning_rate)


def _out_of_sites(run: Run, state: RunState, why: PolicyRefusal | None) -> RunState:
    """Once the sites that declined leave too few, the shared part is over, and their reason is the run's."""
    willing = len(run.contributors) - len(state.declined)
    if why is None or willing >= run.study.parameters.least_contributors:
        return state
    told = f"{willing} contributors are willing: {why.detail}"
    return replace(state, alone_because=told, alone_by=why.clause)


def _round_alone(run: Run, state: RunState, round_number: int) -> tuple[RunState, RoundRecord]:
    personal = run.personal_of(run.requester, state)
    own = clipped_update(run.training, run.requester, run.model_of(state), round_number, personal=personal)
    state = run.with_personal(state, {run.requester.name: own.personal})
    aggregate = average(own.values, [], run.study.parameters.weight_grid)
    after = replace(state, vector=_applied(run, state, aggregate), model_version=state.model_version + 1)
    record = round_record(run, after, round_number, RoundKind.ALONE, ())
    return after, record.model_copy(update={"requester_norm": own.norm, "clipped_share": float(own.was_clipped)})


def _admitted(run: Run, rule_state: RuleState, round_number: int) -> RuleState:
    ready = tuple(
        SiteFacts(name=site.name, samples=len(site.train))
        for site in run.contributors
        if run.conditions.attendance.has_joined(site.name, round_number)
    )
    return run.rule.admit(rule_state, ready)


def run_protected(
    study: Study,
    sites: Sequence[SiteData],
    *,
    correlation_source: SourceName | None = None,
    conditions: Conditions = USUAL,
    resume: Progress | None = None,
    after_round: AfterRound = lambda progress: None,
    tamper: TamperInRound | None = None,
) -> RunHistory:
    """A whole run with everything but sealing, signatures and HTTP.

    ``correlation_source`` replaces the study's. Every draw but SEAL's comes from the study's seed; ``tamper`` lets
    sites misbehave with what they share.

    Raises: as :func:`run_rounds`; AggregateOutOfBounds; ConfigurationError where TenSEAL is needed and missing, or
            sums fewer sites
    """
    shares, plan = secure_sum(study, sites, correlation_source, tamper), study.protection.plan
    summing = ckks_sum(study, len(sites), shares) if plan.keyed else shares
    return run_rounds(study, sites, summing, conditions, protection=plan.name, resume=resume, after_round=after_round)
