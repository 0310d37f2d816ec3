"""Study files, the steps of the shipped ones, and variants."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.sampling import drawing_probability
from client_agent.site.privacy_budget import Steps, epsilon_of
from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.datasets.transforms import pooled
from harness.demo.studies import BREAST_CANCER, DIGITS, HEART_DISEASE, study_of
from harness.simulate.case import parse_case, read_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import Protection
from harness.simulate.study_files import STUDIES, read_study_file, study_names
from harness.simulate.summary import remarks_on, summarise_case
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName
from protocol.policy.site_policy import check_steps_allowed
from tests.kit.cases import case_text
from tests.unit.harness.simulation.test_case import POLICY, ROSTER

# --- study files ------------------------------------------------------------------------------------------------------

MATRIX = """
name = "try-{kind}-{sites}"
[matrix]
names = "try_{kind}_{sites}"
[matrix.axes]
kind = [{ kind = "a", hidden = 3 }, { kind = "b", hidden = 4 }]
size = [{ sites = 2, rate = 0.5 }, { sites = 4, rate = 0.25 }]
[case]
sites = "{sites}"
data = "data {kind}{sites}"
[model]
hidden = ["{hidden}", 8]
[[variant]]
rule = { step = "{rate}" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "try.toml").write_text(MATRIX)
    (tmp_path / "alone.toml").write_text('name = "alone"\n[model]\nkind = "linear"\n')
    (tmp_path / "roster.toml").write_text('federation = "clinics"\n')
    (tmp_path / "torn.toml").write_text("name = ")
    return tmp_path


def test_a_study_of_a_matrix_is_what_a_file_of_its_own_would_hold(folder: Path) -> None:
    found = read_study_file(folder / "try_b_4.toml")
    assert found.source == f"{folder / 'try.toml'} (try_b_4)"
    assert found.tables == {
        "name": "try-b-4",
        "case": {"sites": 4, "data": "data b4"},
        "model": {"hidden": [4, 8]},
        "variant": [{"rule": {"step": 0.25}}],
    }
    assert type(found.tables["case"]["sites"]) is int
    assert found.is_case


def test_every_row_meets_every_row_of_the_other_axes(folder: Path) -> None:
    """A file without a model is no study, and an unreadable file is refused as another one than was asked for."""
    assert study_names(folder) == ("alone", "try_a_2", "try_a_4", "try_b_2", "try_b_4")


def test_a_file_goes_before_a_study_of_that_name(folder: Path) -> None:
    (folder / "try_a_2.toml").write_text('name = "mine"\n')
    assert read_study_file(folder / "try_a_2.toml").tables == {"name": "mine"}


@pytest.mark.parametrize("name", ["try_c_2.toml", "try_a_2", "try_a_2.txt"])
def test_an_unknown_study_is_refused_with_the_near_ones_and_the_command_that_lists_all(folder: Path, name: str) -> None:
    meant = "did you mean try_.*[?] 'moiety simulate --list' names"
    with pytest.raises(ConfigurationError, match=f"{name} cannot be read: .*; {meant}") as refused:
        read_study_file(folder / name)
    assert "alone" not in refused.value.detail
    (folder / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"none.toml cannot be read: [^?]*; 'moiety simulate --list'"):
        read_study_file(folder / "empty" / "none.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_study_file(folder / "nowhere" / "none.toml")


def test_a_matrix_as_such_is_no_study(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"try.toml holds many studies: name one of try_a_2, .*, try_b_4$"):
        read_study_file(folder / "try.toml")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"{hidden}"', '"{hiden}"', r"no axis has 'hiden', found in '\{hiden\}'; they have kind, hidden, sites, rate"),
        ("try_{kind}_{sites}", "try_{kind}_{size}", "no axis has 'size'"),
        ("try_{kind}_{sites}", "try_{kind}", "makes 'try_a' twice"),
        ("try_{kind}_{sites}", "../{kind}", "'names'"),
        ("sites = 4, rate", "sites = 4, kind", "two axes have a value for 'kind'"),
        ("sites = 4, rate = 0.25", "sites = [4]", r"\[matrix\]: key 'axes.size.1"),
        ('[{ kind = "a", hidden = 3 }, { kind = "b", hidden = 4 }]', "[]", r"\[matrix\]: key 'axes.kind'"),
    ],
)
def test_what_is_wrong_in_a_matrix_is_named(folder: Path, before: str, after: str, message: str) -> None:
    assert before in MATRIX
    (folder / "try.toml").write_text(MATRIX.replace(before, after))
    with pytest.raises(ConfigurationError, match=f"try.toml: .*{message}"):
        read_study_file(folder / "try_b_4.toml")


