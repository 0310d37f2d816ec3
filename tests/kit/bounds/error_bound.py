r"""How far apart the models of a secure and a plain run can be, same seeds and same weights (docs/protocol.md 2, 9).

Let theta be the secure model, phi the plain one, delta_r = ||theta_r - phi_r||. The averages of a round are at most
L delta_r + e_r apart (:mod:`tests.kit.bounds.regression_facts`). Where both models take ``model - eta * average``,

    delta_{r+1} <= q_r delta_r + eta e_r + a_r

    q_r   max(1, eta L - 1) when no site's update was clipped: I - eta H with 0 <= H <= L.
          1 + eta L_1 otherwise.
    a_r   2 u (2 eta C + M), rounding in eta * average and in the subtraction; M = ||phi_r|| + delta_r.

Where a server optimiser applies the average, see :mod:`tests.kit.bounds.adaptive_bound`. Rounds that were skipped, or
summed class counts, leave both models as they were.

Source: Nesterov, Lectures on Convex Optimization, 2.1 (I - eta H)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.datasets.site_data import SiteData
from harness.engine.history import RoundKind, RunHistory
from protocol.messages.control import Study
from protocol.parameters import StudyParameters
from protocol.shared_model import first_model, state_vectors
from tests.kit.bounds.adaptive_bound import adaptive_difference, adaptive_rounds
from tests.kit.bounds.regression_facts import (
    UNIT,
    RegressionFacts,
    RoundFacts,
    average_error,
    regression_facts,
    round_facts,
)


def difference_bound(
    rounds: Sequence[RoundFacts], model: RegressionFacts, parameters: StudyParameters, step: float
) -> float:
    """A bound on ||theta - phi|| after ``rounds``, hence on every coordinate; ``step`` is the server's eta."""
    delta = 0.0
    for facts in rounds:
        norm = facts.model_norm + delta
        growth = 1 + step * model.one_site if facts.clipped else max(1.0, step * facts.smoothness - 1)
        averages = step * average_error(facts, model, parameters, norm)
        delta = growth * delta + averages + 2 * UNIT * (2 * step * parameters.clip_norm + norm)
    return delta


def bound_of_run(history: RunHistory, study: Study, sites: Sequence[SiteData]) -> float:
    """The bound for a softmax regression that ``history``, a plain run, trained; it needs every site's data.

    Raises: ConfigurationError for another model, or updates that are not gradients
    """
    model = regression_facts(study, sites)
    initial = float(np.linalg.norm(first_model(study).astype(np.float64)))
    norms = [initial, *(record.model_norm for record in history.rounds)]
    moved = [
        (record, norm)
        for record, norm in zip(history.rounds, norms, strict=False)
        if record.kind in (RoundKind.RELEASED, RoundKind.ALONE)
    ]
    rounds = [round_facts(history, record, norm, study, sites) for record, norm in moved]
    step = study.training.server_learning_rate
    if state_vectors(study.rule.name) == 1:
        return difference_bound(rounds, model, study.parameters, step)
    trajectory = adaptive_rounds(history, study, sites)
    return adaptive_difference(rounds, trajectory, model, study.parameters, study.rule, step)
