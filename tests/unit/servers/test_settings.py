"""Settings: strict, from a file, overridden by the environment; a seed only on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from harness.federation.processes import write_secret
from host.network import is_loopback
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from servers.certificate import check_tls
from servers.settings import Engine, ServerSettings, load_settings
from servers.shards import opening
from servers.shards.passes import Here
from servers.shards.wrapping import read_wrapping_key
from servers.storage.opened import open_storage
from tests.unit.servers.shards.stored import write_key

GOOD = """
side = "a"
port = 8441
public_url = "https://127.0.0.1:8441"
peer_url = "https://127.0.0.1:8442"
roster = "roster.toml"
keys = "/etc/keys.toml"
data_dir = "data"
tls_certificate = "tls.pem"
tls_key = "tls.key"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def test_paths_are_relative_to_the_file(file: Path) -> None:
    file.write_text(GOOD)
    settings = load_settings(file)
    assert settings.side is Side.A
    assert settings.roster == file.parent / "roster.toml"
    assert settings.keys == Path("/etc/keys.toml")
    assert settings.database == f"sqlite:///{file.parent / 'data' / 'server.db'}"
    assert settings.limits.pause_after_skips == 3


def test_the_environment_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("MOIETY_SERVER_PORT", "9000")
    monkeypatch.setenv("MOIETY_SERVER_LIMITS__GRACE_S", "5")
    settings = load_settings(file)
    assert (settings.port, settings.limits.grace_s) == (9000, 5.0)


def test_an_unknown_variable_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("MOIETY_SERVER_PROT", "9000")
    with pytest.raises(ConfigurationError, match="MOIETY_SERVER_PROT"):
        load_settings(file)


def test_a_file_that_is_no_text_is_named(file: Path) -> None:
    file.write_bytes(b"side = \xff")
    with pytest.raises(ConfigurationError, match=r"settings\.toml cannot be read"):
        load_settings(file)


