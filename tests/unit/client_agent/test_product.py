"""The model of a journal as a site exports it: the card's words, ready features, batch norm, what is refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sksurv.linear_model.coxph import BreslowEstimator

from client_agent.learning.data import DataNames, Examples, LocalData, save_folder
from client_agent.learning.flat_vector import load_personal, load_vector
from client_agent.learning.metrics import Predicted, paired_scores
from client_agent.learning.models import completed, model_spec
from client_agent.learning.plugin import load_plugin, study_model, study_plugin
from client_agent.learning.settings import NO_SOURCES
from client_agent.model.card import ModelCard, card_markdown
from client_agent.model.export import Exported, export, load_exported
from client_agent.model.prediction import features_of, kept_columns, write_predictions
from client_agent.model.site_model import HeldModel, held_model
from client_agent.settings import AgentSettings
from client_agent.site.events import RoundEnd, RoundRecord, site_values
from client_agent.site.journal import FinishedModel, SiteState, StudyJournal
from client_agent.site.privacy_budget import Steps, epsilon_of
from client_agent.study.privacy_spending import training_of
from protocol.errors import ConfigurationError, StorageFull
from protocol.messages.control import (
    EndCause,
    ModelSpec,
    PrivacySpec,
    Purpose,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    TaskKind,
    TaskSpec,
    TrainingSpec,
)
from protocol.messages.model import CLASSES, Buffers
from protocol.policy.site_policy import SitePolicy
from protocol.shared_model import first_model
from tests.kit import studies
from tests.kit.present import present
from tests.unit.client_agent.test_buffers import PLUGIN, images, small_resnet
from tests.unit.client_agent.test_buffers import study as images_study
from tests.unit.host.test_files import files_of_at_most

NAMES = ("age", "pain", "pulse")
SPEC = model_spec("mlp", (3,), (4,), 2).named(NAMES, ("well", "ill"))


def study_of(spec: ModelSpec = SPEC, task: TaskSpec = CLASSES) -> Study:
    return studies.study_of(spec, name="alone", task=task)


def record(number: int, state: RoundEnd, took_part: tuple[str, ...] = ()) -> RoundRecord:
    alphas = site_values([("c1", 0.5)]) if took_part else ()
    return studies.round_record(number, state, took_part=took_part, alphas=alphas)


def held(study: Study | None = None, ended: StudyEndState | None = StudyEndState.LOCAL_ONLY) -> HeldModel:
    of = study or study_of()
    end = None
    if ended is not None:
        reason = "no list meets largest_share"
        message = StudyEnd(study_digest=of.digest(), state=ended, cause=EndCause.POLICY, reason=reason)
        end = Signed[StudyEnd](message=message)
    state = SiteState(study_digest=of.digest(), training_seed=1, model_version=2, ended_by=end, site_key="cd" * 32)
    network = study_model(of, study_plugin(of, PLUGIN))
    load_vector(network, first_model(of))
    records = (record(1, RoundEnd.RELEASED, ("requester", "c1")), record(2, RoundEnd.ALONE))
    return HeldModel(of, state, 2, first_model(of), network.eval(), records)


def exported(folder: Path, of: HeldModel | None = None, plugin: Path | None = None) -> Exported:
    """The model written below ``folder`` and loaded again."""
    export(of or held(), folder, folder / "out", is_requester=True)
    return load_exported(folder / "out", plugin, NO_SOURCES)


def test_a_study_that_ended_local_only_says_so_in_the_card(tmp_path: Path) -> None:
    card = export(held(), tmp_path, tmp_path / "out", is_requester=True)
    assert (card.local_only, card.released, card.alone) == (True, 1, 1)
    assert sorted((one.sums, one.last_weight) for one in card.sites if one.last_weight) == [(1, 0.5)]
    text = (tmp_path / "out" / "card.md").read_text()
    assert "LOCAL_ONLY: the shared part of this study ended after 1 of 5 rounds** (no list meets largest_share)" in text
    assert "1 rounds after that trained on the requester's own data alone" in text
    assert card.privacy is None
    assert "The sites added no noise: no bound is known on what the model" in text
    assert "c1" not in [one.site for one in card.sites]
    counts = record(1, RoundEnd.RELEASED).model_copy(update={"purpose": Purpose.COUNTS})
    counted = replace(held(), records=(counts, record(2, RoundEnd.RELEASED)))
    assert export(counted, tmp_path, tmp_path / "counted", is_requester=True).released == 1
    for ended, said in ((None, "The study is open"), (StudyEndState.FAILED, "The study is failed")):
        whole = replace(held(ended=ended), records=(record(1, RoundEnd.RELEASED),))
        folder = tmp_path / f"out-{ended}"
        assert said in card_markdown(export(whole, tmp_path, folder, is_requester=False))


def test_predictions_are_whole_or_not_there(tmp_path: Path) -> None:
    model, X = exported(tmp_path), np.ones((5000, 3), np.float32)
    with files_of_at_most(65536), pytest.raises(StorageFull, match=r"no space left for .*p\.csv"):
        write_predictions(model, X, tmp_path / "p.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert write_predictions(model, X, tmp_path / "p.csv") == 5000
    assert write_predictions(model, X, tmp_path / "new" / "p.csv") == 5000


def test_an_export_onto_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    for there in (False, True):
        out = tmp_path / "out"
        if there:
            out.mkdir()
        with files_of_at_most(1000), pytest.raises(StorageFull, match=r"no space left for .*out"):
            export(held(), tmp_path, out, is_requester=True)
        assert out.exists() is there
    export(held(), tmp_path, out, is_requester=True)
    with pytest.raises(ConfigurationError, match=r"holds card\.json, which this command did not make"):
        export(held(), tmp_path, out, is_requester=True)


def test_ready_features_are_compared_by_name(tmp_path: Path) -> None:
    model = exported(tmp_path)
    X = np.array([[1, 2, 3], [4, 5, 6.5]], np.float32)
    np.savez(tmp_path / "new.npz", X=X)
    (tmp_path / "new.csv").write_text("age,pain,pulse\n1,2,3\n4,5,6.5\n")
    (tmp_path / "old.csv").write_bytes(b"\xef\xbb\xbfsep=;\rage;pain;pulse\r\r1;2;3\r4;5;6.5\r")
    for name in ("new.npz", "new.csv", "old.csv"):
        np.testing.assert_array_equal(features_of(model, tmp_path / name, None), X)
    (tmp_path / "site.toml").write_text("decimal = ','\nseparator = ';'\nskip_lines = 1")
    (tmp_path / "own.csv").write_text("Export\nage;pain;pulse\n1;2;3\n4;5;6,5\n")
    np.testing.assert_array_equal(features_of(model, tmp_path / "own.csv", tmp_path / "site.toml"), X)
    with pytest.raises(ConfigurationError, match="--site is for tables"):
        features_of(model, tmp_path / "new.npz", tmp_path / "site.toml")
    assert write_predictions(model, X, tmp_path / "p.csv") == 2
    first, *lines = (tmp_path / "p.csv").read_text().splitlines()
    assert first == "probability of well,probability of ill,prediction"
    with torch.no_grad():
        expected = held().network(torch.from_numpy(X)).argmax(dim=1).tolist()
    assert [line.rpartition(",")[2] for line in lines] == [("well", "ill")[one] for one in expected]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age,pulse,pain\n1,2,3\n", "not the model's, in the model's order"),
        ("age,pain\n1,2\n", r"missing are \['pulse'\]"),
        ("age,pain,pulse\n1,2\n", r"another number of fields in 1 rows \(1\): expected 3 fields"),
        ("age,pain,pulse\n1,2,high\n", r"column 'pulse': no number in 1 rows \(1\)"),
        ("age,pain,pulse\n1,2,nan\n", r"column 'pulse': NaN or infinity in 1 rows \(1\)"),
        ("age,pain,pulse\n1,2,3\n\n4,5,1e39\n", "all finite"),
        ('age,pain,pulse\n1,2,"3\n4,5,6\n', "line 2 cannot be read as fields: a quote that begins there is not closed"),
        ("age;pain;pulse\n1;2;3\n", r"separator = ';' in the site's file \(--site FILE.toml\)"),
        ("age,pain,pulse\n", "no row"),
        ("", "the file is empty"),
    ],
)
def test_other_features_are_refused(text: str, said: str, tmp_path: Path) -> None:
    model = exported(tmp_path)
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        model.outputs(features_of(model, tmp_path / "new.csv", None))


def test_batch_norm_goes_with_the_statistics_of_the_site_that_exports(tmp_path: Path) -> None:
    of = images_study(Buffers.LOCAL)
    whole = held(of)
    network = small_resnet(Buffers.LOCAL)
    load_vector(network, first_model(of))
    own = np.linspace(0.1, 2, 34, dtype=np.float32)
    load_personal(network, own)
    card = export(replace(whole, network=network.eval()), tmp_path, tmp_path / "out", is_requester=False)
    assert "statistics are those of the exporting site" in card_markdown(card)
    model = load_exported(tmp_path / "out", PLUGIN, NO_SOURCES)
    X = images(1).X
    with torch.no_grad():
        np.testing.assert_array_equal(model.outputs(X), network(torch.from_numpy(X)).numpy())
    with pytest.raises(ConfigurationError, match=r"plug-in's model.*--config"):
        load_exported(tmp_path / "out", None, NO_SOURCES)


def test_what_a_site_does_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "x"
    settings = AgentSettings(site="c1", roster=path, keys=path, data=path, state_dir=tmp_path, ca=path)
    with pytest.raises(ConfigurationError, match="this site has no study 'alone'"):
        held_model(settings, "alone")
    of, journal = study_of(), StudyJournal(tmp_path, "alone")
    journal.write(journal.folder / "study.json", Signed[Study](message=of))
    journal.write_site_state(SiteState(study_digest=of.digest(), training_seed=1, model_version=0))
    with pytest.raises(ConfigurationError, match="no sum was applied at this site"):
        held_model(settings, "alone")
    journal.save_model(1, first_model(of), of.digest())
    journal.write_site_state(SiteState(study_digest=of.digest(), training_seed=1, model_version=1))
    assert held_model(settings, "alone").version == 1


def test_the_difference_of_a_model_to_itself_is_nothing() -> None:
    random = np.random.default_rng(1)
    y = random.integers(0, 2, 30)
    one = Predicted(CLASSES, random.normal(size=(30, 2)).astype(np.float32), y)
    for paired in paired_scores(one, one, 5, 3):
        assert (paired.difference.value, paired.difference.low, paired.difference.high) == (0, 0, 0)
    better = Predicted(CLASSES, (np.eye(2)[y] * 8).astype(np.float32), y)
    accuracy = paired_scores(better, one, 20, 3)[0]
    assert accuracy.first.value == 1
    assert present(accuracy.difference.low) > 0


def test_a_card_of_a_study_with_noise_has_its_epsilon_and_by_what_it_was_counted(tmp_path: Path) -> None:
    privacy = PrivacySpec(record_clip=0.5, noise_multiplier=2.0)
    study = study_of().model_copy(update={"privacy": privacy, "training": TrainingSpec(batch_size=20)})
    earlier = study.model_copy(update={"name": "earlier"})
    spent = tuple(training_of(of, privacy, 100, number) for of in (earlier, study) for number in (1, 2, 3))
    policy = SitePolicy(epsilon=4.0, delta=1e-3)
    of_study = replace(held(study), spent=spent, policy=policy)
    card = exported(tmp_path, of_study).card
    own, said = present(card.privacy), card_markdown(card)
    assert own.epsilon == pytest.approx(epsilon_of([Steps(0.2, 2.0, 3)], 1e-3))
    assert own.spent == pytest.approx(epsilon_of([Steps(0.2, 2.0, 6)], 1e-3))
    assert 0 < present(own.used) < 1
    for text in (
        f"Epsilon {own.epsilon:.2f} at delta 0.001 for each record",
        f"{own.spent:.2f} with its other studies ({own.used:.0%} of a budget of 4)",
        "Accountant: dp-accounting",
        "(3 trainings, noise multiplier 2, gradients clipped to 0.5)",
    ):
        assert text in said
    assert "finished without noise" not in said
    finish = FinishedModel(choose="held_out", shared_version=2, pull=0.1, seen=80, held=20)
    finished = export(replace(of_study, finish=finish), tmp_path, tmp_path / "finished", is_requester=True)
    assert "finished without noise on the requester's records" in card_markdown(finished)


def test_cards_that_older_versions_wrote_are_read(tmp_path: Path) -> None:
    privacy = PrivacySpec(record_clip=0.5, noise_multiplier=2.0)
    study = study_of().model_copy(update={"privacy": privacy})
    card = exported(tmp_path, held(study)).card
    for then in ({"clip_norm": None}, {"unit": "site", "record_clip": None, "clip_norm": 1.0}):
        written = card.model_dump(mode="json") | {"privacy": present(card.privacy).model_dump() | then}
        assert ModelCard.model_validate_json(json.dumps(written)).privacy is not None


TIED = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.o = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
        self.b.weight = self.a.weight
        self.o.weight = torch.nn.Parameter(torch.ones(3, 2).t())

    def forward(self, x):
        return RETURNED


def model():
    return Net()


def data(path):
    raise OSError


def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch.X), batch.y)
"""
RETURNED = "self.o(torch.relu(self.b(torch.relu(self.a(x)))))"


