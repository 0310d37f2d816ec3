"""A site's plug-in in simulation: its data, loss and metrics as at an agent, and tried before round 1."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.simulate.options import ProtectionName, StudyOptions
from harness.simulate.study_run import run_simulation
from moiety import main
from protocol.errors import ConfigurationError, UnusableUpdate

PLUGIN = """
import numpy as np
import torch


def model():
    return torch.nn.Linear(2, 1)


def data(path):
    X, y = np.load(path / "X.npy"), np.load(path / "y.npy")
    return (X[10:], y[10:]), (X[:10], y[:10])


def loss(model, batch):
    return (model(batch.X)[:, 0] - batch.y[:, 0]).abs().mean() + 0 * batch.y[:, 1].mean()


def metrics(model, data):
    return {"worst": (model(data.X)[:, 0] - data.y[:, 0]).abs().max(), "examples": len(data.X)}
"""
STUDY = """
name = "own"
rounds = 12
[task]
kind = "own"
[model]
kind = "plugin"
inputs = [2]
outputs = 1
[rule]
name = "fedavg"
[training]
batch_size = 16
server_learning_rate = 0.2
[parameters]
clip_norm = 8.0
least_contributors = 3
"""


def options(folder: Path, plugin: str = PLUGIN, protection: ProtectionName = "plain") -> StudyOptions:
    random = np.random.default_rng(0)
    for site in ("north", "south", "east", "west"):
        place = folder / "data" / site
        place.mkdir(parents=True, exist_ok=True)
        X = random.normal(size=(40, 2)).astype(np.float32)
        np.save(place / "X.npy", X)
        np.save(place / "y.npy", np.column_stack([X @ [1.0, -2.0], X[:, 0]]))
    (folder / "study.toml").write_text(STUDY)
    (folder / "own.py").write_text(plugin)
    return StudyOptions(
        folder / "study.toml", str(folder / "data"), "north", "0", protection=protection, site_plugin=folder / "own.py"
    )


@pytest.mark.parametrize("protection", ["plain", "secure"])
def test_a_plug_in_trains_and_scores_as_at_an_agent(tmp_path: Path, protection: ProtectionName) -> None:
    result = run_simulation(options(tmp_path, protection=protection))
    first, *_, last = ({s.name: s.value for s in scores} for scores in result.runs[0].scores_by_round)
    assert result.metric == "worst"
    assert first["examples"] == 10
    assert last["worst"] is not None
    assert first["worst"] is not None
    assert last["worst"] < 0.6 * first["worst"]
    assert result.accuracy.values == (last["worst"],)
    assert result.runs[0].test_accuracy is None
    json.loads(result.model_dump_json())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Linear(2, 1)", "Linear(3, 1)", r"own\.py, line 16: the loss or its gradient fails: RuntimeError"),
        (".abs().mean() +", ".abs() +", r"loss\(\) gave shape \[16|loss\(\) gave shape \[30"),
        ('"worst": (', '"Worst!": (', r"metrics\(\) gave dict, expected"),
        ("len(data.X)}", '"many"}', r"metrics\(\) gave str for 'examples', expected a number"),
        ("return {", "return 1 / 0, {", r"own\.py, line 20: metrics\(\) fails: ZeroDivisionError"),
    ],
)
def test_a_plug_in_that_fails_is_refused_before_round_1(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PLUGIN
    with pytest.raises(ConfigurationError, match=said):
        run_simulation(options(tmp_path, PLUGIN.replace(old, new)))


def test_outputs_that_the_task_does_not_take_are_refused_before_round_1(tmp_path: Path) -> None:
    given = options(tmp_path, PLUGIN.replace("len(data.X)", "1").replace("np.column_stack([X @", "(X @"))
    for site in (tmp_path / "data").iterdir():
        np.save(site / "y.npy", np.load(site / "y.npy")[:, :1])
    given.study_file.write_text(
        STUDY.replace('"own"\n[model]', '"regression"\n[model]').replace("outputs = 1", "outputs = 1")
    )
    (tmp_path / "own.py").write_text(PLUGIN.replace("Linear(2, 1)", "Linear(2, 2)").replace("batch.y[:, 1]", "batch.y"))
    with pytest.raises(ConfigurationError, match=r"the model gives \[30, 2\], task 'regression' expects \[30, 1\]"):
        run_simulation(given)


def test_a_study_with_a_plug_in_needs_the_file(tmp_path: Path) -> None:
    given = options(tmp_path)
    without = replace(given, site_plugin=None)
    with pytest.raises(ConfigurationError):
        run_simulation(without)


LOCAL = '\nbuffers = "local"'
OF_CLASSES = """
import numpy as np
import torch
from torch import nn


def data(path):
    X, y = np.load(path / "X.npy"), (np.load(path / "y.npy")[:, 0] > 0).astype(np.int64)
    return (X[10:], y[10:]), (X[:10], y[:10])


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch.X), batch.y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        CHANGED

    def forward(self, x):
        return FORWARD


def model():
    return Net()