@pytest.mark.parametrize(
    ("added", "named"),
    [
        ("prot = 1", "unknown key 'prot'; did you mean 'port'"),
        ("[limits]\ngrace = 1", "unknown key 'limits.grace'"),
        ("[limits]\ngrace_s = -1", "key 'limits.grace_s'"),
        ("this is no toml", "not valid TOML"),
    ],
)
def test_wrong_keys_are_named(file: Path, added: str, named: str) -> None:
    file.write_text(GOOD + added)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file)
    assert named in caught.value.detail


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", "true"),
        ("port", '"8541"'),
        ("port", "8541.0"),
        ("seed", "true"),
        ("host", "1"),
        ("limits.attempts", "true"),
        ("limits.grace_s", '"5"'),
        ("limits.grace_s", "true"),
        ("limits", "3"),
        ("tls_key", "1979-05-27"),
    ],
)
def test_the_files_values_are_not_converted(file: Path, key: str, value: str) -> None:
    kept = "".join(f"{line}\n" for line in GOOD.splitlines() if not line.startswith(f"{key} "))
    file.write_text(f"{kept}{key} = {value}\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file)
    assert caught.value.detail.count("key '") == 1
    assert f"key '{key}'" in caught.value.detail


def test_a_whole_number_is_a_number_of_seconds(file: Path) -> None:
    file.write_text(GOOD + "[limits]\ngrace_s = 5\n")
    assert load_settings(file).limits.grace_s == 5.0


def test_missing_key_and_missing_file(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings(file)
    file.write_text(GOOD.replace('side = "a"\n', ""))
    with pytest.raises(ConfigurationError, match="key 'side' is missing"):
        load_settings(file)


@pytest.mark.parametrize(
    ("host", "peer", "allowed"),
    [
        ("127.0.0.1", "https://localhost:1", True),
        ("127.0.0.1", "https://[::1]:1", True),
        ("0.0.0.0", "https://127.0.0.1:1", False),
        ("127.0.0.1", "https://server-b.example:1", False),
    ],
)
def test_a_seed_needs_loopback_on_both_ends(file: Path, host: str, peer: str, allowed: bool) -> None:
    text = GOOD.replace('peer_url = "https://127.0.0.1:8442"', f'peer_url = "{peer}"') + f'host = "{host}"\nseed = 1\n'
    file.write_text(text)
    if allowed:
        assert load_settings(file).seed == 1
    else:
        with pytest.raises(ConfigurationError, match="must be loopback"):
            load_settings(file)


@pytest.mark.parametrize(
    ("host", "expected"), [("127.3.2.1", True), ("::1", True), ("10.0.0.1", False), ("a.b", False)]
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.fixture
def with_tls(file: Path) -> ServerSettings:
    """Settings whose three TLS files are good."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(str(file.with_name("tls.pem")))
    write_secret(file.with_name("tls.key"), server.private_key_pem.bytes().decode())
    authority.cert_pem.write_to_path(str(file.with_name("ca.pem")))
    file.write_text(GOOD + 'peer_ca = "ca.pem"\n')
    return load_settings(file)


@pytest.mark.parametrize(
    ("key", "name"), [("tls_certificate", "tls.pem"), ("tls_key", "tls.key"), ("peer_ca", "ca.pem")]
)
def test_a_missing_or_broken_tls_file_is_named_with_its_key(
    with_tls: ServerSettings, file: Path, key: str, name: str
) -> None:
    check_tls(with_tls)
    broken = file.with_name(name)
    for damage in (lambda: broken.write_text("no PEM"), broken.unlink):
        damage()
        with pytest.raises(ConfigurationError) as caught:
            check_tls(with_tls)
        assert f"'{key}'" in caught.value.detail
        assert str(broken) in caught.value.detail
    assert ("'moiety server init --own-ca'" in caught.value.detail) == (key != "peer_ca")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_tls_key_that_others_may_read_is_refused(with_tls: ServerSettings, mode: int) -> None:
    with_tls.tls_key.chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"tls\.key: .*mode {mode:04o}.*chmod 600"):
        check_tls(with_tls)


def test_a_key_of_another_certificate_is_refused(with_tls: ServerSettings) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(str(with_tls.tls_key))
    with pytest.raises(ConfigurationError, match=r"'tls_key'.*tls\.key"):
        check_tls(with_tls)


def test_a_cluster_needs_a_wrapping_key_and_knows_its_defaults(file: Path) -> None:
    file.write_text(GOOD + 'engine = "ray"\n')
    with pytest.raises(ConfigurationError, match=r"openssl rand -hex 32 > FILE"):
        load_settings(file)
    file.write_text(GOOD + 'engine = "ray"\n[ray]\nwrapping_key = "wrapping.key"\nrange_parameters = 100\n')
    with pytest.raises(ConfigurationError, match="range_parameters"):
        load_settings(file)
    file.write_text(GOOD + 'engine = "ray"\n[ray]\nwrapping_key = "wrapping.key"\n')
    settings = load_settings(file)
    assert settings.ray.wrapping_key == file.parent / "wrapping.key"
    assert settings.ray.range_parameters == 2**22


def test_the_storage_is_one_servers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setattr(
        opening, "OnRay", lambda _address, _cpus, url, key: Here(open_storage(url), read_wrapping_key(key))
    )
    write_key(tmp_path)
    file.write_text(GOOD + f'engine = "ray"\n[ray]\nwrapping_key = "wrapping.key"\nstorage = "{tmp_path}/there"\n')
    settings = load_settings(file)
    for _ in range(2):
        opened = opening.open_shards(settings, "server a")
        assert opened is not None
    with pytest.raises(ConfigurationError, match="belongs to 'server a', this is 'server b'"):
        opening.open_shards(settings, "server b")
    (tmp_path / "there" / "owner").rename(tmp_path / "there" / "another file")
    with pytest.raises(ConfigurationError, match="not empty and no server's"):
        opening.open_shards(settings, "server a")
    assert opening.open_shards(settings.model_copy(update={"engine": Engine.HERE}), "server b") is None
