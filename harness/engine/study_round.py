"""The steps of one round: announce, ask the sites, measure (docs/protocol.md 4, 8, 9).

Salts and model digests hide nothing within one process; they are there because the policy reads real messages.

An agent keeps the sums that it was in and a sketch of its own updates; here all sites' memories stand side by side.
The sums are the same for everybody, so they are kept once. An agent also counts the rounding of its own update as
noise, which is far below every limit; here sums are taken to be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from client_agent.learning.plugin import site_loss
from client_agent.learning.sampling import site_seed
from client_agent.learning.update_noise import update_noise
from client_agent.site.events import SiteValue
from harness.datasets.site_data import SiteData
from harness.engine.history import RoundKind, RoundRecord
from harness.engine.run_state import Announced, Run, RunState, round_record, round_updates, with_judgement
from harness.engine.updates import ClippedUpdate, RoundInputs, Summed, clipped_probe, load_site, squared_norm
from protocol.arithmetic.fixed_point import Real
from protocol.arithmetic.ring import derive
from protocol.errors import Clause, ConfigurationError, PolicyRefusal
from protocol.messages.control import Announcement, Purpose, WeightList
from protocol.parameters import Needs
from protocol.policy.clauses import Terms, check_for_every_site, check_isolation, check_weight_list
from protocol.policy.exposure import Exposure, KnownSum, SummedRow, SummedWeight, exposure
from protocol.policy.memory import kept_update, remember_skip
from protocol.policy.site_policy import SitePolicy, check_needs_allowed
from protocol.rounds import planning
from protocol.rounds.judgement import RequesterFacts, RoundRule, judge
from protocol.rounds.planning import Candidate
from protocol.rules.interface import Measured, RiskRule
from protocol.rules.shrinkage import distance_from_mean

_TOLD: Final = True
"""Every site's memory holds all sums of the run."""


@dataclass(frozen=True, eq=False)
class Trained:
    """The updates of everybody who may take part in a round, or of the requester alone while it plans.

    ``kept`` is what each site keeps of its own, float64[at most 4096], under a seed that is its own.
    """

    updates: Mapping[str, ClippedUpdate]
    kept: Mapping[str, Real] = field(repr=False)

    @classmethod
    def of(cls, run: Run, updates: Mapping[str, ClippedUpdate]) -> Trained:
        if not run.conditions.works_out_isolation:
            return cls(updates, {})
        seed = derive(bytes(32), f"kept updates {run.study.seed}")
        return cls(updates, {site: kept_update(one.values, derive(seed, site)) for site, one in updates.items()})


@dataclass(frozen=True)
class Figures:
    """The least isolation that each site found, and the refusal of those that demand more."""

    found: tuple[SiteValue, ...]
    refusals: Mapping[str, PolicyRefusal]


def require_isolated(run: Run, state: RunState, announced: Announced, *, trained: Trained) -> None:
    """The clause as the requester runs it before it announces, with its own updates. Raises: PolicyRefusal"""
    for refusal in isolations(run, state, announced, trained, ()).refusals.values():
        raise refusal


def isolations(run: Run, state: RunState, announced: Announced, trained: Trained, sites: tuple[str, ...]) -> Figures:
    """Return the findings of the requester, then of ``sites``; nothing where nobody asks for it."""
    if not run.conditions.works_out_isolation:
        return Figures((), {})
    row, values, refusals = _summed_row(run, announced), [], {}
    for site in (run.requester.name, *sites):
        found = _exposure(run, state, row, site, trained)
        values.append(SiteValue(site=site, value=found.least))
        try:
            check_isolation(found, row, run.conditions.policy)
        except PolicyRefusal as refusal:
            refusals[site] = refusal
    return Figures(tuple(values), refusals)


