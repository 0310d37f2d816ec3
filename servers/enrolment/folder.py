"""`moiety server init`: a new server's folder, whole or not at all; nothing that is there is overwritten."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from pydantic import ValidationError

from host.files import read_secret
from host.network import require_apart
from host.output_files import rewrite, unwritable, write_new
from host.settings import read_text
from protocol.channel.keys import SEALING_KEY_BYTES, SIGNING_KEY_BYTES, generate_sealing_key, generate_signing_key
from protocol.configuration import explain
from protocol.errors import ConfigurationError
from protocol.messages.control import Party, Role
from protocol.roster.enrolment import OperatorCard, dump_card
from protocol.roster.keyfile import PartyKeys, dump_party_keys
from protocol.sharing import Side
from servers.enrolment.own_ca import OwnCa, TlsFiles, issue, new_ca
from servers.enrolment.texts import (
    CA,
    CA_KEY,
    CHAIN,
    COMPOSE,
    KEYS,
    SETTINGS,
    TLS_KEY,
    Told,
    compose_text,
    settings_text,
)

_USUAL_PORT: Final = 8443
_SECRET: Final = 0o600
_PUBLIC: Final = 0o644


@dataclass(frozen=True)
class NewServer:
    """The operator's choices. ``certificate`` and ``tls_key``: files that are there already, or both None."""

    side: Side
    federation: str
    operator: str
    url: str
    peer_url: str | None = None
    port: int | None = None
    own_ca: bool = False
    certificate: Path | None = None
    tls_key: Path | None = None

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    def told(self) -> Told:
        """Return the values for the settings. Raises: ConfigurationError"""
        if (self.certificate is None) is not (self.tls_key is None):
            raise ConfigurationError("options --tls-certificate and --tls-key: name both files, or neither")
        if self.own_ca and self.certificate is not None:
            raise ConfigurationError("option --own-ca makes a certificate: leave --tls-certificate and --tls-key out")
        chain = CHAIN if self.certificate is None else os.path.realpath(self.certificate)
        key = TLS_KEY if self.tls_key is None else os.path.realpath(self.tls_key)
        port = self.port or urlsplit(self.url).port or _USUAL_PORT
        return Told(self.side, self.operator, self.url, self.peer_url, port, chain, key)


def make_folder(new: NewServer, out: Path) -> tuple[OperatorCard, Told]:
    """Keys, card, settings, compose file, and a CA with a certificate where one is asked for.

    Raises: ConfigurationError, StorageFull; then nothing is left behind
    """
    keys = PartyKeys(
        name=new.operator,
        role=Role.OPERATOR,
        signing=generate_signing_key(secrets.token_bytes(SIGNING_KEY_BYTES)),
        sealing=generate_sealing_key(secrets.token_bytes(SEALING_KEY_BYTES)),
    )
    card = _card(new, keys, None)  # whatever is wrong with the options is said before a certificate is made
    told = new.told()
    if new.peer_url is not None:
        require_apart((new.url, new.peer_url))
    require_free(told.port)
    files: list[tuple[Path, str, int]] = []
    if new.own_ca:
        now = datetime.now(UTC)
        ca = new_ca(new.operator, new.host, now)
        card = _card(new, keys, ca.certificate)
        files = _tls(out, ca, issue(ca, new.host, now))
    files += [
        (out / KEYS, dump_party_keys(keys), _SECRET),
        (out / told.card, dump_card(card), _PUBLIC),
        (out / SETTINGS, settings_text(told), _PUBLIC),
        (out / COMPOSE, compose_text(told), _PUBLIC),
    ]
    write_folder(out, files)
    return card, told


def _card(new: NewServer, keys: PartyKeys, ca: str | None) -> OperatorCard:
    try:
        party = Party(**(keys.party().model_dump() | {"url": new.url}))
        return OperatorCard(federation=new.federation, side=new.side, party=party, ca=ca)
    except ValidationError as error:
        raise ConfigurationError(
            f"options --name, --federation (lower-case letters, digits, '-') and --url: {explain(Party, error)}"
        ) from None


def _tls(out: Path, ca: OwnCa, made: TlsFiles) -> list[tuple[Path, str, int]]:
    return [
        (out / CA, ca.certificate, _PUBLIC),
        (out / CA_KEY, ca.key, _SECRET),
        (out / CHAIN, made.certificate, _PUBLIC),
        (out / TLS_KEY, made.key, _SECRET),
    ]


def write_folder(out: Path, files: list[tuple[Path, str, int]]) -> None:
    """All of them in a folder that was empty or not there. Raises: ConfigurationError, StorageFull"""
    there = out.exists()
    _require_empty(out)
    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_new(*files)
    except BaseException as failed:
        if not there:
            with suppress(OSError):
                out.rmdir()
        if isinstance(failed, OSError):
            raise unwritable(out, failed) from None
        raise


def _require_empty(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        raise ConfigurationError(f"option --out: {out} holds files already; nothing was changed: name another folder")


def require_free(port: int) -> None:
    """Raises: ConfigurationError, when somebody listens on this port of this machine already"""
    with socket.socket(socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  # what the server will do
        except OSError as error:
            why = "somebody listens there already" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
            raise ConfigurationError(
                f"option --port: {port} cannot be listened on: {why}; stop who uses it (ss -ltnp), or name another "
                "port (sites call the one in --url)"
            ) from None


def renew(folder: Path, url: str) -> datetime:
    """Another certificate by this folder's own CA, in place of the one before; a running server takes it up.

    Returns: when it ends. Raises: ConfigurationError, StorageFull
    """
    if not (folder / CA_KEY).exists():
        raise ConfigurationError(
            f"{folder / CA_KEY} is not there: this server's certificate is not by a CA of its own ('moiety server "
            "init --own-ca'), or its key is kept elsewhere: put it back for this command"
        )
    ca = OwnCa(read_text(folder / CA), read_secret(folder / CA_KEY))
    made = issue(ca, urlsplit(url).hostname or "", datetime.now(UTC))
    rewrite(folder / TLS_KEY, made.key, mode=_SECRET)
    rewrite(folder / CHAIN, made.certificate)
    return x509.load_pem_x509_certificate(made.certificate.encode()).not_valid_after_utc
