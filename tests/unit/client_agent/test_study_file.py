"""A study from TOML, and what ``moiety study create`` refuses, also with --dry-run."""

from __future__ import annotations

import json
import re
import tomllib
from functools import partial
from pathlib import Path

import pytest

from client_agent.cli.agent import app as agent_app
from client_agent.learning.data import NO_NAMES, DataNames, names_of
from client_agent.learning.sampling import steps_of
from client_agent.learning.study_file import FinishTable, parse_study_table, study_from_toml
from client_agent.site.privacy_budget import Steps, epsilon_of
from protocol.errors import ConfigurationError
from protocol.messages.control import MOST_COUNTS_ROUNDS, Purpose, RuleName, TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.unit.client_agent.commands import FLAT, GOOD, OWN, command, created, image_data, own_data, write_config
from tests.unit.client_agent.federation import ROSTER

# --- study file -------------------------------------------------------------------------------------------------------

PLUGIN = """
import torch

def model():
    return torch.nn.Linear(4, 2)

def data(path):
    return None

def loss(model, batch):
    return None
"""


def test_sites_that_weigh_themselves_share_one_coordinate_more() -> None:
    text = GOOD.replace('name = "weight_erosion"\ndistance_penalty = 0.02', 'name = "wfedavg"')
    study = study_from_toml(text, "s.toml", ROSTER, None)
    assert study.parameters.dimension == study.model_dimension + 1
    assert study.last_round(Purpose.UPDATE) == study.rounds + MOST_COUNTS_ROUNDS


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ('name = "multi_krum"\nbyzantine = 1', "'multi_krum' with byzantine=1 needs 5 sites"),
        ('name = "fedavg"\nnorm_bound = 0.0', "norm_bound"),
        ('name = "fedavg"\nstep = 0.1', "takes no option 'step'"),
        ('name = "krum"', "rule.name"),
    ],
)
def test_a_rule_that_these_sites_cannot_run_is_refused(rule: str, message: str) -> None:
    text = GOOD.replace('name = "weight_erosion"\ndistance_penalty = 0.02', rule)
    with pytest.raises(ConfigurationError, match=message):
        study_from_toml(text, "s.toml", ROSTER, None)


def test_a_whole_study() -> None:
    study = study_from_toml(GOOD, "s.toml", ROSTER, None)
    assert (study.name, study.rounds, study.seed) == ("first", 30, 4)
    assert study.roster_digest == ROSTER.digest()
    assert study.parameters.dimension == 64 * 10 + 10 + 10 * 3 + 3
    assert study.parameters.least_contributors == 3
    assert [layer.shape for layer in study.model.layers] == [(10, 64), (10,), (3, 10), (3,)]
    assert study.rule.name is RuleName.WEIGHT_EROSION
    assert study.training.epochs == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds = 30", "round = 30", "key 'rounds' is missing"),
        ("rounds = 30", "rounds = 30\nround = 1", "unknown key 'round'; did you mean 'rounds'"),
        ('"mlp"', '"mpl"', "key 'model.kind'.*found 'mpl'"),
        ("batch_size = 8", "batch_size = 0", "key 'training.batch_size'.*found 0"),
        ("batch_size = 8", "batch = 8", "unknown key 'training.batch'"),
        ("clip_norm = 2.0", "clip_norm = 3.0", "clip_norm must be a power of two, found 3.0"),
        ("clip_norm = 2.0", "clip_norm = 2.0\ndimension = 5", "unknown key 'parameters.dimension'"),
        ('"weight_erosion"', '"erosion"', "key 'rule.name'"),
        ('"weight_erosion"', '"fedavg"', "rule 'fedavg' takes no option 'distance_penalty'"),
        ("distance_penalty = 0.02", 'erosion_applies = "same_round"', "plain simulation only"),
        ("hidden = [10]", "hidden = [0]", "sizes start at 1"),
        ('name = "first"', 'name = "First Study"', "key 'name'"),
        ("inputs = [8, 8]", 'inputs = "8"', "key 'model.inputs'"),
        ("classes = 3", 'classes = 3\nclass_names = ["a", "b"]', "class_names holds 2 names .*, the model has 3"),
        ("classes = 3", 'classes = 3\nfeature_names = ["a"]', r"holds 1 names and one example has shape \[8, 8\]"),
        ("classes = 3", "classes = 3\nclass_names = 3", "key 'model.class_names'"),
    ],
)
def test_wrong_studies(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigurationError, match=message):
        study_from_toml(GOOD.replace(old, new), "s.toml", ROSTER, None)


