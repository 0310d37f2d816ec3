"""A server's settings, folder, names of processes, and private files."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from harness.engine.parties import OPERATOR_NAMES
from harness.federation.processes import write_secret
from host.files import private_folder, read_secret
from host.folder_lock import one_process
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from servers.identity.certificate import check_tls
from servers.ports import serve
from servers.scale import ray
from servers.scale.passes import Here
from servers.scale.ranges import read_wrapping_key
from servers.server import open_server
from servers.settings import REMOVED, Engine, Role, ServerSettings, load_settings
from servers.store.object_storage import open_storage
from servers.store.processes import process_name
from tests.kit.processes import Federation, prepare_servers
from tests.unit.servers.scale.stored import write_key

# --- settings ---------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("key", REMOVED)
def test_a_setting_of_an_earlier_release_is_refused_with_what_holds_instead(
    file: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _, name = key.rpartition(".")
    file.write_text(f"{GOOD}[{table}]\n{name} = 64\n" if table else f"{name} = 64\n{GOOD}")
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file)
    assert refused.value.detail == f"{file}: key '{key}' is no setting any more: take it out; {REMOVED[key]}"
    file.write_text(GOOD)
    variable = f"MOIETY_SERVER_{key.replace('.', '__').upper()}"
    monkeypatch.setenv(variable, "64")
    with pytest.raises(ConfigurationError, match=f"^{variable} is no setting any "):
        load_settings(file)
    monkeypatch.delenv(variable)
    if not table:
        return
    monkeypatch.setenv(f"MOIETY_SERVER_{table.upper()}", json.dumps({name: 64}))
    with pytest.raises(ConfigurationError, match=rf"^MOIETY_SERVER_{table.upper()}: key '{name}' is no setting any "):
        load_settings(file)


RAY = 'engine = "ray"\n'
SEEDED = "seed = 1\n"
REFUSED: dict[str, tuple[str, dict[str, str], str]] = {
    "no JSON": (GOOD, {"FORWARDED_BY": "10.0.0.0/8"}, '"forwarded_by".*is written as JSON'),
    "half a table": (GOOD, {"LIMITS": "{"}, '"limits".*is written as JSON'),
    "no table": (GOOD, {"RAY": "x"}, '"ray".*is written as JSON'),
    "an unknown variable": (GOOD, {"PROT": "9000"}, "MOIETY_SERVER_PROT"),
    "an unknown key": (GOOD + "prot = 1", {}, "unknown key 'prot'; did you mean 'port'"),
    "an unknown limit": (GOOD + "[limits]\ngrace = 1", {}, "unknown key 'limits.grace'"),
    "a limit below 0": (GOOD + "[limits]\ngrace_s = -1", {}, "key 'limits.grace_s'"),
    "no TOML": (GOOD + "this is no toml", {}, "not valid TOML"),
    "a missing key": (GOOD.replace('side = "a"\n', ""), {}, "key 'side' is missing"),
    "a seed and other hosts": (GOOD + SEEDED, {"HOST": "0.0.0.0"}, "must be loopback"),
    "a seed on another host": (GOOD + SEEDED, {"HOST": "10.0.0.1"}, "must be loopback"),
    "a seed and a peer elsewhere": (GOOD + SEEDED, {"PEER_URL": "https://server-b.example:1"}, "must be loopback"),
    "a cluster without a key": (GOOD + RAY, {}, "openssl rand -hex 32 > FILE"),
    "short ranges": (f'{GOOD}{RAY}[ray]\nwrapping_key = "key"\nrange_parameters = 9', {}, "range_parameters"),
}
"""A file, variables of the environment, and what is said of them."""


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_keys_and_variables_are_named(file: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    text, variables, said = REFUSED[what]
    file.write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(f"MOIETY_SERVER_{name}", value)
    with pytest.raises(ConfigurationError, match=said):
        load_settings(file)


def test_a_file_that_is_no_text_or_missing_is_named(file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"settings\.toml cannot be read: there is no such file"):
        load_settings(file)
    file.write_bytes(b"side = \xff")
    with pytest.raises(ConfigurationError, match=r"settings\.toml cannot be read: it is not text"):
        load_settings(file)


@pytest.mark.parametrize(("host", "peer"), [("127.0.0.1", "localhost"), ("127.3.2.1", "[::1]"), ("::1", "127.0.0.1")])
def test_a_seed_is_taken_on_the_loopback(file: Path, host: str, peer: str) -> None:
    file.write_text(GOOD.replace("127.0.0.1:8442", f"{peer}:1") + f'host = "{host}"\n{SEEDED}')
    assert load_settings(file).seed == 1


def test_a_cluster_has_ranges_of_the_usual_length(file: Path) -> None:
    file.write_text(GOOD + RAY + '[ray]\nwrapping_key = "wrapping.key"\n')
    settings = load_settings(file)
    assert settings.ray.wrapping_key == file.parent / "wrapping.key"
    assert settings.ray.range_parameters == 2**22


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


def test_a_tls_key_that_others_may_read_is_refused(with_tls: ServerSettings) -> None:
    with_tls.tls_key.chmod(0o640)
    with pytest.raises(ConfigurationError, match=r"tls\.key: .*mode 0640.*chmod 600"):
        check_tls(with_tls)


def test_a_key_of_another_certificate_is_refused(with_tls: ServerSettings) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(str(with_tls.tls_key))
    with pytest.raises(ConfigurationError, match=r"'tls_key'.*tls\.key"):
        check_tls(with_tls)


def test_the_storage_is_one_servers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setattr(ray, "OnRay", lambda _address, _cpus, url, key: Here(open_storage(url), read_wrapping_key(key)))
    write_key(tmp_path)
    file.write_text(GOOD + f'engine = "ray"\n[ray]\nwrapping_key = "wrapping.key"\nstorage = "{tmp_path}/there"\n')
    settings = load_settings(file)
    for _ in range(2):
        assert ray.open_shards(settings, "server a") is not None
    with pytest.raises(ConfigurationError, match="belongs to 'server a', this is 'server b'"):
        ray.open_shards(settings, "server b")
    (tmp_path / "there" / "owner").rename(tmp_path / "there" / "another file")
    with pytest.raises(ConfigurationError, match="not empty and no server's"):
        ray.open_shards(settings, "server a")
    assert ray.open_shards(settings.model_copy(update={"engine": Engine.HERE}), "server b") is None


# --- identity ---------------------------------------------------------------------------------------------------------

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return prepare_servers(tmp_path / "first", SITES)


@pytest.fixture
def settings(federation: Federation) -> dict[Side, ServerSettings]:
    return {side: load_settings(federation.servers[side].config) for side in Side}


def opens(settings: ServerSettings) -> None:
    server = open_server(settings)
    server.store.close()
    server.ckks.close()


@pytest.mark.parametrize(("key", "of"), [("data_dir", "data_dir"), ("database_url", "database")])
def test_b_does_not_run_on_a_s_folder_or_database(settings: dict[Side, ServerSettings], key: str, of: str) -> None:
    opens(settings[Side.A])
    opens(settings[Side.A])
    wrong = settings[Side.B].model_copy(update={key: getattr(settings[Side.A], of)})
    with pytest.raises(
        ConfigurationError, match=r"data.* belongs to server a 'operator-a'.*this is server b"
    ) as refused:
        open_server(wrong)
    assert "folder and a database of its own" in refused.value.detail


def test_new_keys_do_not_run_on_the_folder_of_old_ones(settings: dict[Side, ServerSettings], tmp_path: Path) -> None:
    opens(settings[Side.A])
    again = prepare_servers(tmp_path / "again", SITES)
    wrong = load_settings(again.servers[Side.A].config).model_copy(update={"data_dir": settings[Side.A].data_dir})
    with pytest.raises(
        ConfigurationError, match=r"belongs to server a 'operator-a' with key .* without a change of the roster, too"
    ):
        open_server(wrong)


@pytest.mark.parametrize("key", ["public_url", "peer_url"])
def test_an_address_that_the_roster_does_not_have_is_refused(
    settings: dict[Side, ServerSettings], federation: Federation, key: str
) -> None:
    own = settings[Side.A]
    expected = federation.url(Side.A if key == "public_url" else Side.B)
    name = OPERATOR_NAMES[Side.A if key == "public_url" else Side.B]
    with pytest.raises(ConfigurationError, match=f"key '{key}': found 'https://elsewhere.example'") as refused:
        open_server(own.model_copy(update={key: "https://elsewhere.example"}))
    assert f"the roster has '{expected}' for '{name}'" in refused.value.detail


@pytest.fixture
def held(settings: dict[Side, ServerSettings]) -> Iterator[ServerSettings]:
    own = settings[Side.A]
    with one_process(own.data_dir, "data_dir", "the server of side 'a'"):
        yield own


def test_a_second_server_on_a_folder_is_refused_before_it_touches_anything(held: ServerSettings) -> None:
    shares = held.data_dir / "shares"
    shares.mkdir()
    (shares / "of-the-first").write_bytes(b"not yet in a row")
    with pytest.raises(ConfigurationError, match=r"is in use by the server of side 'a', process \d+ on"):
        serve(held)
    assert (shares / "of-the-first").exists()


# --- process names ----------------------------------------------------------------------------------------------------

MOST_BYTES = 63
"""The most bytes of a connection's name in PostgreSQL."""
POD = "moiety-federation-northern-hospitals-upload"


