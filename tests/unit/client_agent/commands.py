"""A requester's settings, data and study file, and calls of ``moiety study`` on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer import Typer
from typer.testing import CliRunner, Result

from client_agent.cli.study import app as study_app
from client_agent.learning.data import DataNames, Examples, LocalData, save_folder
from harness.federation.processes import write_secret
from protocol.errors import MoietyError
from protocol.roster.keyfile import dump_party_keys, dump_roster
from tests.unit.client_agent.federation import PARTIES, REQUESTER, keys

GOOD = """
name = "first"
rounds = 30
seed = 4

[model]
kind = "mlp"
inputs = [8, 8]
hidden = [10]
classes = 3

[rule]
name = "weight_erosion"
distance_penalty = 0.02

[training]
update = "local_sgd"
batch_size = 8

[parameters]
clip_norm = 2.0
"""
FLAT = GOOD.replace("inputs = [8, 8]", "inputs = [2]")
CONFIG = "agent file.toml"
OWN = DataNames(("age", "sex"), ("healthy", "ill", "dead"))


def own_data(folder: Path, names: DataNames = OWN) -> Path:
    part = Examples(np.ones((3, 2), np.float32), np.array([0, 1, 2]))
    save_folder(folder / "data", LocalData(part, part, names=names))
    return folder / "data"


def image_data(folder: Path, rows: int = 3) -> Path:
    """Data for the study of ``GOOD``."""
    part = Examples(np.ones((rows, 8, 8), np.float32), np.arange(rows) % 3)
    save_folder(folder / "data", LocalData(part, part))
    return folder / "data"


def write_config(folder: Path, **more: str) -> Path:
    (folder / "roster.toml").write_text(dump_roster(PARTIES.roster))
    write_secret(folder / "keys.toml", dump_party_keys(keys(REQUESTER)))
    values = {"site": REQUESTER, "roster": "roster.toml", "keys": "keys.toml", "data": "data", "state_dir": "state"}
    lines = [f'{key} = "{value}"' for key, value in {**values, "ca": "ca.pem", **more}.items()]
    path = folder / CONFIG
    path.write_text("\n".join(lines) + "\n")
    return path


def command(*arguments: str, app: Typer = study_app) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, MoietyError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def created(folder: Path, text: str, *more: str) -> str:
    """The output of ``moiety study create`` for a study file with this text, by the settings in that folder."""
    (folder / "study.toml").write_text(text)
    return command("create", str(folder / "study.toml"), *more, "--config", str(folder / CONFIG)).stdout