def of_plugin(folder: Path, returned: str = RETURNED) -> HeldModel:
    plugin = folder / "tied.py"
    plugin.write_text(TIED.replace("RETURNED", returned))
    empty = ModelSpec(kind="plugin", inputs=(3,), classes=2, layers=()).named(NAMES, ("well", "ill"))
    of = study_of(completed(empty, load_plugin(plugin).made(0)))
    network = study_model(of, study_plugin(of, plugin))
    load_vector(network, first_model(of))
    return replace(held(study_of()), study=of, network=network.eval())


def test_a_model_with_tied_weights_is_exported_and_predicts(tmp_path: Path) -> None:
    tied = of_plugin(tmp_path)
    model = exported(tmp_path, tied, tmp_path / "tied.py")
    assert model.network.get_parameter("b.weight") is model.network.get_parameter("a.weight")
    X = np.arange(12, dtype=np.float32).reshape(4, 3)
    with torch.no_grad():
        np.testing.assert_array_equal(model.outputs(X), tied.network(torch.from_numpy(X)).numpy())


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("self.o(x)[:, :1]", r"for 4 rows the model gives \[4, 1\], not \[4, 2\]"),
        ("(self.o(x), x)", r"tied\.py: the forward pass fails: AttributeError"),
        ("self.o(x[:, 1:])", r"tied\.py, line 13: the forward pass fails in layer 'o': RuntimeError"),
        ("self.o(x) / 0", "outputs are no numbers for some rows"),
    ],
)
def test_a_model_that_does_not_predict_is_one_line(tmp_path: Path, returned: str, said: str) -> None:
    model = exported(tmp_path, of_plugin(tmp_path, returned), tmp_path / "tied.py")
    with pytest.raises(ConfigurationError, match=said) as found:
        model.outputs(np.ones((4, 3), np.float32))
    assert "\n" not in str(found.value)


