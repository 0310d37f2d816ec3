"""An operator sees its studies, and looking makes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protocol.errors import ConfigurationError
from protocol.sharing import Side
from protocol.wire.authentic import sign
from protocol.wire.messages import StudyState
from servers.cli import app
from servers.page.overview import studies_at
from servers.server import open_server
from servers.settings import load_settings
from servers.store.study_records import StudyRecord
from tests.kit.processes import prepare_servers
from tests.unit.client_agent.federation import REQUESTER, keys, study

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")


def test_studies_are_listed_with_who_is_ready(tmp_path: Path) -> None:
    config = prepare_servers(tmp_path, SITES).servers[Side.A].config
    settings = load_settings(config)
    with pytest.raises(
        ConfigurationError, match=r"key 'data_dir': the folder .* does not exist: either 'moiety server"
    ):
        studies_at(settings)
    settings.data_dir.mkdir(parents=True)
    assert studies_at(settings) == ()
    assert not (settings.data_dir / "server.db").exists()
    said = CliRunner().invoke(app, ["studies", "--config", str(config)])
    assert said.stdout == "no study is at this server\n"
    server = open_server(settings)
    signed = sign(study(), REQUESTER, keys(REQUESTER).signing)
    digest = signed.message.digest()
    server.store.add_study(StudyRecord(digest, signed, StudyState.PAUSED, "the requester is \x1b[2Jaway", 1))
    server.store.add_ready(digest, "c1")
    server.store.close()
    server.ckks.close()
    (seen,) = studies_at(settings)
    assert (seen.name, seen.state, seen.ready, seen.round) == ("unit", "paused", ("c1",), None)
    shown = CliRunner().invoke(app, ["studies", "--config", str(config)]).stdout
    assert "unit: paused (the requester is " in shown
    assert "\x1b" not in shown
    line = CliRunner().invoke(app, ["studies", "--config", str(config), "--json"]).stdout
    assert json.loads(line)["digest"] == digest
