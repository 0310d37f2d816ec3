"""What the sites put into a round, with the requester's judgement bound to what it knows; and a round without a sum."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from client_agent.requester.measuring.judging import RequesterFacts, RoundRule, judge
from harness.engine.history import RoundKind, RoundRecord
from harness.engine.isolation import Trained
from harness.engine.record import round_record
from harness.engine.run_state import Announced, Run, RunState
from harness.engine.site_updates import ClippedUpdate, clipped_probe, squared_norm
from harness.engine.summing import RoundInputs
from protocol.parameters import Needs
from protocol.policy.memory import remember_skip


def inputs_of(
    run: Run, state: RunState, announced: Announced, trained: Trained, taking_part: tuple[str, ...]
) -> RoundInputs:
    """What everybody has trained; the requester's judgement is bound to what it knows."""
    number, opens = announced.announcement.round, announced.announcement.opens
    updates = {site: trained.updates[site] for site in run.names if site in taking_part}
    own = trained.updates[run.requester.name]
    probe = None
    if opens is Needs.INNER_PRODUCTS:
        probe = clipped_probe(run.training, run.requester, run.model_of(state), own.personal)
    facts = _requester_facts(run, own, probe)
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


def _requester_facts(run: Run, own: ClippedUpdate, probe: NDArray[np.float64] | None) -> RequesterFacts:
    if probe is None:
        return RequesterFacts(run.requester.name, own.norm)
    return RequesterFacts(
        run.requester.name, own.norm, float(np.sqrt(squared_norm(probe))), float(np.sum(own.values * probe))
    )