def test_columns_are_kept_beside_the_predictions(tmp_path: Path) -> None:
    model = exported(tmp_path)
    (tmp_path / "new.csv").write_text('id,age,pain,pulse,ward\n0101,1,2,3,"a,b"\n0099,4,5,6.5,\n')
    ids = np.array(["0101", "0099"])
    np.savez(tmp_path / "new.npz", X=np.array([[1, 2, 3], [4, 5, 6.5]], np.float32), id=ids, ward=np.array(["a,b", ""]))
    for name in ("new.csv", "new.npz"):
        path, keep = tmp_path / name, ("id", "ward", "id")
        X = features_of(model, path, None, keep)
        out = tmp_path / f"{name}.out"
        assert write_predictions(model, X, out, kept_columns(model, path, None, keep, len(X))) == 2
        first, *lines = csv.reader(out.read_text().splitlines())
        assert first == ["id", "ward", "probability of well", "probability of ill", "prediction"]
        assert [line[:2] for line in lines] == [["0101", "a,b"], ["0099", ""]]
    np.testing.assert_array_equal(features_of(model, tmp_path / "new.csv", None, ("id", "ward", "age")), X)
    with pytest.raises(ConfigurationError, match=r"not known \['id'\]"):
        features_of(model, tmp_path / "new.csv", None, ("ward",))


