"""What a federation of processes is given, without starting any."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import Examples, LocalData, load_folder
from client_agent.settings import load_settings as load_agent
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec, toml_lines
from protocol.configuration import parse_toml
from protocol.errors import ConfigurationError, Unavailable
from protocol.messages.control import require_roster
from protocol.policy.site_policy import SitePolicy
from protocol.roster.keyfile import parse_party_keys, parse_roster
from protocol.sharing import Side
from servers.settings import load_settings as load_server


def examples(count: int) -> LocalData:
    X = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    part = Examples(X, np.arange(count, dtype=np.int64) % 2)
    return LocalData(part, part)


def spec(seed: int | None = None, host: str = "127.0.0.1") -> FederationSpec:
    sites = tuple(SiteSpec(name, examples(count)) for name, count in (("user", 4), ("north", 6), ("south", 5)))
    return FederationSpec("unit", "user", sites, seed, host)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "example.org"])
def test_a_seed_is_refused_on_any_address_but_loopback(host: str) -> None:
    with pytest.raises(ConfigurationError, match="host must be loopback"):
        spec(seed=1, host=host)
    assert spec(seed=None, host=host).host == host


def test_the_requester_must_be_a_site() -> None:
    with pytest.raises(ConfigurationError, match="not among the sites"):
        FederationSpec("unit", "nobody", spec().sites)


def test_every_file_is_one_that_servers_and_agents_accept(tmp_path: Path) -> None:
    federation = RunningFederation(spec(seed=3), tmp_path)
    roster = require_roster(parse_roster((tmp_path / "roster.toml").read_text(), "roster"))
    assert [(site.name, site.samples) for site in roster.sites] == [("user", 4), ("north", 6), ("south", 5)]
    for side in Side:
        settings = load_server(federation.config(OPERATOR_NAMES[side]))
        assert (settings.side, settings.seed) == (side, 3)
        assert settings.public_url == roster.operator(side).url == federation.url(side)
        assert settings.peer_url == federation.url(side.other)
        ssl.create_default_context(cafile=str(settings.peer_ca))
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
    for site in federation.spec.sites:
        agent = load_agent(federation.config(site.name))
        assert (agent.site, agent.seed, agent.policy) == (site.name, 3, SitePolicy())
        assert agent.state_dir == federation.state(site.name)
        keys = parse_party_keys(agent.keys.read_text(), "keys")
        assert keys.party(samples=len(site.data.train)) == roster.party(site.name)
        assert len(load_folder(agent.data, (2,), 2).train) == len(site.data.train)


def test_secrets_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    RunningFederation(spec(), tmp_path)
    secrets = [*tmp_path.glob("*/keys.toml"), *tmp_path.glob("*/tls-key.pem")]
    assert len(secrets) == 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_keys_follow_the_seed(tmp_path: Path) -> None:
    rosters = [
        RunningFederation(spec(seed), tmp_path / name).parties.roster.message.sites
        for name, seed in (("a", 1), ("b", 1), ("c", 2), ("d", None))
    ]
    assert rosters[0] == rosters[1]
    assert len({rosters[0], rosters[2], rosters[3]}) == 3


def test_a_process_that_ends_by_itself_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    federation = RunningFederation(spec(), tmp_path)
    federation.config("north").write_text("side = 7\n")
    federation.start_agent("north")
    federation.running["north"].process.wait(60)
    with pytest.raises(Unavailable, match=r"north ended with exit code 2") as refused:
        federation.check()
    assert "unknown key 'side'" in refused.value.detail
    federation.stop()
    assert federation.process_ids == {}


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    federation = RunningFederation(spec(), tmp_path)
    with pytest.raises(Unavailable, match=r"(?s)exit code 2: .*No such command"):
        federation.run_cli("nonsense")


def test_toml_lines_come_back_as_they_were() -> None:
    values = {"text": 'a "quoted" \\ value', "number": 3, "share": 0.6, "flag": True, "list": ["a", "b"]}
    assert parse_toml(toml_lines(values), "test") == values
