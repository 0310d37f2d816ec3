"""A study's model after its last round: exported, used for new rows, compared with one of the site's own."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax
from torch import nn

from client_agent.data.findings import Findings
from client_agent.data.prepare import Tables, prepared, write
from client_agent.data.site_table import PLAIN
from client_agent.data.source import open_table
from client_agent.learning.data import Examples, LocalData
from client_agent.learning.study_file import parse_study_table, study_from_table
from client_agent.model.card import ModelCard
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import torch_learner
from harness.federation.processes import FederationSpec, SiteSpec
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import moiety, run_to_end
from tests.kit.present import present
from tests.ports import free_ports

SITES = ("requester", "c1", "c2", "c3")
STUDY = """
name = "heart"
rounds = 3
seed = 2
round_deadline_s = 600.0
[model]
kind = "linear"
[rule]
name = "fedavg"
[training]
update = "local_sgd"
epochs = 5
local_learning_rate = 0.5
server_learning_rate = 0.5
[parameters]
clip_norm = 16.0
[schema]
columns = [
  { name = "age", type = "number", unit = "years", range = [18, 120] },
  { name = "sex", type = "category", categories = ["f", "m"] },
  { name = "pain", type = "number", missing = "median" },
  { name = "ill", type = "category", role = "target", categories = ["no", "yes"] },
]
"""


def rows(place: int, count: int) -> list[list[str]]:
    random = np.random.default_rng(place)
    made = []
    for _ in range(count):
        age, sex = random.uniform(30, 90), random.choice(["f", "m"])
        pain = random.normal()
        ill = "yes" if (age - 60) / 10 + pain + random.normal() > 0 else "no"
        made.append([f"{age:.1f}", str(sex), f"{pain:.2f}" if random.random() > 0.1 else "", ill])
    return made


def table(path: Path, lines: list[list[str]], header: tuple[str, ...] = ("age", "sex", "pain", "ill")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


class Used:
    """A finished study, and where its sites' settings are."""

    def __init__(self, running: InMemoryFederation, folder: Path) -> None:
        self.running, self.folder = running, folder

    def config(self, site: str) -> str:
        return str(self.running.config(site))

    def export(self, site: str, *more: str) -> Path:
        out = self.folder / f"export-{len(list(self.folder.glob('export-*')))}"
        assert moiety("model", "export", "heart", "--config", self.config(site), "--out", str(out), *more) == 0
        return out


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    folder = tmp_path_factory.mktemp("heart")
    written = parse_study_table(STUDY, "heart.toml")
    nothing = Examples(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    sites = tuple(SiteSpec(name, LocalData(nothing, nothing), SitePolicy(least_isolation=0.0)) for name in SITES)
    spec = FederationSpec("heart", SITES[0], sites, seed=4, ports=free_ports(), bootstrap_samples=20)
    with InMemoryFederation(spec, folder / "federation", torch_learner) as running:
        for place, name in enumerate(SITES):
            findings = Findings()
            raw = open_table(table(folder / f"{name}.csv", rows(place, 80)), PLAIN, findings, header=True)
            write(folder / name, prepared(present(written.data_schema), Tables(raw, PLAIN, findings)))
            _use_folder(running.config(name), folder / name)
        roster = running.parties.roster.message
        running.start()
        run_to_end(running, study_from_table(written, "heart.toml", roster, None))
        running.stop_agents()
        yield Used(running, folder)


@pytest.fixture(scope="module")
def exported(used: Used) -> Path:
    """The requester's model, for tests that only read it."""
    return used.export("requester")


def _use_folder(config: Path, folder: Path) -> None:
    lines = [line for line in config.read_text().splitlines(keepends=True) if not line.startswith("data =")]
    config.write_text(f'data = "{folder}"\n' + "".join(lines))


def predicted(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_an_exported_model_is_the_same_bits_in_plain_torch(used: Used, tmp_path: Path) -> None:
    out = used.export("requester", "--torch-export")
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    plain.load_state_dict(load_file(out / "model.safetensors"))
    with np.load(used.folder / "requester" / "test.npz") as test:
        X = test["X"]
    with torch.no_grad():
        logits = plain(torch.from_numpy(X))
    program = torch.export.load(out / "model.pt2").module()
    assert torch.equal(program(torch.from_numpy(X)), logits)
    assert predict(out, features_file(used, tmp_path), tmp_path / "p.csv") == 0
    lines = predicted(tmp_path / "p.csv")
    assert lines[0] == ["probability of no", "probability of yes", "prediction"]
    expected = softmax(logits.numpy().astype(np.float64), axis=1)
    given = np.array([[float(value) for value in line[:2]] for line in lines[1:]])
    np.testing.assert_array_equal(given, expected)


def features_file(used: Used, folder: Path) -> Path:
    """The raw rows behind the requester's test part: whatever becomes of them must be its examples."""
    from client_agent.data.transformation import load_transformation, transform_file

    kept = load_transformation(used.folder / "requester" / "transformation.json")
    with np.load(used.folder / "requester" / "test.npz") as test:
        wanted = [row.tobytes() for row in test["X"]]
    raw = used.folder / "requester.csv"
    made = {row.tobytes(): line for row, line in zip(transform_file(raw, kept), rows(0, 80), strict=True)}
    return table(folder / "new.csv", [made[one][:3] for one in wanted], ("age", "sex", "pain"))


def predict(model: Path, file: Path, out: Path, *more: str) -> int:
    return moiety("model", "predict", "--model", str(model), "--input", str(file), "--out", str(out), *more)


def test_a_patients_id_goes_with_the_predictions(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [["007", "50", "f", "1"], ["0007", "60", "m", ""]]
    file = table(tmp_path / "new.csv", lines, ("mrn", "age", "sex", "pain"))
    assert predict(exported, file, tmp_path / "p.csv", "--keep", "mrn") == 0
    assert [line[0] for line in predicted(tmp_path / "p.csv")] == ["mrn", "007", "0007"]
    assert predict(exported, file, tmp_path / "q.csv", "--keep", "MRN") == 2
    assert "column 'MRN' is not there" in capsys.readouterr().err


def test_the_card_says_what_the_model_is(exported: Path) -> None:
    card = ModelCard.model_validate_json((exported / "card.json").read_bytes())
    assert (card.exported_at, card.ended.value, card.released, card.alone) == ("requester", "completed", 3, 0)
    assert [site.sums for site in card.sites] == [3] * 4
    assert [site.last_weight is None for site in card.sites].count(True) <= 1  # the requester has none of its own
    assert not any(f'"{name}"' in (exported / "card.json").read_text() for name in SITES[1:])
    assert {score.name for score in present(card.scores).scores} >= {"accuracy", "auroc", "log_loss"}
    text = (exported / "card.md").read_text()
    assert "LOCAL_ONLY" not in text
    assert card.study_digest in text
    assert "rule `fedavg`" in text


def test_a_contributor_holds_the_same_model(used: Used, exported: Path) -> None:
    theirs = used.export("c2")
    assert (theirs / "model.safetensors").read_bytes() == (exported / "model.safetensors").read_bytes()
    card = ModelCard.model_validate_json((theirs / "card.json").read_bytes())
    assert card.exported_at == "contributor"
    assert all(site.last_weight is None for site in card.sites)


@pytest.mark.parametrize(
    ("header", "line", "said"),
    [
        (("age", "sex"), ["50", "f"], "pain"),
        (("age", "sex", "pain"), ["50", "x", "1"], "sex"),
        (("age", "sex", "pain"), ["500", "f", "1"], "age"),
    ],
)
def test_a_table_of_other_columns_or_categories_is_refused(
    header: tuple[str, ...],
    line: list[str],
    said: str,
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = table(tmp_path / "new.csv", [line], header)
    assert predict(exported, file, tmp_path / "p.csv") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("name", ["transformation.json", "model.safetensors", "study.json"])
def test_a_changed_file_is_refused(
    name: str, used: Used, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(exported, tmp_path / "model")
    content = (out / name).read_bytes()
    (out / name).write_bytes(content.replace(b"1", b"2", 1))
    assert predict(out, features_file(used, tmp_path), tmp_path / "p.csv") == 2
    assert f"{name} is not the file that was exported" in capsys.readouterr().err


def test_a_transformation_that_is_not_the_cards_is_refused(
    used: Used, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(exported, tmp_path / "model")
    card = json.loads((out / "card.json").read_text())
    card["transformation_digest"] = "0" * 64
    (out / "card.json").write_text(json.dumps(card))
    assert predict(out, features_file(used, tmp_path), tmp_path / "p.csv") == 2
    assert "not the transformation that the model was exported with" in capsys.readouterr().err


def test_a_site_compares_with_what_it_would_have_trained_alone(used: Used, capsys: pytest.CaptureFixture[str]) -> None:
    assert moiety("model", "compare", "heart", "--config", used.config("c1"), "--draws", "40", "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["model_version"] == 3
    loss = next(one for one in found["scores"] if one["first"]["name"] == "log_loss")
    assert loss["first"]["value"] < math.log(2)
    assert loss["first"]["value"] != loss["second"]["value"]
    difference = loss["difference"]
    assert difference["value"] == pytest.approx(loss["first"]["value"] - loss["second"]["value"])
    assert difference["low"] <= difference["high"]
    width = difference["high"] - difference["low"]
    assert width < loss["first"]["high"] - loss["first"]["low"]  # paired: the examples' own luck cancels
    scores = json.loads((used.running.state("c1") / "studies" / "heart" / "scores.json").read_text())["scores"]
    assert loss["first"]["value"] == next(one["value"] for one in scores if one["name"] == "log_loss")
