"""iFedAvg as a study: FedAvg of the shared layers in one process, plain and secure, personal layers at their sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from client_agent.learning.evaluation import evaluate
from client_agent.learning.flat_vector import load_personal, load_vector
from client_agent.learning.models import build_model, dimension, model_spec
from harness.engine.all_sites import Averaged, Setting
from harness.engine.history import RoundRecord
from harness.engine.run_state import Attendance, Progress, RunState
from harness.simulate.store import Checkpoint
from protocol.messages.control import RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters
from tests.unit.harness.personal.sites import CPU, federation
from tests.unlimited import run_plain, run_protected

SITES = federation().sites
MODEL = model_spec("linear", (2,), (), 3, personal=("input", "target"))
TRAINING = TrainingSpec(update="local_sgd", batch_size=4, local_learning_rate=0.5, server_learning_rate=0.5)


def study(rounds: int, rule: RuleName = RuleName.FEDAVG) -> Study:
    return Study(
        name="personal",
        roster_digest="00" * 32,
        parameters=StudyParameters(dimension=dimension(MODEL), clip_norm=64.0, least_contributors=3),
        rule=RuleSpec(name=rule),
        model=MODEL,
        training=TRAINING,
        rounds=rounds,
        seed=3,
    )


def by_scheme(rounds: int):
    setup = Setting.of(build_model(MODEL, 3), SITES, 3, TRAINING, 64.0, CPU)
    scheme = Averaged(setup, setup.one_by_one())
    state = scheme.start()
    for number in range(1, rounds + 1):
        state, _ = scheme.round(state, number)
    return state


def test_a_study_with_personal_layers_is_the_averaged_scheme() -> None:
    seen: list[Progress] = []
    history = run_plain(study(4), SITES, after_round=seen.append)
    state = by_scheme(4)
    np.testing.assert_array_equal(history.final_model, state.models[0])
    np.testing.assert_array_equal(seen[-1].state.personal, state.personal)
    model = build_model(MODEL, 3)
    load_vector(model, state.models[0])
    load_personal(model, state.personal[0])
    assert history.test_accuracy == evaluate(model, SITES[0].test, CPU).accuracy


def test_the_secure_run_differs_by_fixed_point_alone() -> None:
    plain, secure = run_plain(study(1), SITES), run_protected(study(1), SITES, correlation_source="dealer")
    # stochastic rounding moves each of the five updates by less than one ring unit in a coordinate, so their average
    # too; the float32 average and model round by 2^-24 of values below 4
    unit = 1 / study(1).parameters.scale
    difference = np.abs(secure.final_model - plain.final_model)
    assert difference.max() <= 0.5 * unit + 2 * 4 * 2.0**-24
    assert difference.max() > 0


def test_a_stopped_run_goes_on_with_its_personal_layers(tmp_path: Path) -> None:
    seen: list[Progress] = []
    whole = run_plain(study(4), SITES, after_round=seen.append)
    Checkpoint(tmp_path, "run", "identity", (RunState, RoundRecord)).save(seen[1], 1.0)
    resumed, _ = Checkpoint(tmp_path, "run", "identity", (RunState, RoundRecord)).load()
    assert resumed is not None
    np.testing.assert_array_equal(resumed.state.personal, seen[1].state.personal)
    np.testing.assert_array_equal(run_plain(study(4), SITES, resume=resumed).final_model, whole.final_model)


def test_only_sites_that_train_move_on() -> None:
    seen: list[Progress] = []
    away = Attendance(missed=frozenset({(1, "s2")}))
    run_plain(study(1), SITES, after_round=seen.append, attendance=away)
    moved = [bool(np.any(row != [0, 0, 1, 1, 0, 0, 0, 1, 1, 1])) for row in seen[-1].state.personal]
    assert moved == [True, True, False, True, True]
    alone: list[Progress] = []
    run_plain(study(1, RuleName.LOCAL), SITES, after_round=alone.append)
    moved = [bool(np.any(row != [0, 0, 1, 1, 0, 0, 0, 1, 1, 1])) for row in alone[-1].state.personal]
    assert moved == [True, False, False, False, False]