def remembered(
    run: Run, state: RunState, announced: Announced, trained: Trained, released: tuple[str, ...]
) -> RunState:
    """The state once the sum over ``released``, contributors only, was opened."""
    if not run.conditions.works_out_isolation:
        return state
    row = _summed_row(run, announced).model_copy(update={"released": tuple(sorted(released))})
    newest = np.zeros((1, len(run.sites), len(trained.kept[run.requester.name])), np.float32)
    for place, site in enumerate(run.sites):
        if site.name in trained.kept:
            newest[0, place] = trained.kept[site.name]
    earlier = state.kept if len(state.sums) else newest[:0]
    return replace(state, sums=(*state.sums, row), kept=np.concatenate([earlier, newest]))


def _exposure(run: Run, state: RunState, row: SummedRow, site: str, trained: Trained) -> Exposure:
    """The sums so far with the site's own updates, None where it was away, and the new one."""
    place = (run.requester.name, *run.names).index(site)
    own = state.kept[:, place].astype(np.float64) if state.sums else ()
    past = [
        KnownSum(_as_seen_by(run, state, one, site), kept if kept.any() else None)
        for one, kept in zip(state.sums, own, strict=True)
    ]
    t = max(run.conditions.policy.assumed_colluders, run.study.parameters.assumed_colluders)
    return exposure(past, _as_seen_by(run, state, row, site), trained.kept[site], colluders=t, told=_TOLD)


def _summed_row(run: Run, announced: Announced) -> SummedRow:
    """Return the row that the announced round may add to everybody's memory, its end still open."""
    announcement, weight_list = announced.announcement, announced.weight_list
    return SummedRow(
        study_digest=announcement.study_digest,
        round=announcement.round,
        dimension=run.study.model_dimension,
        weights=tuple(
            SummedWeight(site=weight.site, weight=weight.numerator / weight_list.grid) for weight in weight_list.weights
        ),
        least=announcement.least_contributors,
    )


def _as_seen_by(run: Run, state: RunState, row: SummedRow, site: str) -> SummedRow:
    """Return the row as a site sees it where sites weigh themselves: every other weight may be the smallest there is;
    the requester's is no column.
    """
    if not run.study.rule.name.self_weighted:
        return row
    own = {one.name: run.own_weight(one, state) for one in run.contributors if one.name == site}
    least = run.study.least_weight
    weights = tuple(SummedWeight(site=one.site, weight=own.get(one.site) or least) for one in row.weights)
    known = next((weight for weight in weights if weight.site in own), None)
    return row.model_copy(update={"weights": weights, "own": known})


NO_SECRET: Final = "00" * 32


@dataclass(frozen=True)
class Answers:
    """The contributors in roster order, and who declines, with the first refusal (None without one)."""

    taking_part: tuple[str, ...]
    declined: tuple[str, ...] = ()
    why: PolicyRefusal | None = None


Demand: TypeAlias = Callable[[Announced], None]
"""A requester's demand on an announcement besides the policy's other clauses. Raises: PolicyRefusal"""


def require_willing(needs: Needs, policy: SitePolicy, contributors: Sequence[str]) -> None:
    """Before round 1: no site's policy forbids what the rule opens.

    Raises: ConfigurationError that names the site and what is opened
    """
    for site in contributors:
        try:
            check_needs_allowed(needs, policy)
        except PolicyRefusal as refusal:
            raise ConfigurationError(
                f"site {site!r} refuses the study before its first round: {refusal.detail}; choose a rule that "
                "opens less, or a policy that allows it"
            ) from refusal


def require_validation(run: Run) -> None:
    """Before round 1: the requester has what its rule asks for. Raises: ConfigurationError"""
    if run.rule.needs is Needs.INNER_PRODUCTS and not len(run.requester.validation):
        raise ConfigurationError(
            f"the rule measures sites by the requester's validation loss, but {run.requester.name!r} "
            "has no validation example: split some off its training part"
        )