@pytest.mark.parametrize(
    ("name", "text", "keep", "said"),
    [
        (
            "new.csv",
            "age,pain,pulse\n1,2,3\n",
            "id",
            r"column 'id' is not there; the file has \['age', 'pain', 'pulse'\]",
        ),
        ("new.csv", "id,id,age,pain,pulse\n1,1,1,2,3\n", "id", "column 'id' is more than once there"),
        ("new.csv", "prediction,age,pain,pulse\n1,1,2,3\n", "prediction", "a column of the predictions has that name"),
        ("new.npz", "", "id", "no such array with one value a row"),
        ("new.npz", "", "X", "no such array with one value a row"),
        ("new.npz", "", "short", "1 values for 2 rows"),
    ],
)
def test_what_cannot_be_kept_is_said(name: str, text: str, keep: str, said: str, tmp_path: Path) -> None:
    model = exported(tmp_path)
    path = tmp_path / name
    path.write_text(text)
    if name == "new.npz":
        np.savez(path, X=np.ones((2, 3), np.float32), short=np.ones(1))

    def predicted() -> None:
        X = features_of(model, path, None, [keep])
        write_predictions(model, X, tmp_path / "p.csv", kept_columns(model, path, None, [keep], len(X)))

    with pytest.raises(ConfigurationError, match=said):
        predicted()
    assert not (tmp_path / "p.csv").exists()


