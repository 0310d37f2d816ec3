"""TensorBoard and MLflow read what the result lines say, each run once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.simulate.run_line import RunLine
from harness.simulate.tracking import log_all, points_of, tracker_of
from moiety import Case, Study, simulate
from protocol.errors import ConfigurationError

CASE = Case(
    Study("tracked", 2, {"kind": "linear", "inputs": [30]}, {"clip_norm": 4.0}),
    "breast_cancer",
    {"erosion": {"rule": {"name": "weight_erosion"}}, "local": {"rule": {"name": "local"}}},
    others={"policy": {"least_isolation": 0.0}},
)


@pytest.fixture(scope="module")
def lines() -> tuple[RunLine, ...]:
    return simulate(CASE).lines


def test_tensorboard_has_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second time nothing is new
        erosion, _ = simulate(CASE, tmp_path, track=["tensorboard"]).lines
    folders = sorted((tmp_path / "tensorboard").iterdir())
    assert [folder.name.split("-")[1] for folder in folders] == ["erosion", "local"]
    read = EventAccumulator(str(folders[0]))
    read.Reload()
    site = next(iter(erosion.alpha))
    for name, values in (("test_accuracy", erosion.test_accuracy), (f"alpha/{site}", erosion.alpha[site])):
        assert [event.value for event in read.Scalars(name)] == pytest.approx(list(values), rel=1e-6)
        assert [event.step for event in read.Scalars(name)] == [1, 2]
    assert len(list(folders[1].iterdir())) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of its own packages
def test_mlflow_has_every_number_and_each_run_once(
    tmp_path: Path, lines: tuple[RunLine, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for _ in range(2):
        log_all([tracker_of("mlflow", tmp_path)], lines)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("tracked").experiment_id])
    assert {run.data.params["variant"] for run in runs} == {"erosion", "local"}
    assert len(runs) == 2
    (erosion,) = (run for run in runs if run.data.params["variant"] == "erosion")
    history = client.get_metric_history(erosion.info.run_id, "test_loss")
    assert [(point.step, point.value) for point in history] == list(enumerate(lines[0].test_loss, 1))


def test_points_are_what_is_a_number(lines: tuple[RunLine, ...]) -> None:
    line = lines[0].model_copy(update={"test_loss": (None, 0.5)})
    assert [(point.round, point.value) for point in points_of(line) if point.name == "test_loss"] == [(2, 0.5)]


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("tensorboard", "torch.utils.tensorboard", "tensorboard"), ("mlflow", "mlflow", "mlflow-skinny")],
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=f"install it with: pip install {package}$"):
        tracker_of(name, tmp_path)


def test_what_is_wrong_is_named(tmp_path: Path, lines: tuple[RunLine, ...]) -> None:
    with pytest.raises(ConfigurationError, match="--track: found 'paper', allowed are tensorboard, mlflow"):
        tracker_of("paper", tmp_path)
    with pytest.raises(ConfigurationError, match="track: give out"):
        simulate(CASE, track=["tensorboard"])

    class Away:
        def log(self, line: RunLine) -> None:
            raise ConnectionError("nobody there")

    with pytest.raises(ConfigurationError, match="Away: ConnectionError: nobody there; the runs are done and kept"):
        log_all([Away()], lines)
