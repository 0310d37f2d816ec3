"""The record of one round, with the requester's accuracy after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from client_agent.learning.trainer import evaluate
from client_agent.requester.judging import Judgement
from client_agent.site.events import site_values
from harness.engine.history import RoundKind, RoundRecord
from harness.engine.run_state import Run, RunState
from harness.engine.site_updates import CPU, load_site
from protocol.wire.messages import ListedWeight


def round_record(
    run: Run, state: RunState, round_number: int, kind: RoundKind, weights: tuple[ListedWeight, ...]
) -> RoundRecord:
    """What every round has: the list, the rule's weights and the model after it."""
    vector = run.model_of(state)
    load_site(run.model, vector, run.personal_of(run.requester, state))
    test = evaluate(run.model, run.requester.test, CPU)
    validation = run.requester.validation
    return RoundRecord(
        round=round_number,
        kind=kind,
        handed_out=weights,
        alphas=site_values((site.name, site.alpha) for site in state.rule_state.sites),
        distances=(),
        requester_norm=0.0,
        took_part=(),
        clipped_share=0.0,
        test_accuracy=test.accuracy,
        test_loss=test.loss,
        class_accuracy=test.class_accuracy,
        model_norm=float(np.linalg.norm(vector.astype(np.float64))),
        validation_accuracy=evaluate(run.model, validation, CPU).accuracy if len(validation) else None,
    )


def with_judgement(record: RoundRecord, judgement: Judgement) -> RoundRecord:
    """The record with everything that the requester opened."""
    measured = judgement.measured
    return replace(
        record,
        distances=site_values(measured.distances),
        norms=site_values(measured.norms),
        inner_products=site_values(measured.inner_products),
        pairs=measured.pairs,
        requester_norm=measured.requester_norm,
        failed_check=judgement.failed,
        not_selected=judgement.not_selected,
    )