def name(host: str, monkeypatch: pytest.MonkeyPatch, role: Role = Role.UPLOAD, port: int = 8443) -> str:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    settings: Any = SimpleNamespace(role=role, port=port)
    return process_name(settings)


@pytest.mark.parametrize(
    "hosts",
    [
        (f"{POD}-0", f"{POD}-1"),
        ("northern-hospitals-moiety-uploads-5d4f8b7c9d-x7k2p", "northern-hospitals-moiety-uploads-5d4f8b7c9d-q9zrw"),
        ("h" * 40, "h" * 41),
        ("h" * 253, "h" * 252 + "i"),
    ],
)
def test_hosts_with_long_names_differ(hosts: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (name(host, monkeypatch) for host in hosts)
    assert first != second
    assert first == name(hosts[0], monkeypatch), "at the next start too"


def test_a_name_begins_as_the_host_does_and_a_short_one_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name("operator-a-upload-0", monkeypatch) == "upload-operator-a-upload-0-8443"
    assert name("h" * 40, monkeypatch) == f"upload-{'h' * 40}-8443"
    assert name(f"{POD}-0", monkeypatch).startswith(f"upload-{POD[:31]}-")


def test_ports_and_roles_differ_and_postgresql_shortens_none(monkeypatch: pytest.MonkeyPatch) -> None:
    of = [(role, port) for role in (Role.UPLOAD, Role.DRIVER) for port in (8443, 65535)]
    names = {name("h" * 253, monkeypatch, role, port) for role, port in of}
    assert len(names) == len(of)
    assert all(len(one.encode()) <= MOST_BYTES for one in names)


# --- private files ----------------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return prepare_servers(tmp_path, SITES).servers[Side.B].config


def test_a_folder_and_a_database_that_were_there_before_are_taken_back(config: Path) -> None:
    data = config.with_name("data")
    data.mkdir()
    data.chmod(0o755)
    (data / "server.db").touch()
    (data / "server.db").chmod(0o644)
    before = os.umask(0o022)
    try:
        server = open_server(load_settings(config))
    finally:
        os.umask(before)
    assert mode(data) == 0o700
    assert {mode(path) for path in data.glob("server.db*")} == {0o600}
    server.store.close()
    server.ckks.close()


def test_a_key_that_others_may_read_is_refused(config: Path) -> None:
    config.with_name("keys.toml").chmod(0o640)
    with pytest.raises(ConfigurationError, match=r"mode 0640\): chmod 600 .*keys\.toml") as caught:
        open_server(load_settings(config))
    assert "key =" not in caught.value.detail


@pytest.mark.parametrize(
    ("owner", "user", "wrong", "taken"),
    [
        (0, 10001, 0o440, True),
        (0, 10001, 0o640, True),
        (0, 10001, 0o660, False),
        (0, 10001, 0o444, False),
        (0, 0, 0o440, False),
        (10001, 10001, 0o440, False),
        (10002, 10001, 0o440, False),
        (10001, 10001, 0o604, False),
        (10001, 10001, 0o620, False),
        (10001, 10001, 0o600, True),
    ],
)
def test_root_may_lend_a_secret_through_its_group(
    owner: int, user: int, wrong: int, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kubernetes mounts secrets for whom a pod runs as: root's, with the pod's group."""
    write_secret(tmp_path / "secret", "words")
    (tmp_path / "secret").chmod(wrong)
    asked = os.fstat
    monkeypatch.setattr(
        os, "fstat", lambda handle: os.stat_result((*asked(handle)[:4], owner, user, *asked(handle)[6:]))
    )
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if taken:
        assert read_secret(tmp_path / "secret") == "words"
    else:
        with pytest.raises(ConfigurationError, match="others than its owner may use this secret"):
            read_secret(tmp_path / "secret")


def test_a_folder_that_cannot_be_ones_own_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file: cannot be made this user's alone.*chmod 700"):
        private_folder(tmp_path / "file")
