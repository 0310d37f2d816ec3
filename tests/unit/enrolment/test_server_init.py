"""`moiety server init` and `pair`: whole folders or none, cards compared, and each mistake with its next step."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from protocol.errors import ConfigurationError, StorageFull
from protocol.roster.enrolment import OperatorCard, dump_card, fingerprint_of, parse_card
from protocol.sharing import Side
from servers.enrolment.folder import NewServer, issue, make_folder, new_ca, renew
from servers.enrolment.pairing import completed, own_card, pair, paired, read_card
from servers.identity.certificate import check_tls
from servers.settings import ServerSettings, load_settings
from tests.kit.certificates import answering
from tests.kit.command_line import moiety
from tests.kit.present import present
from tests.ports import more_free_ports
from tests.unit.enrolment.cards import operator_card
from tests.unit.enrolment.enrolling import Shown


def new_server(side: Side, **more: object) -> NewServer:
    (port,) = more_free_ports(1)
    told = {"side": side, "federation": "clinics", "operator": f"operator-{side.value}", "port": port}
    return NewServer(**(told | {"url": f"https://{side.value}.example:8443"} | more))  # type: ignore[arg-type]


@pytest.fixture
def a(tmp_path: Path) -> tuple[OperatorCard, ServerSettings]:
    card = make_folder(new_server(Side.A, own_ca=True), tmp_path / "a")
    return card, load_settings(tmp_path / "a" / "settings.toml")


def refused(said: str) -> AbstractContextManager[pytest.ExceptionInfo[ConfigurationError]]:
    return pytest.raises(ConfigurationError, match=said)


def test_a_folder_is_whole_and_its_secrets_are_private(a: tuple[OperatorCard, ServerSettings], tmp_path: Path) -> None:
    card, settings = a
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").iterdir()}
    secrets = {"keys.toml", "ca-key.pem", "tls-key.pem"}
    public = {"operator-a.card.toml", "settings.toml", "compose.yaml", "ca.pem", "tls-certificate.pem"}
    assert set(names) == secrets | public
    assert all(names[name] == 0o600 for name in secrets)
    check_tls(settings)
    assert own_card(settings)[0] == card
    assert card.ca == (tmp_path / "a" / "ca.pem").read_text()


def test_the_compose_file_is_the_one_of_the_documents(a: tuple[OperatorCard, ServerSettings], tmp_path: Path) -> None:
    """Apart from names, ports, and where the roster comes to lie."""
    made = yaml.safe_load((tmp_path / "a" / "compose.yaml").read_text())
    shipped = yaml.safe_load((Path(__file__).parents[3] / "deploy" / "operator-a.yaml").read_text())
    assert made["name"] == shipped["name"] == "moiety-operator-a"
    mine, theirs = made["services"]["server"], shipped["services"]["server"]
    commands = made["services"].pop("moiety")
    assert commands.pop("volumes") == [mount.removesuffix(":ro") for mount in mine["volumes"]]
    assert commands.pop("environment").items() <= mine["environment"].items()
    assert (commands.pop("profiles"), commands.pop("networks"), commands.pop("mem_limit")) == (
        ["commands"], ["outside"], "1g",
    )  # fmt: skip
    assert commands.items() <= mine.items()
    for of_their_own in ("ports", "environment", "volumes"):
        mine.pop(of_their_own), theirs.pop(of_their_own)
    assert made == shipped


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").write_text("keep")
    with refused("holds files already; nothing was changed"):
        make_folder(new_server(Side.A), tmp_path / "a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = 0

    def full(handle: int) -> None:
        nonlocal synced
        synced += 1
        if synced == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("host.output_files.os.fsync", full)
    with pytest.raises(StorageFull, match="nothing was changed: free space"):
        make_folder(new_server(Side.A), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert synced == 3


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("file is no folder; nothing was changed: name another place"):
        make_folder(new_server(Side.A), tmp_path / "file" / "a")


def test_what_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*files: tuple[Path, str, int]) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("servers.enrolment.folder.write_new", broken)
    with pytest.raises(KeyboardInterrupt):
        make_folder(new_server(Side.A), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_port_in_use_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with refused(f"--port: {port} cannot be listened on: somebody listens there already; stop who uses it"):
            make_folder(new_server(Side.A, port=port), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": "https://a.example/path"}, "a server's address is https://HOST"),
        ({"url": "http://a.example"}, "a server's address is https://HOST"),
        ({"operator": "Operator A"}, "lower-case letters"),
        ({"federation": "Our Clinics"}, "lower-case letters"),
        ({"peer_url": "https://a.example:9443"}, "whoever runs that machine sees both halves"),
        ({"certificate": Path("x")}, "name both files, or neither"),
        ({"certificate": Path("x"), "tls_key": Path("y"), "own_ca": True}, "leave --tls-certificate and --tls-key out"),
    ],
)
def test_each_wrong_option_is_named(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    with refused(said):
        make_folder(new_server(Side.A, **changed), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_certificate_that_is_there_already_stays_where_it_is(tmp_path: Path) -> None:
    told = new_server(
        Side.A, certificate=tmp_path / "live" / "fullchain.pem", tls_key=tmp_path / "live" / "privkey.pem"
    )
    make_folder(told, tmp_path / "a")
    settings = load_settings(tmp_path / "a" / "settings.toml")
    assert (settings.tls_certificate, settings.tls_key) == (told.certificate, told.tls_key)


def handshake(ca: str, certificate: str, key: str, host: str, folder: Path) -> None:
    """One TLS connection in memory, as a site makes it. Raises: ssl.SSLError"""
    for name, text in (("chain.pem", certificate), ("key.pem", key)):
        (folder / name).write_text(text)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    client = ssl.create_default_context(cadata=ca)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_an_own_ca_vouches_for_its_own_host_and_no_other(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    for host, other in (("a.example", "b.example"), ("192.0.2.1", "192.0.2.2")):
        ca = new_ca("operator-a", host, now)
        good, stolen = issue(ca, host, now), issue(ca, other, now)
        handshake(ca.certificate, good.certificate, good.key, host, tmp_path)
        with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
            handshake(ca.certificate, stolen.certificate, stolen.key, other, tmp_path)


def test_a_certificate_is_renewed_by_the_ca_of_the_folder(
    a: tuple[OperatorCard, ServerSettings], tmp_path: Path
) -> None:
    _, settings = a
    before = settings.tls_certificate.read_text()
    renew(tmp_path / "a", settings.public_url)
    assert settings.tls_certificate.read_text() != before
    assert stat.S_IMODE(settings.tls_key.stat().st_mode) == 0o600
    check_tls(settings)
    make_folder(new_server(Side.B), tmp_path / "b")
    with refused("not by a CA of its own"):
        renew(tmp_path / "b", settings.public_url)
    (tmp_path / "a" / "ca.pem").write_text(new_ca("other", "a.example", datetime.now(UTC)).certificate)
    with refused(r"ca-key\.pem is not the key of ca\.pem"):
        renew(tmp_path / "a", settings.public_url)


def test_the_compared_card_is_kept_and_completes_the_settings(
    a: tuple[OperatorCard, ServerSettings], tmp_path: Path
) -> None:
    _, settings = a
    theirs = make_folder(new_server(Side.B, own_ca=True), tmp_path / "b")
    sent = read_card(str(tmp_path / "b" / "operator-b.card.toml"))
    pair(settings, sent, fingerprint_of(theirs))
    pair(settings, sent, fingerprint_of(theirs).replace(" ", ""))  # a second time changes nothing
    assert paired(settings) == theirs
    told = completed(settings)
    assert told.peer_url == "https://b.example:8443"
    assert present(told.peer_ca).read_text() == theirs.ca
    check_tls(told)


def test_a_wrong_fingerprint_keeps_nothing(a: tuple[OperatorCard, ServerSettings]) -> None:
    _, settings = a
    with refused("what was read is not the fingerprint of this card of operator-b; nothing was kept"):
        pair(settings, operator_card(Side.B), fingerprint_of(operator_card(Side.A)))
    assert paired(settings) is None
    assert completed(settings) == settings
    assert not settings.data_dir.exists()


def test_cards_that_do_not_belong_together_are_refused(a: tuple[OperatorCard, ServerSettings]) -> None:
    own, settings = a
    same_name = operator_card(Side.B).model_copy(update={"party": own.party})
    same_host = operator_card(Side.B, url="https://a.example:9000")
    for card, said in (
        (operator_card(Side.B, "others"), "the same --federation"),
        (operator_card(Side.A), "both cards are of side 'a'"),
        (same_name, "is this your own card"),
        (same_host, "sees both halves of everything"),
    ):
        with refused(said):
            pair(settings, card, fingerprint_of(card))
    elsewhere = settings.model_copy(update={"peer_url": "https://c.example"})
    with refused("ask which address is right"):
        pair(elsewhere, operator_card(Side.B), fingerprint_of(operator_card(Side.B)))
    pair(settings, operator_card(Side.B), fingerprint_of(operator_card(Side.B)))
    moved = operator_card(Side.B, url="https://c.example")
    with refused("paired with 'operator-b' under another card"):
        pair(settings, moved, fingerprint_of(moved))


def test_files_of_another_server_are_noticed(a: tuple[OperatorCard, ServerSettings], tmp_path: Path) -> None:
    _, settings = a
    with refused("key 'card' is missing: enrolment is for a server whose folder"):
        own_card(settings.model_copy(update={"card": None}))
    (tmp_path / "other.toml").write_text(dump_card(operator_card(Side.A)))
    with refused("take the files of one 'moiety server init'"):
        own_card(settings.model_copy(update={"card": tmp_path / "other.toml"}))


def test_a_card_can_be_fetched_from_the_peers_address(
    a: tuple[OperatorCard, ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    card, settings = a
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    with answering(context, Shown) as url:
        monkeypatch.setattr(Shown, "body", dump_card(card).encode())
        assert read_card(url) == card
        assert Shown.asked[-1] == "GET /v1/card HTTP/1.1"
        monkeypatch.setattr(Shown, "body", b"x" * 40_000)
        with refused("shows no card"):
            read_card(url)
    with refused("or have the card sent as a file"):
        read_card(url)


def test_the_commands_print_what_to_read_and_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = more_free_ports(1)
    told = ["--federation", "clinics", "--name", "operator-a", "--url", f"https://127.0.0.1:{port}"]
    made = ("server", "init", "--side", "a", *told, "--out", tmp_path / "a")
    assert moiety(*made, "--own-ca") == 0
    said = capsys.readouterr().out
    card = parse_card((tmp_path / "a" / "operator-a.card.toml").read_text(), "it")
    assert fingerprint_of(card) in said
    assert "moiety server pair THEIRS.card.toml" in said
    moiety("server", "status", "--config", tmp_path / "a" / "settings.toml")
    shown = capsys.readouterr().out
    assert f"\n    {fingerprint_of(card)}\nthe federation is not founded yet" in shown
    assert moiety(*made) == 2