def with_model(lines: str) -> str:
    return FLAT.replace("classes = 3", f"classes = 3\n{lines}")


def test_names_left_open_are_the_requesters(tmp_path: Path) -> None:
    data = own_data(tmp_path)
    assert names_of(study_from_toml(FLAT, "s.toml", ROSTER, None, data).model) == OWN
    assert names_of(study_from_toml(FLAT, "s.toml", ROSTER, None).model) == NO_NAMES
    partly = study_from_toml(with_model("feature_names = []"), "s.toml", ROSTER, None, data)
    assert names_of(partly.model) == DataNames(classes=OWN.classes)
    assert names_of(study_from_toml(FLAT, "s.toml", ROSTER, None, tmp_path / "elsewhere").model) == NO_NAMES


def test_names_in_the_file_are_the_requesters_too(tmp_path: Path) -> None:
    same, turned = with_model('feature_names = ["age", "sex"]'), with_model('feature_names = ["sex", "age"]')
    assert names_of(study_from_toml(same, "s.toml", ROSTER, None, own_data(tmp_path)).model) == OWN
    assert study_from_toml(turned, "s.toml", ROSTER, None).model.feature_names == ("sex", "age")
    with pytest.raises(ConfigurationError, match=r"study 'first': its feature_names are not those of .*data, the same"):
        study_from_toml(turned, "s.toml", ROSTER, None, own_data(tmp_path))


def test_the_requesters_names_fit_the_model_and_a_study(tmp_path: Path) -> None:
    wrong = own_data(tmp_path, DataNames(("age", "sex", "fare"), OWN.classes))
    with pytest.raises(ConfigurationError, match=r"s\.toml, with the names from .*: feature_names holds 3 names"):
        study_from_toml(FLAT, "s.toml", ROSTER, None, wrong)
    many = own_data(tmp_path, DataNames(tuple(f"{n}{'x' * 190}" for n in range(400))))
    wide = FLAT.replace("inputs = [2]", "inputs = [400]")
    with pytest.raises(ConfigurationError, match=r"or say feature_names = \[\] in the study's \[model\] table"):
        study_from_toml(wide, "s.toml", ROSTER, None, many)


def test_a_plugins_layers_and_names_are_those_of_its_own_functions(tmp_path: Path) -> None:
    path = tmp_path / "site_model.py"
    path.write_text(PLUGIN + "\ndef names(path):\n    return ['a', 'b', 'c', 'd'], None\n")
    text = GOOD.replace('"mlp"', '"plugin"').replace("inputs = [8, 8]\nhidden = [10]\nclasses = 3", "inputs = [4]")
    assert study_from_toml(text, "s.toml", ROSTER, path).parameters.dimension == 10
    assert names_of(study_from_toml(text, "s.toml", ROSTER, path, tmp_path).model) == DataNames(("a", "b", "c", "d"))
    for data in (None, tmp_path):
        with pytest.raises(ConfigurationError, match="set key 'plugin'"):
            study_from_toml(text, "s.toml", ROSTER, None, data)


@pytest.mark.parametrize("rule", ["mallows", "shrinkage"])
def test_rules_that_weigh_by_risk_run_over_servers_but_not_under_ckks(rule: str) -> None:
    text = GOOD.replace('"weight_erosion"\ndistance_penalty = 0.02', f'"{rule}"')
    assert study_from_toml(text, "s.toml", ROSTER, None).rule.name == rule
    said = f"'ckks' adds .* so rule '{rule}' cannot run under it: take one of 'fedavg', .*or protection 'shares'"
    with pytest.raises(ConfigurationError, match=said):
        study_from_toml('protection = "ckks"\n' + text, "s.toml", ROSTER, None)


def test_the_finish_is_read_beside_the_study_and_is_no_part_of_it() -> None:
    text = GOOD + '\n[finish]\nchoose = "leave_one_out"\n'
    assert parse_study_table(text, "s.toml").finish == FinishTable(choose="leave_one_out")
    assert parse_study_table(GOOD, "s.toml").finish is None
    assert (
        study_from_toml(text, "s.toml", ROSTER, None).digest() == study_from_toml(GOOD, "s.toml", ROSTER, None).digest()
    )


