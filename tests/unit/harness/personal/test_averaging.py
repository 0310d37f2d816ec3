"""Comparisons under the protocol: the same models within a derived bound, for every scheme that shares."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.models import build_model, dimension, model_spec
from harness.datasets.registry import DataRequest
from harness.datasets.site_data import Federation, SiteData
from harness.engine.all_sites import SchemeName, Setting, UnderTheProtocol, in_the_open, scheme_of
from harness.engine.updates import ClippedUpdate
from harness.simulate import comparison
from harness.simulate.command import simulate
from harness.simulate.comparison import ResultFolder, Run, execute, parse_personal_case
from harness.simulate.run_one import Protection
from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.messages.control import ModelSpec, RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters
from tests import layered_softmax as reference
from tests.unit.harness.personal.sites import CPU, FILE, SPEC, federation

SITES = federation().sites
MODEL = model_spec("linear", (2,), (), 3, personal=("input", "target"))
WHOLE = TrainingSpec(
    update="local_sgd", epochs=2, batch_size=1000, local_learning_rate=0.0625, server_learning_rate=0.0625
)
"""All rows in every step, so that their order matters to rounding alone."""
ROUNDS = 3
STUDY = Study(
    name="personal",
    roster_digest="00" * 32,
    parameters=StudyParameters(dimension=dimension(MODEL), clip_norm=4.0, least_contributors=3),
    rule=RuleSpec(name=RuleName.FEDAVG),
    model=MODEL,
    training=WHOLE,
    rounds=ROUNDS,
    correlation_source="dealer",
    seed=3,
)


def rows_of(site: SiteData) -> reference.Rows:
    return reference.Rows(site.train.X.astype(np.float64), np.eye(3)[site.train.y])


def setting(*, secure: bool, spec: ModelSpec = MODEL) -> Setting:
    model = build_model(spec, 8)
    average = UnderTheProtocol.of(STUDY, SITES, model) if secure else in_the_open
    return Setting.of(model, SITES, 3, WHOLE, 4.0, CPU, average)


def after_rounds(name: SchemeName, setup: Setting, rounds: int = ROUNDS):
    scheme = scheme_of(name, setup, setup.one_by_one())
    state = scheme.start()
    for number in range(1, rounds + 1):
        state, clipped = scheme.round(state, number)
        assert clipped.clipped_share == 0
    return state


def test_secure_and_plain_models_differ_by_fixed_point_alone() -> None:
    """Both stay within their bound of the float64 reference, personal layers too, and the bound says something."""
    plain, secure = (after_rounds(SchemeName.AVERAGED, setting(secure=s)) for s in (False, True))
    places = (*reference.INPUT, *reference.TARGET)
    rows = [rows_of(site) for site in SITES]
    start = plain_start()
    exact = {}
    for unit, state in ((0.0, plain), (1 / STUDY.parameters.scale, secure)):
        training = reference.Training(places, WHOLE.epochs, 0.0625, 0.0625, unit)
        exact[unit] = found = reference.after(start, rows, training, ROUNDS)
        assert np.linalg.norm(state.models[0] - found.shared) <= found.shared_off
        for place in range(len(SITES)):
            difference = np.linalg.norm(state.personal[place] - found.personal(place, places))
            assert difference <= found.personal_off(place, places)
    allowed = sum(found.shared_off for found in exact.values())
    apart = np.linalg.norm(secure.models[0].astype(np.float64) - plain.models[0])
    assert 0 < apart <= allowed
    moved = float(np.linalg.norm(plain.models[0] - start.shared))
    assert allowed < moved / 500


def plain_start() -> reference.State:
    vector = setting(secure=False).initial.astype(np.float64)
    return reference.first(vector[:6].reshape(3, 2), vector[6:], len(SITES))


def test_apfl_shares_its_updates_the_same_way() -> None:
    """Its shared model is FedAvg's; what differs is the rounding of one round."""
    plain, secure = (after_rounds(SchemeName.MIXED, setting(secure=s, spec=SPEC), 1) for s in (False, True))
    # from one model, five updates move by less than one ring unit per coordinate, so their average too; float32 rounds
    # the average and the model, below 4
    unit = 1 / STUDY.parameters.scale
    assert 0 < np.abs(secure.models - plain.models).max() <= 0.0625 * unit + 2 * 4 * 2.0**-24
    np.testing.assert_array_equal(secure.own, plain.own)