def lists_to_try(run: Run, state: RunState) -> tuple[Candidate, ...]:
    """As the requester's agent has them. Raises: PolicyRefusal when too few contributors have weight left"""
    if run.purpose(state) is Purpose.COUNTS and state.counts_rounds >= run.study.rounds:
        tried = f"the class counts could not be summed in {state.counts_rounds} rounds"
        raise PolicyRefusal(Clause.COUNTED_ONCE, tried)
    return planning.lists_to_try(run.situation(state))


def announce(
    run: Run,
    state: RunState,
    round_number: int,
    tried: Sequence[Candidate],
    demand: Demand = lambda announced: None,
) -> Announced:
    """The first of ``tried`` that meets the demand. Raises: PolicyRefusal; at once for what breaks another clause"""
    refused = PolicyRefusal(Clause.ISOLATION, "sites declined every list that this rule and the last sum leave")
    for candidate in tried:
        announced = _announced(run, state, round_number, candidate)
        try:
            demand(announced)
        except PolicyRefusal as refusal:
            refused = refusal
        else:
            return announced
    raise refused


def _announced(run: Run, state: RunState, round_number: int, candidate: Candidate) -> Announced:
    parameters, purpose = run.study.parameters, run.purpose(state)
    weight_list = WeightList(
        study_digest=run.study.digest(),
        round=round_number,
        grid=parameters.weight_grid,
        weights=candidate.weights,
        requester=candidate.requester,
        salt=NO_SECRET,
    )
    announcement = Announcement(
        study_digest=weight_list.study_digest,
        round=round_number,
        listed=tuple(weight.site for weight in candidate.weights),
        least_contributors=candidate.least,
        opens=purpose.plan.opened(run.rule.needs),
        purpose=purpose,
        model_version=state.model_version,
        model_digest=NO_SECRET,
        weight_list_digest=weight_list.digest(),
        closes_at_s=0,
        tag_seed_hash=NO_SECRET if run.study.tagged(purpose) else None,
    )
    check_for_every_site(announcement, weight_list, _terms(run), state.memory)
    return Announced(announcement, weight_list)


def answers(run: Run, state: RunState, announced: Announced) -> Answers:
    """The listed sites that are there and accept the list.

    What :func:`announce` has asked for every site is not asked again: only the weight that a site gives itself, which
    nobody but the site knows.
    """
    here = present(run, announced.announcement.listed, announced.announcement.round)
    refusals: dict[str, PolicyRefusal] = {}
    for site in here:
        own_weight = run.own_weight(site, state)
        if own_weight is not None:
            try:
                check_weight_list(
                    site.name, announced.announcement, announced.weight_list, _terms(run), state.memory, own_weight
                )
            except PolicyRefusal as refusal:
                refusals[site.name] = refusal
    taking_part = tuple(site.name for site in here if site.name not in refusals)
    return Answers(taking_part, tuple(refusals), next(iter(refusals.values()), None))


def present(run: Run, listed: Collection[str], round_number: int) -> tuple[SiteData, ...]:
    """Return the listed sites that are there, in roster order."""
    return tuple(
        site
        for site in run.contributors
        if site.name in listed and run.conditions.attendance.present(site.name, round_number)
    )


def _terms(run: Run) -> Terms:
    return Terms(run.study.parameters, run.names, run.rule, run.conditions.policy)