def survivors(folder: Path, seed: int = 0) -> tuple[HeldModel, Examples]:
    """A Cox model, and a data folder of 200 patients with tied times, counted in whole months."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(200, 3)).astype(np.float32)
    lasted = np.ceil(random.exponential(20 * np.exp(-X[:, 0])) + 0.01)
    left = np.ceil(random.uniform(1, 60, 200))
    y = np.column_stack([np.minimum(lasted, left), lasted <= left]).astype(np.float32)
    train = Examples(X, y)
    save_folder(folder / "data", LocalData(train, train, names=DataNames(NAMES)))
    of = study_of(model_spec("linear", (3,), (), 1).named(NAMES, ()), TaskSpec(kind=TaskKind.SURVIVAL))
    network = study_model(of, study_plugin(of, None))
    load_vector(network, np.array([1.0, 0.1, -0.2, 3.0], np.float32))
    return replace(held(), study=of, network=network.eval()), train


def survival_card(folder: Path, of: HeldModel, *horizons: float) -> ModelCard:
    return export(of, folder / "data", folder / "out", is_requester=True, horizons=horizons)


def test_survival_is_predicted_at_the_horizons_of_the_export(tmp_path: Path) -> None:
    """As scikit-survival's estimator has it, whose whole curve lists the times of events; the folder does not."""
    of, train = survivors(tmp_path)
    card = survival_card(tmp_path, of, 24, 12, 24.0)
    assert [one.time for one in card.baseline] == [12, 24]
    model = load_exported(tmp_path / "out", None, NO_SOURCES)
    new = train.X[:7]
    assert write_predictions(model, new, tmp_path / "p.csv") == 7
    first, *lines = csv.reader((tmp_path / "p.csv").read_text().splitlines())
    assert first == ["log hazard", "survival at 12", "survival at 24"]
    hazards = model.outputs(train.X)[:, 0].astype(np.float64)
    whole = BreslowEstimator().fit(hazards, train.y[:, 1] > 0, train.y[:, 0].astype(np.float64))
    expected = np.stack([curve([12.0, 24.0]) for curve in whole.get_survival_function(hazards[:7])])
    found = np.array(lines, np.float64)
    np.testing.assert_allclose(found[:, 1:], expected, rtol=1e-9)
    assert ((found[:, 2] < found[:, 1]) & (found[:, 1] < 1)).all()
    said = card_markdown(card)
    assert "survival at 12, 24: by a cumulative baseline hazard (Breslow) of the training rows of the requester" in said
    kept = json.loads((tmp_path / "out" / "card.json").read_text())["baseline"]
    assert [sorted(one) for one in kept] == [["log_hazard", "time"]] * 2


