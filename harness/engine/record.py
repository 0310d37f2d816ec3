"""The record of one round, with the requester's accuracy after it."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from client_agent.learning.evaluation import NOTHING
from client_agent.requester.measuring.judging import Judgement
from client_agent.scoring.score import FinalScores
from client_agent.site.events import opened_values, site_values
from harness.engine.history import RoundKind, RoundRecord
from harness.engine.run_state import Run, RunState
from harness.engine.site_updates import load_site
from protocol.errors import UnusableUpdate
from protocol.wire.messages import ListedWeight

WORSE_BY: Final = 1e4
"""A model whose loss is so many times the first model's (or 1, if that is more) has diverged."""
LONGER_BY: Final = 1e9
"""As is one whose parameters are so many times as long: float32 has no digits left for a step."""


def round_record(
    run: Run, state: RunState, round_number: int, kind: RoundKind, weights: tuple[ListedWeight, ...]
) -> RoundRecord:
    """What every round has: the list, the rule's weights and the model after it."""
    vector = run.model_of(state)
    load_site(run.model, vector, run.personal_of(run.requester, state))
    judge, train = run.judge, run.requester.train
    assessed = judge.assess(run.model, run.requester.test, train, run.followed)
    test, validation = assessed.evaluation, run.requester.validation
    validated = judge.assess(run.model, validation, train, run.followed) if len(validation) else NOTHING
    return RoundRecord(
        round=round_number,
        kind=kind,
        handed_out=weights,
        alphas=site_values((site.name, site.alpha) for site in state.rule_state.sites),
        requester_norm=0.0,
        took_part=(),
        clipped_share=0.0,
        test_accuracy=math.nan if test.accuracy is None else test.accuracy,
        test_loss=test.loss,
        class_accuracy=test.class_accuracy,
        model_norm=float(np.linalg.norm(vector.astype(np.float64))),
        validation_accuracy=validated.evaluation.accuracy,
        test_scores=assessed.scores,
        validation_scores=validated.scores,
    )


def final_scores(run: Run, state: RunState, samples: int) -> FinalScores:
    """All metrics of the run's last model on the requester's test part, with intervals over ``samples`` draws."""
    load_site(run.model, run.model_of(state), run.personal_of(run.requester, state))
    return run.judge.final_scores(run.model, run.requester.test, run.requester.train, samples, run.study.seed or 0)


def with_judgement(record: RoundRecord, judgement: Judgement) -> RoundRecord:
    """The record with everything that the requester opened."""
    changes = {
        "requester_norm": judgement.measured.requester_norm,
        "failed_check": judgement.failed,
        "not_selected": judgement.not_selected,
    }
    return record.model_copy(update=opened_values(judgement.measured) | changes)


def require_no_divergence(record: RoundRecord, first: RoundRecord) -> None:
    """Numbers may still be finite, and a gradient 0 because everything saturates: that is no local optimum.

    ``first`` is the model before round 1. Raises: UnusableUpdate
    """
    loss, length = record.test_loss, record.model_norm
    fine = loss <= WORSE_BY * max(1.0, first.test_loss) and length <= LONGER_BY * max(1.0, first.model_norm)
    if not fine and not (math.isnan(first.test_loss) and math.isfinite(length)):
        raise UnusableUpdate(
            f"round {record.round}: the model has diverged: its test loss is {loss:.3g} and its length {length:.3g}, "
            f"before round 1 they were {first.test_loss:.3g} and {first.model_norm:.3g}; take smaller learning rates"
        )