@pytest.mark.parametrize("table", ["held_out = 1.0", "held_out = 0.0", 'choose = "test"', "pull = 1.0"])
def test_a_finish_that_makes_no_sense_is_refused(table: str) -> None:
    with pytest.raises(ConfigurationError, match="finish"):
        parse_study_table(f"{GOOD}\n[finish]\n{table}\n", "s.toml")
    with pytest.raises(ConfigurationError, match="no model is trained"):
        parse_study_table(re.sub(r"rounds = \d+", "rounds = 0", GOOD) + "\n[finish]\n", "s.toml")


def test_noise_of_the_servers_is_refused_with_what_takes_its_place() -> None:
    text = GOOD.replace('name = "weight_erosion"\ndistance_penalty = 0.02', 'name = "fedavg"')
    text += '[privacy]\nunit = "site"\nnoise_multiplier = 2.0\n'
    said = r"s.toml: .*privacy.unit 'site', .* no longer exists: take unit = 'record'.*privacy_budget.md"
    for parse in (partial(study_from_toml, roster=ROSTER, plugin=None), parse_study_table):
        with pytest.raises(ConfigurationError, match=said):
            parse(text, "s.toml")


# --- study check ------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a requester that has data for the study."""
    image_data(tmp_path)
    return write_config(tmp_path)


def policy_of(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "shown.toml"
    path.write_text(f"{text}\n")
    return "--site-policy", str(path)


def test_a_study_that_no_list_can_federate_is_not_created(tmp_path: Path, config: Path) -> None:
    """Nobody is trained alone without having been told: by the own policy, and by one that another site shows."""
    alone = f"[policy]\nassumed_colluders = {len(ROSTER.contributors)}"
    for how in ([], ["--dry-run"]):
        with pytest.raises(ConfigurationError, match=r"NOT FEDERATED: the policy in .*shown.toml declines every list"):
            created(tmp_path, GOOD, *how, *policy_of(tmp_path, alone))
    with pytest.raises(ConfigurationError, match=r"shown.toml refuses the study: may_open: "):
        created(tmp_path, GOOD, "--dry-run", *policy_of(tmp_path, "[policy]\nmay_open = []"))
    with pytest.raises(ConfigurationError, match=r"shown.toml: key 'policy'"):
        created(tmp_path, GOOD, "--dry-run", *policy_of(tmp_path, "site = 'x'"))
    config.write_text(f"{config.read_text()}{alone}\n")
    with pytest.raises(ConfigurationError, match="NOT FEDERATED: this site's policy declines every list"):
        created(tmp_path, GOOD)
    assert not list((tmp_path / "state").glob("outbox/*"))


@pytest.mark.usefixtures("config")
def test_checking_a_study_file_sends_and_keeps_nothing(tmp_path: Path) -> None:
    said = created(tmp_path, GOOD, "--dry-run")
    assert said == "study first can be created: 683 parameters are shared\n"
    assert not (tmp_path / "state").exists()
    (tmp_path / "state" / "studies" / "first").mkdir(parents=True)
    for how in (["--dry-run"], []):
        with pytest.raises(ConfigurationError, match="a study named 'first' is here already; choose another name"):
            created(tmp_path, GOOD, *how)


GOOD_FEDAVG = GOOD.replace('name = "weight_erosion"\ndistance_penalty = 0.02', 'name = "fedavg"')
ROUNDS = 30
EXAMPLES = 3
"""Examples of its own data: fewer than a batch, so all are drawn."""
NOISE = "[privacy]\nrecord_clip = 1.0\nnoise_multiplier = 2.0\n"


@pytest.mark.usefixtures("config")
def test_epsilon_is_said_before_a_study_is_created(tmp_path: Path) -> None:
    """At the delta of this site's policy, with --dry-run and without."""
    steps = ROUNDS * steps_of(EXAMPLES, TrainingSpec(**tomllib.loads(GOOD)["training"]))
    spent = epsilon_of([Steps(1.0, 2.0, steps)], SitePolicy().delta)
    told = json.loads(created(tmp_path, GOOD_FEDAVG + NOISE, "--dry-run", "--json"))["privacy"]
    assert (told["epsilon"], told["examples"], told["rounds"]) == (spent, EXAMPLES, ROUNDS)
    for how in (["--dry-run"], []):
        said = f"its noise: epsilon {spent:.3f} at delta 1e-05 of one record at a site of {EXAMPLES} examples"
        assert said in created(tmp_path, GOOD_FEDAVG + NOISE, *how)


def test_declining_is_for_contributors(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    with pytest.raises(ConfigurationError, match="moiety study cancel unit"):
        command("decline", "unit", "--person", "W", "--config", str(config), app=agent_app)
