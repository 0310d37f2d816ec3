"""A run whose sites train in one batched call is the run of sites that train one by one, up to float additions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client_agent.learning.data import Examples
from client_agent.learning.models import dimension, model_spec
from harness.datasets.site_data import SiteData
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import Attendance, Conditions
from harness.engine.training import ON_CPU, Computing
from harness.engine.updates import PlainSum
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import ModelSpec, RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy

CPU = torch.device("cpu")
BATCHED = Computing(CPU, batched=True)
NAMES = ("requester", "near", "middle", "far", "other")
LOCAL_SGD = TrainingSpec(update="local_sgd", batch_size=8, epochs=1, local_learning_rate=0.1, server_learning_rate=0.1)
LINEAR = model_spec("linear", (3,), (), 2)


def sites(scale: float = 1.0) -> tuple[SiteData, ...]:
    made = []
    for number, name in enumerate(NAMES):
        random = np.random.default_rng(number)
        X = (scale * random.normal(size=(16 + 4 * number, 3))).astype(np.float32)
        part = Examples(X, (X[:, 0] + 0.3 * number * X[:, 1] > 0).astype(np.int64))
        made.append(SiteData(name, part, Examples(X[:0], part.y[:0]), part))
    return tuple(made)


def run(
    computing: Computing,
    rule: RuleName = RuleName.FEDAVG,
    model: ModelSpec = LINEAR,
    training: TrainingSpec = LOCAL_SGD,
    given: tuple[SiteData, ...] | None = None,
) -> RunHistory:
    study = Study(
        name="test",
        roster_digest="00" * 32,
        parameters=StudyParameters(dimension=dimension(model), clip_norm=16.0, least_contributors=3),
        rule=RuleSpec(name=rule),
        model=model,
        training=training,
        rounds=2,
        seed=9,
    )
    away = Attendance(missed=frozenset({(2, "far")}))
    conditions = Conditions(policy=SitePolicy(least_isolation=0.0), attendance=away, computing=computing)
    return run_rounds(study, given or sites(), PlainSum(), conditions, protection="plain")


@pytest.mark.parametrize("rule", [RuleName.FEDAVG, RuleName.WEIGHT_EROSION])
@pytest.mark.parametrize("model", [LINEAR, model_spec("linear", (3,), (), 2, personal=("input",))])
def test_a_batched_run_is_the_run_one_by_one(rule: RuleName, model: ModelSpec) -> None:
    one_by_one, together = run(ON_CPU, rule, model), run(BATCHED, rule, model)
    # Two rounds of at most 4 steps, each a sum of fewer than 64 products below 4 in another order, carried on with a
    # slope below 4; the server's rate is .1.
    bound = 0.1 * 2 * 4 * 64 * 4 * 4 * 2.0**-24
    np.testing.assert_allclose(together.final_model, one_by_one.final_model, rtol=0, atol=bound)
    assert [record.took_part for record in together.rounds] == [NAMES[1:], ("near", "middle", "other")]
    start = one_by_one.rounds[0].model_norm
    assert abs(one_by_one.rounds[1].model_norm - start) > 100 * bound


def test_single_gradients_are_computed_one_by_one() -> None:
    training = TrainingSpec(batch_size=8, server_learning_rate=0.5)
    np.testing.assert_array_equal(
        run(BATCHED, training=training).final_model, run(ON_CPU, training=training).final_model
    )


def test_a_batched_update_that_is_no_number_is_refused_too() -> None:
    with pytest.raises(UnusableUpdate):
        run(BATCHED, given=sites(scale=1e37))


def test_what_the_command_line_chooses() -> None:
    assert Computing.chosen("cpu", None) == ON_CPU
    assert (str(Computing.chosen("cpu", True)), str(ON_CPU)) == ("cpu, batched", "cpu")
    with pytest.raises(ConfigurationError, match="allowed are auto, cpu, cuda"):
        Computing.chosen("tpu", None)