"""
FORWARD = "self.o(torch.relu(self.b(torch.relu(self.a(x)))))"


def of_classes(folder: Path, changed: str, forward: str = FORWARD) -> StudyOptions:
    given = options(folder, OF_CLASSES.replace("CHANGED", changed).replace("FORWARD", forward))
    text = STUDY.replace('kind = "own"', 'kind = "classes"').replace("outputs = 1", "classes = 2")
    given.study_file.write_text(text.replace("rounds = 12", "rounds = 2").replace("[training]", SGD))
    return given


SGD = """[training]
update = "local_sgd"
"""


def test_tied_weights_run_as_they_are(tmp_path: Path) -> None:
    result = run_simulation(of_classes(tmp_path, "self.b.weight = self.a.weight"))
    assert (result.runs[0].end, result.runs[0].released_rounds) == ("completed", 2)


@pytest.mark.parametrize(
    ("changed", "forward", "said"),
    [
        ("self.o = nn.LazyLinear(2)", FORWARD, "layer 'o.weight' has no shape before its first batch"),
        (
            "self.e = nn.Embedding(9, 2, sparse=True)",
            "self.o(self.e(x.clamp(0, 8).long()).sum(1))",
            "layer 'e.weight' has a sparse gradient",
        ),
        ("self.none = nn.Parameter(torch.zeros(0, 2))", FORWARD, "layer 'none' is empty"),
        ("self.b = nn.Linear(3, 2)", FORWARD, "line 23: the forward pass fails in layer 'b': RuntimeError"),
        ("", "(self.a(x), x)", r"the model gives tuple, task 'classes' expects \[30, 2\]"),
        ("", "self.a(x) * float('nan')", "has a gradient that is not finite"),
        ("", "self.a(x) + 0j", r"the model gives torch\.complex64\[30, 2\]"),
        (
            "",
            "self.a(x) if not self.training else self.b(x[:, :1])",
            r"own\.py, line 23: the loss or its gradient fails in layer 'b': Runt",
        ),
        ("self.h = torch.zeros(2)", "setattr(self, 'h', self.h + self.a(x)[0]) or self.o(x + self.h)", "a second time"),
    ],
)
def test_a_model_that_cannot_be_shared_is_one_line_that_names_the_layer(
    tmp_path: Path, changed: str, forward: str, said: str
) -> None:
    with pytest.raises((ConfigurationError, UnusableUpdate), match=said) as found:
        run_simulation(of_classes(tmp_path, changed, forward))
    assert "\n" not in str(found.value)


def test_batch_norm_takes_a_left_over_example_and_names_a_site_that_has_only_one(tmp_path: Path) -> None:
    given = of_classes(tmp_path, "self.b = nn.BatchNorm1d(2)")
    text = given.study_file.read_text().replace("[model]", '[model]\nbuffers = "local"')
    given.study_file.write_text(text.replace("batch_size = 16", "batch_size = 29"))  # 30 examples: one is left over
    assert run_simulation(given).runs[0].released_rounds == 2
    for name in ("X", "y"):
        path = tmp_path / "data" / "east" / f"{name}.npy"
        np.save(path, np.load(path)[:11])
    with pytest.raises(ConfigurationError, match="site 'east' has 1 training example in batches of 29"):
        run_simulation(given)


@pytest.mark.parametrize(
    ("changed", "buffers"), [("self.b.weight = self.a.weight", ""), ("self.b = nn.BatchNorm1d(2)", LOCAL)]
)
def test_a_simulated_model_is_saved_and_predicts(tmp_path: Path, changed: str, buffers: str) -> None:
    """With the requester's own statistics where those stay: its accuracy is the one that the simulation printed."""
    given = of_classes(tmp_path, changed)
    given.study_file.write_text(given.study_file.read_text().replace("[model]", f"[model]{buffers}"))
    given = replace(given, save_model=tmp_path / "saved")
    result = run_simulation(given)
    new, plugin = tmp_path / "new.npz", tmp_path / "own.py"
    X = np.load(tmp_path / "data" / "north" / "X.npy")[:10]
    y = np.load(tmp_path / "data" / "north" / "y.npy")[:10, 0] > 0
    np.savez(new, X=X, patient=np.array([f"{number:03}" for number in range(10)]))
    told = ["--model", tmp_path / "saved", "--input", new, "--out", tmp_path / "p.csv", "--plugin", plugin]
    with pytest.raises(SystemExit, match="0"):
        main(["model", "predict", *map(str, told), "--keep", "patient"])
    lines = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert [line[0] for line in lines] == ["patient", *(f"{number:03}" for number in range(10))]
    right = np.array([line[-1] == "1" for line in lines[1:]]) == y
    assert right.mean() == pytest.approx(result.runs[0].test_accuracy)
    card = (tmp_path / "saved" / "card.md").read_text()
    assert "**SIMULATED: trained in one place on the data of all sites; no site took part.**" in card
    assert "## How well it does at the simulated requester\n" in card
    assert "10 test examples of that site alone" in card
    with pytest.raises(ConfigurationError, match="saved exists; name a new folder"):
        run_simulation(given)
    several = replace(given, seeds="3,4", save_model=tmp_path / "several")
    run_simulation(several)
    assert sorted(path.name for path in (tmp_path / "several").iterdir()) == ["seed-3", "seed-4"]


def test_a_case_saves_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "heart_disease", "--save-model", str(tmp_path / "saved")])
    assert ended.value.code == 2
    assert "--save-model: a case has many models" in capsys.readouterr().err