def test_an_event_at_the_horizon_counts(tmp_path: Path) -> None:
    """Times are kept in float32, in which 0.1 is a little more than 0.1."""
    of, _ = survivors(tmp_path)
    y = np.column_stack([np.r_[np.full(6, 0.1), np.full(6, 0.2)], np.ones(12)]).astype(np.float32)
    part = Examples(np.zeros((12, 3), np.float32), y)
    save_folder(tmp_path / "data", LocalData(part, part, names=DataNames(NAMES)))
    (one,) = survival_card(tmp_path, of, 0.1).baseline
    assert one.log_hazard == pytest.approx(np.log(6 / 12) - 3.0)


@pytest.mark.parametrize(
    ("horizons", "said"),
    [
        (
            (12, 12.5),
            r"--horizon 12.5: fewer than 5 training patients of this site have their event between 12 and 12.5",
        ),
        ((0.5,), r"--horizon 0.5: fewer than 5 .* up to 0.5"),
        ((5000,), r"--horizon 5000: this site followed no training patient that long"),
        ((-1,), "give times above 0"),
        ((float("nan"),), "give times above 0"),
    ],
)
def test_horizons_that_show_single_patients_are_refused(horizons: tuple[float, ...], said: str, tmp_path: Path) -> None:
    of, _ = survivors(tmp_path)
    with pytest.raises(ConfigurationError, match=said):
        survival_card(tmp_path, of, *horizons)
    assert not (tmp_path / "out").exists()


def test_a_site_without_events_has_no_baseline(tmp_path: Path) -> None:
    of, train = survivors(tmp_path)
    train.y[:, 1] = 0
    save_folder(tmp_path / "data", LocalData(train, train, names=DataNames(NAMES)))
    with pytest.raises(ConfigurationError, match="fewer than 5 training patients of this site have their event up to"):
        survival_card(tmp_path, of, 12)
    survival_card(tmp_path, of)
    model = load_exported(tmp_path / "out", None, NO_SOURCES)
    write_predictions(model, train.X[:1], tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == "log hazard"
    with pytest.raises(ConfigurationError, match="predicts no survival"):
        survival_card(tmp_path, held(), 12)


@pytest.mark.parametrize("name", ["none", "file"])
def test_what_is_no_exported_folder_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigurationError, match=rf"{name} holds no card\.json: name a folder of 'moiety model export'"
    ):
        load_exported(tmp_path / name, None, NO_SOURCES)


def test_a_folder_of_an_earlier_version_still_predicts(tmp_path: Path) -> None:
    exported(tmp_path)
    path = tmp_path / "out" / "card.json"
    card = json.loads(path.read_text())
    assert (card.pop("baseline"), card.pop("simulated")) == ([], False)
    path.write_text(json.dumps(card))
    assert load_exported(tmp_path / "out", None, NO_SOURCES).card.baseline == ()