def inputs_of(
    run: Run, state: RunState, announced: Announced, trained: Trained, taking_part: tuple[str, ...]
) -> RoundInputs:
    """Collect everybody's trained updates; the requester's judgement is bound to what it knows."""
    number, opens = announced.announcement.round, announced.announcement.opens
    updates = {site: trained.updates[site] for site in run.names if site in taking_part}
    own = trained.updates[run.requester.name]
    probe = None
    if opens is Needs.INNER_PRODUCTS:
        probe = clipped_probe(run.training, run.requester, run.model_of(state), own.personal)
    facts = RequesterFacts(run.requester.name, own.norm)
    if probe is not None:
        of_probe = float(np.sqrt(squared_norm(probe))), float(np.sum(own.values * probe))
        facts = RequesterFacts(run.requester.name, own.norm, *of_probe)
    numerators = {weight.site: weight.numerator for weight in announced.weight_list.weights}
    numerators[facts.name] = announced.weight_list.own_numerator
    by = RoundRule(run.study.rule, run.rule, state.rule_state, run.study.parameters)
    bound_judge = partial(judge, requester=facts, numerators=numerators, by=by, round=number, opens=opens)
    return RoundInputs(
        announced.announcement,
        announced.weight_list,
        run.requester.name,
        own,
        updates,
        probe,
        bound_judge,
        run.study.parameters.clip_norm,
    )


def skipped(run: Run, state: RunState, announced: Announced) -> tuple[RunState, RoundRecord]:
    """Nothing was summed; the model stays."""
    number = announced.announcement.round
    state = replace(state, memory=remember_skip(state.memory, number))
    return state, round_record(run, state, number, RoundKind.SKIPPED, announced.weight_list.weights)


def measured_round(run: Run, state: RunState, announced: Announced) -> tuple[RunState, RoundRecord]:
    """All updates trained and measured with weight 1; the rule learns, and the model stays. Raises: UnusableUpdate"""
    number = announced.announcement.round
    sites = present(run, announced.announcement.listed, number)
    trained = Trained(round_updates(run, state, (run.requester, *sites), number), {})
    began = state
    state = replace(state, measured_rounds=state.measured_rounds + 1)
    personal = {name: update.personal for name, update in trained.updates.items()}
    state = run.with_personal(state, personal)
    summed = None
    if len(sites) >= announced.announcement.least_contributors:
        summed = run.summing.updates(inputs_of(run, state, announced, trained, tuple(site.name for site in sites)))
    tries = state.measure_tries + 1
    if summed is None or summed.judgement is None:
        after, record = skipped(run, state, announced)
        return replace(after, measure_tries=tries), record
    if not summed.judgement.measured_anybody:  # opened all the same: this model is not measured again
        after = replace(state, measure_tries=tries)
        record = round_record(run, after, number, RoundKind.MEASURED, announced.weight_list.weights)
        return after, record.model_copy(update={"failed_check": summed.judgement.failed})
    measured = summed.judgement.measured.model_copy(update={"variance": own_variance(run, began, number)})
    after = replace(state, rule_state=run.rule.apply(state.rule_state, measured), measure_tries=0)
    record = round_record(run, after, number, RoundKind.MEASURED, announced.weight_list.weights)
    return after, with_judgement(record, summed.judgement).model_copy(update={"took_part": measured.took_part})


def with_own_noise(run: Run, state: RunState, inputs: RoundInputs, summed: Summed, measured: Measured) -> Measured:
    """Add what a rule that learns from every sum needs besides what was opened."""
    if not isinstance(run.rule, RiskRule) or run.rule.measures or summed.average is None:
        return measured
    numerators = [inputs.weight_list.numerator_of(name) or 0 for name in measured.took_part]
    own = inputs.weight_list.own_numerator
    found = {
        "variance": own_variance(run, state, measured.round),
        "from_mean": distance_from_mean(summed.average, inputs.own.values, own, numerators),
    }
    return measured.model_copy(update=found)


def own_variance(run: Run, state: RunState, number: int) -> float:
    """tr Cov of the requester's clipped update of this round, from the state before it."""
    load_site(run.model, run.model_of(state), run.personal_of(run.requester, state))
    noise = update_noise(
        run.model,
        run.requester.train,
        run.study.training,
        round=number,
        seed=site_seed(run.study.seed or 0, run.requester.name),
        device=run.conditions.computing.device,
        clip_norm=run.study.parameters.clip_norm,
        loss=site_loss(run.study, run.conditions.plugin, run.requester.train.y),
    )
    return noise.variance