def test_a_bare_name_is_a_study_that_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command is given."""
    monkeypatch.chdir(tmp_path)
    assert read_study_file(Path("mnist_b_10")).tables["name"] == "mnist-b-10"
    assert read_study_file(Path("heart_disease")).source == str(STUDIES / "heart_disease.toml")
    with pytest.raises(
        ConfigurationError, match=r"^mnist_b_11 cannot be read.*did you mean mnist_b_10 or .*simulate --list"
    ):
        read_study_file(Path("mnist_b_11"))


def test_every_case_of_a_page_is_there() -> None:
    pages = Path(__file__).parents[4] / "docs" / "results"
    commands = re.compile(r"^moiety simulate harness/studies/(\w+)\.toml", re.MULTILINE)
    asked = {name for page in pages.glob("*.md") for name in commands.findall(page.read_text(encoding="utf-8"))}
    mnist = {name for name in study_names() if name.startswith("mnist_")}
    assert len(asked) > 25
    assert asked <= set(study_names())
    assert len(mnist) == 28
    assert {read_study_file(STUDIES / f"{name}.toml").source for name in mnist} == {
        f"{STUDIES / 'mnist.toml'} ({name})" for name in mnist
    }


@pytest.mark.parametrize(("name", "delta", "fewest"), [("noise_heart", 0.001, 31), ("noise_mnist", 1e-05, 5605)])
def test_noise_keeps_its_epsilon_at_the_smallest_site(name: str, delta: float, fewest: int) -> None:
    for epsilon in (8, 4, 2, 1):
        study = read_case(STUDIES / f"{name}.toml").variant(f"fedavg_{epsilon}").study
        assert study.privacy is not None
        drawn = drawing_probability(fewest, study.training.batch_size)
        spent = epsilon_of([Steps(drawn, study.privacy.noise_multiplier, study.rounds)], delta)
        assert 0.95 * epsilon < spent <= epsilon


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [BREAST_CANCER, DIGITS, HEART_DISEASE], ids=lambda settings: settings.name)
@pytest.mark.parametrize("rule", [RuleName.WEIGHT_EROSION, RuleName.FEDAVG, RuleName.WFEDAVG, RuleName.FEDADAM])
def test_the_demo_is_within_the_default_caps(settings, rule: RuleName) -> None:
    federation = digits_sites(0) if settings is DIGITS else breast_cancer_five_hospitals(0)
    check_steps_allowed(study_of(settings, federation, rule, ROSTER.digest(), 0), POLICY)


# --- variants ---------------------------------------------------------------------------------------------------------

FREE = "policy = { least_contributors = 1, largest_share = 1.0, least_isolation = 0.0 }"
FIRST, SECOND = (site.name for site in breast_cancer_five_hospitals(0).contributors[:2])


def run(folder: Path, variant: str, case: str = "", protection: Protection = Protection.PLAIN, clip: float = 4.0):
    text = case_text(f'[[variant]]\nname = "changed"\n{variant}', case=f"{case}\n{FREE}", clip_norm=clip)
    return run_case(parse_case(text, "case.toml"), CaseOptions(folder, protection=protection))


def one(folder: Path, variant: str, **more: object) -> RunLine:
    (line,) = run(folder, variant, **more)  # type: ignore[arg-type]
    return line


def test_a_variant_has_a_model_and_rounds_of_its_own(tmp_path: Path) -> None:
    line = one(tmp_path, 'rounds = 2\nrule = { name = "fedavg" }\nmodel = { kind = "mlp", hidden = [3] }')
    assert len(line.kind) == 2
    assert len(line.final_model or ()) == 30 * 3 + 3 + 3 * 2 + 2


def test_a_pooled_run_trains_alone_on_everything(tmp_path: Path) -> None:
    line = one(tmp_path, 'pooled = true\nrule = { name = "local" }')
    assert set(line.kind) == {"alone"}
    alone = one(tmp_path / "alone", 'rule = { name = "local" }')
    assert line.final_model != alone.final_model
    assert line.data_digest == alone.data_digest
    federation = breast_cancer_five_hospitals(0)
    train = pooled(federation).requester.train
    assert len(train) == sum(len(site.train) for site in federation.sites)
    np.testing.assert_array_equal(train.X[: len(federation.requester.train)], federation.requester.train.X)


@pytest.mark.parametrize(
    ("variant", "protection", "said"),
    [
        ('pooled = true\nrule = { name = "fedavg" }', Protection.PLAIN, "key 'pooled': the rule is 'fedavg'"),
        ('pooled = true\nrule = { name = "local" }', Protection.SECURE, "'pooled' puts all data at one place"),
    ],
)
def test_pooling_is_refused_elsewhere(tmp_path: Path, variant: str, protection: Protection, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run(tmp_path, variant, protection=protection)


@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.SECURE])
def test_who_is_late_or_away_is_in_no_sum(tmp_path: Path, protection: Protection) -> None:
    attendance = f"attendance = {{ late = {{ {FIRST} = 3 }}, missed = {{ {SECOND} = [2, 3] }} }}"
    line = one(tmp_path, 'rule = { name = "fedavg" }\nparameters = { least_contributors = 2 }',
               case=attendance, protection=protection)  # fmt: skip
    assert [FIRST in names for names in line.took_part] == [False, False, True]
    assert [SECOND in names for names in line.took_part] == [True, False, False]


def test_dropouts_are_drawn_from_the_seed(tmp_path: Path) -> None:
    case = "attendance = { dropout = 0.4 }\nseeds = [0, 1]"
    variant = 'rounds = 12\nrule = { name = "fedavg" }\nparameters = { least_contributors = 1 }'
    lines = [run(tmp_path / name, variant, case) for name in "ab"]
    assert [line.took_part for line in lines[0]] == [line.took_part for line in lines[1]]
    assert lines[0][0].took_part != lines[0][1].took_part
    present = sum(len(names) for line in lines[0] for names in line.took_part)
    assert 0.4 * 96 < present < 0.8 * 96


def test_an_unknown_late_site_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\[case.attendance\]: 'nowhere' is no site"):
        run(tmp_path, 'rule = { name = "fedavg" }', case="attendance = { late = { nowhere = 2 } }")


@pytest.mark.parametrize("rule", ["local", "fedavg", "weight_erosion"])
def test_a_rate_without_sense_is_divergence(tmp_path: Path, rule: str) -> None:
    line = one(tmp_path, f'rule = {{ name = "{rule}" }}\ntraining = {{ server_learning_rate = 1e30 }}')
    assert line.end == "failed"
    assert "the model has diverged" in line.reason
    (row,) = summarise_case([line]).rows
    assert "FAILED 1 of 1" in remarks_on(row)


def test_the_table_marks_clipping_and_going_alone(tmp_path: Path) -> None:
    line = one(
        tmp_path, 'rule = { name = "weight_erosion", distance_penalty = 50.0, size_penalty = 0.0 }', clip=0.0078125
    )
    (row,) = summarise_case([line]).rows
    assert remarks_on(row) == ("CLIPPED up to 100%", "LOCAL_ONLY 1 of 1")


def test_the_chosen_round_is_the_best_on_validation_data(tmp_path: Path) -> None:
    line = one(tmp_path, 'rule = { name = "fedavg" }')
    tried = line.model_copy(
        update={"validation_accuracy": (0.5, 0.9, 0.9), "test_accuracy": (0.99, 0.7, 0.8)},
    )
    assert tried.chosen_score == 0.7
    assert summarise_case([tried]).rows[0].chosen_round is not None
    assert line.model_copy(update={"validation_accuracy": (None,) * 3}).chosen_score is None