def test_only_the_shared_coordinates_are_shared() -> None:
    summed = UnderTheProtocol.of(STUDY, SITES, build_model(MODEL, 3))
    updates = [ClippedUpdate(np.full(dimension(MODEL), 0.25 * place), False) for place in range(5)]
    # 0.5 and its summands lie on the grid: nothing is rounded
    np.testing.assert_array_equal(summed(1, updates), np.full(9, 0.5, np.float32))
    assert summed.summing.study.parameters.dimension == 9


def test_a_skipped_round_is_an_error() -> None:
    summed = UnderTheProtocol.of(STUDY, SITES, build_model(MODEL, 3))
    beyond = [ClippedUpdate(np.full(9, 16.0), False)] * 5  # twelve times the clip norm: the range check finds it
    with pytest.raises(ProtocolViolation, match="round 1 was skipped"):
        summed(1, beyond)


@pytest.mark.parametrize(
    "rule", [RuleSpec(name=RuleName.FEDAVG_BY_SAMPLES), RuleSpec(name=RuleName.FEDAVG, norm_bound=2.0)]
)
def test_another_rule_than_the_uniform_average_is_refused(rule: RuleSpec) -> None:
    with pytest.raises(ConfigurationError, match="its rule is 'fedavg', without norm_bound"):
        UnderTheProtocol.of(STUDY.model_copy(update={"rule": rule}), SITES, build_model(MODEL, 3))


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(request: DataRequest) -> Federation:
        return federation()

    monkeypatch.setattr(comparison, "load_data", load)


@pytest.mark.usefixtures("small_data")
def test_the_command_runs_every_scheme_that_can_be_protected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "small.toml", tmp_path / "out"
    path.write_text('correlation_source = "dealer"\n' + FILE)
    simulate(path, str(tmp_path), protection=Protection.SECURE, out=out, device="cpu")
    told = " ".join(capsys.readouterr().out.split())
    assert "centralised: pools the sites' data, so it has no protected run; left out" in told
    lines = {line.variant: line for line in ResultFolder(out).lines()}
    assert set(lines) == {"ifedavg", "fedavg", "apfl", "local"}
    assert {line.protection for line in lines.values()} == {"secure"}
    assert all(math.isfinite(line.last.mean_f1) for line in lines.values())
    with pytest.raises(ConfigurationError, match="holds secure runs, these are plain; give another --out"):
        simulate(path, str(tmp_path), out=out, device="cpu")
    with pytest.raises(ConfigurationError, match="variant 'centralised' pools the sites' data"):
        simulate(path, str(tmp_path), protection=Protection.SECURE, out=out, only="centralised", device="cpu")
    with pytest.raises(ConfigurationError, match="with --protection plain or secure"):
        simulate(path, str(tmp_path), protection=Protection.CKKS, out=out, device="cpu")


class Killed(Exception):
    """Stands for kill -9."""


@pytest.mark.usefixtures("small_data")
def test_a_stopped_secure_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    case = parse_personal_case('correlation_source = "dealer"\n' + FILE, "small.toml")
    planned = Run(case, case.only(("ifedavg",))[0], 0, Path("anywhere"), CPU, secure=True)
    whole, stopped = ResultFolder(tmp_path / "whole"), ResultFolder(tmp_path / "stopped")
    line = execute(planned, whole)

    def kill(evaluated: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        execute(planned, stopped, kill)
    again = execute(planned, stopped)
    assert again.model_copy(update={"seconds": line.seconds}) == line
    for name in ("models", "personal"):
        np.testing.assert_array_equal(
            getattr(stopped.final_state("ifedavg", 0), name), getattr(whole.final_state("ifedavg", 0), name)
        )
