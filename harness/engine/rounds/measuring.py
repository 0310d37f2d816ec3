"""Rounds that measure updates and sum nothing, and what the requester works out about its own (docs/protocol.md 8)."""

from __future__ import annotations

from dataclasses import replace

from client_agent.learning.at_requester.update_noise import update_noise
from client_agent.learning.plugin import site_loss
from client_agent.learning.training_seeds import site_seed
from harness.engine.announcing import present
from harness.engine.history import RoundKind, RoundRecord
from harness.engine.isolation import Trained
from harness.engine.record import round_record, with_judgement
from harness.engine.round_training import round_updates
from harness.engine.rounds.inputs import inputs_of, skipped
from harness.engine.run_state import Announced, Run, RunState
from harness.engine.site_updates import load_site
from harness.engine.summing import RoundInputs, Summed
from protocol.rules.interface import Measured
from protocol.rules.risk.shrinkage import distance_from_mean
from protocol.rules.risk.terms import RiskRule


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
    """What a rule that learns from every sum needs besides what was opened."""
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
        device=run.computing.device,
        clip_norm=run.study.parameters.clip_norm,
        loss=site_loss(run.study, run.plugin, run.requester.train.y),
    )
    return noise.variance
