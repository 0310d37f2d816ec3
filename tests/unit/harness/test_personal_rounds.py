"""iFedAvg as a study: FedAvg of the shared layers in one process, plain and secure, personal layers at their sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from client_agent.learning.data import Examples
from client_agent.learning.evaluation import evaluate
from client_agent.learning.flat_vector import load_personal, load_vector, model_vector
from client_agent.learning.models import build_model, dimension, model_spec
from harness.datasets.site_data import SiteData
from harness.engine.run_state import Attendance, Progress, RunState
from harness.simulate.store import Checkpoint
from protocol.messages.control import RuleName, Study, TrainingSpec
from protocol.parameters import StudyParameters
from tests import layered_softmax as reference
from tests.kit.small_runs import CPU, small_study
from tests.unlimited import run_plain, run_protected

CENTRES = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])


def site(name: str, seed: int, rows: int) -> SiteData:
    """Three classes around fixed centres."""
    random = np.random.default_rng([seed, 77])

    def part(count: int) -> Examples:
        y = random.integers(0, 3, size=count)
        return Examples((CENTRES[y] + random.normal(size=(count, 2))).astype(np.float32), y)

    return SiteData(name, part(rows), part(0), part(20))


SITES = tuple(site(f"s{k}", k, 8 + k) for k in range(5))
MODEL = model_spec("linear", (2,), (), 3, personal=("input", "target"))
TRAINING = TrainingSpec(update="local_sgd", batch_size=4, local_learning_rate=0.5, server_learning_rate=0.5)


def study(rounds: int, rule: RuleName = RuleName.FEDAVG) -> Study:
    return small_study(rule, rounds, model=MODEL, training=TRAINING, clip_norm=64.0, seed=3)


def test_the_requester_is_judged_with_its_own_layers() -> None:
    seen: list[Progress] = []
    history = run_plain(study(4), SITES, after_round=seen.append)
    model = build_model(MODEL, 3)
    load_vector(model, history.final_model)
    load_personal(model, seen[-1].state.personal[0])
    assert history.test_accuracy == evaluate(model, SITES[0].test, CPU).accuracy


WHOLE = TrainingSpec(
    update="local_sgd", epochs=2, batch_size=1000, local_learning_rate=0.0625, server_learning_rate=0.0625
)
"""All rows in every step, so that their order matters to rounding alone."""


def test_secure_and_plain_models_differ_by_fixed_point_alone() -> None:
    """Both stay within their bound of the float64 reference, personal layers too, and the bound says something."""
    parameters = StudyParameters(dimension=dimension(MODEL), clip_norm=4.0, least_contributors=3)
    of = study(3).model_copy(update={"training": WHOLE, "parameters": parameters, "seed": 8})
    ended: list[Progress] = []
    plain = run_plain(of, SITES, after_round=ended.append)
    secure = run_protected(of, SITES, correlation_source="dealer", after_round=ended.append)
    assert all(record.clipped_share == 0 for record in (*plain.rounds, *secure.rounds))
    places = (*reference.INPUT, *reference.TARGET)
    rows = [reference.Rows(site.train.X.astype(np.float64), np.eye(3)[site.train.y]) for site in SITES]
    first = model_vector(build_model(MODEL, 8)).astype(np.float64)
    start = reference.first(first[:6].reshape(3, 2), first[6:], len(SITES))
    allowed = 0.0
    for unit, state in ((0.0, ended[2].state), (1 / parameters.scale, ended[5].state)):
        found = reference.after(start, rows, reference.Training(places, WHOLE.epochs, 0.0625, 0.0625, unit), 3)
        assert np.linalg.norm(state.vector - found.shared) <= found.shared_off
        for place in range(len(SITES)):
            difference = np.linalg.norm(state.personal[place] - found.personal(place, places))
            assert difference <= found.personal_off(place, places)
        allowed += found.shared_off
    assert 0 < np.linalg.norm(secure.final_model.astype(np.float64) - plain.final_model) <= allowed
    assert allowed < float(np.linalg.norm(plain.final_model - start.shared)) / 500


def test_a_stopped_run_goes_on_with_its_personal_layers(tmp_path: Path) -> None:
    seen: list[Progress] = []
    whole = run_plain(study(4), SITES, after_round=seen.append)
    Checkpoint(tmp_path, "run", "identity", RunState).save(seen[1], 1.0)
    resumed, _ = Checkpoint(tmp_path, "run", "identity", RunState).load()
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
