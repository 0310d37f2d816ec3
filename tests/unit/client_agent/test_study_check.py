"""What ``moiety study check`` and ``create`` refuse: studies that no list of sites can federate."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from client_agent.cli.agent import app as agent_app
from client_agent.learning.data import Examples, LocalData, save_folder
from client_agent.learning.private.drawn_rows import steps_of
from client_agent.site.budget.accounting import Steps, epsilon_of
from protocol.errors import ConfigurationError
from protocol.messages.control import TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.unit.client_agent.federation import ROSTER
from tests.unit.client_agent.test_cli import command, write_config
from tests.unit.client_agent.test_study_file import GOOD


def study_of_own_data(folder: Path) -> tuple[Path, Path]:
    """Settings and a study file that 'create' takes."""
    part = Examples(np.ones((3, 8, 8), np.float32), np.array([0, 1, 2]))
    save_folder(folder / "data", LocalData(part, part))
    (folder / "study.toml").write_text(GOOD)
    return write_config(folder), folder / "study.toml"


def policy_of(folder: Path, text: str) -> str:
    path = folder / "shown.toml"
    path.write_text(f"[policy]\n{text}\n")
    return str(path)


def test_a_study_that_no_list_can_federate_is_not_created(tmp_path: Path) -> None:
    """Nobody is trained alone without having been told: by the own policy, and by one that another site shows."""
    config, file = study_of_own_data(tmp_path)
    shown = policy_of(tmp_path, f"assumed_colluders = {len(ROSTER.contributors)}")
    for name in ("create", "check"):
        with pytest.raises(ConfigurationError, match=r"NOT FEDERATED: the policy in .*shown.toml declines every list"):
            command(name, str(file), "--config", str(config), "--site-policy", shown)
    refusing = policy_of(tmp_path, "may_open = []")
    with pytest.raises(ConfigurationError, match=r"shown.toml refuses the study: may_open: "):
        command("check", str(file), "--config", str(config), "--site-policy", refusing)
    config.write_text(f"{config.read_text()}[policy]\nassumed_colluders = {len(ROSTER.contributors)}\n")
    with pytest.raises(ConfigurationError, match="NOT FEDERATED: this site's policy declines every list"):
        command("create", str(file), "--config", str(config))
    assert not list((tmp_path / "state").glob("outbox/*"))


def test_checking_a_study_file_sends_and_keeps_nothing(tmp_path: Path) -> None:
    config, file = study_of_own_data(tmp_path)
    seen = command("check", str(file), "--config", str(config))
    assert seen.stdout == "study first can be created: 683 parameters are shared\n"
    assert not (tmp_path / "state").exists()
    (tmp_path / "state" / "studies" / "first").mkdir(parents=True)
    for name in ("check", "create"):
        with pytest.raises(ConfigurationError, match="a study named 'first' is here already; choose another name"):
            command(name, str(file), "--config", str(config))
    (tmp_path / "state" / "studies" / "first").rmdir()
    nothing = tmp_path / "other.toml"
    nothing.write_text("site = 'x'\n")
    with pytest.raises(ConfigurationError, match=r"other.toml: key 'policy'"):
        command("check", str(file), "--config", str(config), "--site-policy", str(nothing))


GOOD_FEDAVG = GOOD.replace('name = "weight_erosion"\ndistance_penalty = 0.02', 'name = "fedavg"')
ROUNDS = 30
EXAMPLES = 3
"""Of its own data: fewer than a batch, so all are drawn."""
NOISE = "[privacy]\nrecord_clip = 1.0\nnoise_multiplier = 2.0\n"


def test_epsilon_is_said_before_a_study_is_created(tmp_path: Path) -> None:
    """At the delta of this site's policy, by 'check' and by 'create'."""
    config, file = study_of_own_data(tmp_path)
    file.write_text(GOOD_FEDAVG + NOISE)
    steps = ROUNDS * steps_of(EXAMPLES, TrainingSpec(**tomllib.loads(GOOD)["training"]))
    spent = epsilon_of([Steps(1.0, 2.0, steps)], SitePolicy().delta)
    for name in ("check", "create"):
        told = command(name, str(file), "--config", str(config)).stdout
        assert f"its noise: epsilon {spent:.3f} at delta 1e-05 of one record at a site of {EXAMPLES} examples" in told
    told = json.loads(command("check", str(file), "--config", str(config), "--json").stdout)
    assert told["privacy"]["epsilon"] == spent
    assert (told["privacy"]["examples"], told["privacy"]["rounds"]) == (EXAMPLES, ROUNDS)


def test_leaving_is_for_contributors_of_a_study_that_goes_on(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    with pytest.raises(ConfigurationError, match="moiety study cancel unit"):
        command("leave", "unit", "--config", str(config), app=agent_app)
