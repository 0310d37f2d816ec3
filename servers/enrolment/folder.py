"""`moiety server init`: a new server's folder, whole or not at all; nothing that is there is overwritten."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import ValidationError

from host.compose import HARDENED, LOGGED
from host.files import read_secret
from host.network import require_apart, why_not_free
from host.output_files import rewrite, unwritable, write_new
from host.randomness import new_party_keys
from host.settings import read_text
from protocol.configuration import explain
from protocol.errors import ConfigurationError
from protocol.messages.control import Party, Role
from protocol.roster.enrolment import OperatorCard, dump_card
from protocol.roster.keyfile import PartyKeys, dump_party_keys
from protocol.sharing import Side

KEYS: Final = "keys.toml"
SETTINGS: Final = "settings.toml"
COMPOSE: Final = "compose.yaml"
CHAIN: Final = "tls-certificate.pem"
TLS_KEY: Final = "tls-key.pem"
CA: Final = "ca.pem"
CA_KEY: Final = "ca-key.pem"
CONTAINER_PORT: Final = 8443
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

    @property
    def listens_on(self) -> int:
        return self.port or urlsplit(self.url).port or _USUAL_PORT

    @property
    def card(self) -> str:
        return f"{self.operator}.card.toml"

    def require_tls(self) -> None:
        """Raises: ConfigurationError, unless the options for TLS go together"""
        if (self.certificate is None) is not (self.tls_key is None):
            raise ConfigurationError("options --tls-certificate and --tls-key: name both files, or neither")
        if self.own_ca and self.certificate is not None:
            raise ConfigurationError("option --own-ca makes a certificate: leave --tls-certificate and --tls-key out")


def settings_text(new: NewServer) -> str:
    """A settings file for this folder; in a container the compose file's variables stand in for three of its keys."""
    values = {
        "side": new.side.value,
        "host": "0.0.0.0",  # noqa: S104  # a server is there to be reached
        "port": new.listens_on,
        "public_url": new.url,
        **({"peer_url": new.peer_url} if new.peer_url else {}),
        "card": new.card,
        "keys": KEYS,
        "roster": "data/roster.toml",
        "data_dir": "data",
        "tls_certificate": CHAIN if new.certificate is None else os.path.realpath(new.certificate),
        "tls_key": TLS_KEY if new.tls_key is None else os.path.realpath(new.tls_key),
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return (
        "# Every key is explained in docs/operating.md. The roster comes by itself when the federation is founded,\n"
        f"# the other operator's address and CA with 'moiety server pair'.\n{lines}"
    )


def compose_text(new: NewServer) -> str:
    """The compose file of this folder, with a project name of its own."""
    project = f"moiety-{new.operator}"
    return f"""# The server of {new.operator}, side {new.side.value}. Start: docker compose up -d (in this folder)
# All files here belong to user 10001, secrets to nobody else: chown -R 10001 . && chmod 600 *key*
# Every other command: docker compose run --rm moiety server ... --config /etc/moiety/settings.toml
# The project's name keeps it apart from other compose files on the same machine.
name: {project}
services:
  server:
    image: ${{MOIETY_SERVER_IMAGE:-moiety-server:local}}
    restart: unless-stopped
{HARDENED}\
    mem_limit: ${{MOIETY_MEMORY:-2g}}
    cpus: "${{MOIETY_CPUS:-2}}"
    pids_limit: 256
    stop_grace_period: 15s
    ports: ["${{MOIETY_PORT:-{new.listens_on}}}:{CONTAINER_PORT}"]
    environment:
      MOIETY_SERVER_PORT: "{CONTAINER_PORT}"
      MOIETY_SERVER_DATA_DIR: /var/lib/moiety
      MOIETY_SERVER_ROSTER: /var/lib/moiety/roster.toml
      MOIETY_SERVER_OPERATIONS_HOST: 0.0.0.0
      MOIETY_SERVER_OPERATIONS_PORT: "9443"
    volumes:
      - ${{MOIETY_CONFIG:-.}}:/etc/moiety:ro
      - data:/var/lib/moiety
    networks: [outside, operations]
{LOGGED}\
  moiety: # for commands: it alone may write into this folder, a renewed certificate for instance
    image: ${{MOIETY_SERVER_IMAGE:-moiety-server:local}}
    profiles: [commands]
{HARDENED}\
    mem_limit: 1g
    pids_limit: 256
    environment:
      MOIETY_SERVER_PORT: "{CONTAINER_PORT}"
      MOIETY_SERVER_DATA_DIR: /var/lib/moiety
      MOIETY_SERVER_ROSTER: /var/lib/moiety/roster.toml
    volumes:
      - ${{MOIETY_CONFIG:-.}}:/etc/moiety
      - data:/var/lib/moiety
    networks: [outside]

networks:
  outside:
  operations: {{internal: true}} # metrics and readiness, for the operator's Prometheus; never published

volumes:
  data:
    name: {project}
"""


def next_steps(folder: Path, new: NewServer, fingerprint: str) -> str:
    settings = folder / SETTINGS
    lines = [
        f"{folder}: made. Keep {KEYS} and the other files with 'key' in their names on this machine.",
        "",
        f"Fingerprint of {new.operator}, to be read over the phone:",
        "",
        f"    {fingerprint}",
        "",
        "What to do next (docs/enrolling.md):",
    ]
    if not new.own_ca and new.certificate is None:
        lines.append(
            f"  - put a TLS certificate for {new.url} into {folder / CHAIN} and its key into {folder / TLS_KEY} "
            "(chmod 600); docs/enrolling.md says how with ACME"
        )
    lines += [
        f"  - send {folder / new.card} to the other operator; ask for theirs",
        f"  - read each other the fingerprints over the phone: moiety server pair THEIRS.card.toml --config {settings} "
        "--fingerprint '...'",
        f"  - start the server: moiety server run --config {settings}",
        f"  - invite the requester: moiety server invite NAME --requester --config {settings}",
    ]
    return "\n".join(lines) + "\n"


def make_folder(new: NewServer, out: Path) -> OperatorCard:
    """Keys, card, settings, compose file, and a CA with a certificate where one is asked for.

    Raises: ConfigurationError, StorageFull; then nothing is left behind
    """
    keys = new_party_keys(new.operator, Role.OPERATOR)
    card = _card(new, keys, None)  # whatever is wrong with the options is said before a certificate is made
    new.require_tls()
    if new.peer_url is not None:
        require_apart((new.url, new.peer_url))
    require_free(new.listens_on)
    files: list[tuple[Path, str, int]] = []
    if new.own_ca:
        now = datetime.now(UTC)
        ca = new_ca(new.operator, new.host, now)
        card = _card(new, keys, ca.certificate)
        made = issue(ca, new.host, now)
        files = [
            (out / CA, ca.certificate, _PUBLIC),
            (out / CA_KEY, ca.key, _SECRET),
            (out / CHAIN, made.certificate, _PUBLIC),
            (out / TLS_KEY, made.key, _SECRET),
        ]
    files += [
        (out / KEYS, dump_party_keys(keys), _SECRET),
        (out / new.card, dump_card(card), _PUBLIC),
        (out / SETTINGS, settings_text(new), _PUBLIC),
        (out / COMPOSE, compose_text(new), _PUBLIC),
    ]
    write_folder(out, files)
    return card


def _card(new: NewServer, keys: PartyKeys, ca: str | None) -> OperatorCard:
    try:
        party = Party(**(keys.party().model_dump() | {"url": new.url}))
        return OperatorCard(federation=new.federation, side=new.side, party=party, ca=ca)
    except ValidationError as error:
        raise ConfigurationError(
            f"options --name, --federation (lower-case letters, digits, '-') and --url: {explain(Party, error)}"
        ) from None


def write_folder(out: Path, files: list[tuple[Path, str, int]]) -> None:
    """All of them in a folder that was empty or not there. Raises: ConfigurationError, StorageFull"""
    there = out.exists()
    if out.is_dir() and any(out.iterdir()):
        raise ConfigurationError(f"option --out: {out} holds files already; nothing was changed: name another folder")
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


def require_free(port: int) -> None:
    """Raises: ConfigurationError, when somebody listens on this port of this machine already"""
    error = why_not_free("0.0.0.0", port)  # noqa: S104  # what the server will do
    if error is not None:
        why = "somebody listens there already" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
        raise ConfigurationError(
            f"option --port: {port} cannot be listened on: {why}; stop who uses it (ss -ltnp), or name another "
            "port (sites call the one in --url)"
        )


def renew(folder: Path, url: str) -> datetime:
    """Another certificate by this folder's own CA, in place of the one before; a running server takes it up.

    Returns: when it ends. Raises: ConfigurationError, StorageFull
    """
    if not (folder / CA_KEY).exists():
        raise ConfigurationError(
            f"{folder / CA_KEY} is not there: this server's certificate is not by a CA of its own ('moiety server "
            "init --own-ca'), or its key is kept elsewhere: put it back for this command"
        )
    ca = Certified(read_text(folder / CA), read_secret(folder / CA_KEY))
    made = issue(ca, urlsplit(url).hostname or "", datetime.now(UTC))
    rewrite(folder / TLS_KEY, made.key, mode=_SECRET)
    rewrite(folder / CHAIN, made.certificate)
    return x509.load_pem_x509_certificate(made.certificate.encode()).not_valid_after_utc


_CA_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 397
_EARLY: Final = timedelta(hours=1)
"""A margin for clocks that are a little behind."""


@dataclass(frozen=True)
class Certified:
    """PEM texts of a certificate and its private key; a CA's key belongs on no machine but the operator's."""

    certificate: str
    key: str = field(repr=False)


def new_ca(operator: str, host: str, now: datetime) -> Certified:
    """A CA of ten years, constrained to ``host``: a site that trusts it lets it vouch for nobody else's server."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Moiety CA of {operator}")
    until = now + timedelta(days=_CA_DAYS)
    builder = _builder(name, name, key.public_key(), now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    ).add_extension(x509.NameConstraints([_host_name(host, as_constraint=True)], None), critical=True)
    return Certified(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(), _pem(key))


def issue(ca: Certified, host: str, now: datetime) -> Certified:
    """A certificate for ``host``, with a new key. Raises: ConfigurationError, when these files are no CA"""
    try:
        issuer = x509.load_pem_x509_certificate(ca.certificate.encode())
        signs = load_pem_private_key(ca.key.encode(), None)
    except ValueError as error:
        raise ConfigurationError(f"ca.pem and ca-key.pem are not a CA and its key: {error}") from None
    if not isinstance(signs, ec.EllipticCurvePrivateKey) or signs.public_key() != issuer.public_key():
        raise ConfigurationError("ca-key.pem is not the key of ca.pem")
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + timedelta(days=CERTIFICATE_DAYS), issuer.not_valid_after_utc)
    builder = _builder(_name(host), issuer.subject, key.public_key(), now, until)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host_name(host)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key()), critical=False
    )
    return Certified(builder.sign(signs, hashes.SHA256()).public_bytes(Encoding.PEM).decode(), _pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now.astimezone(UTC) - _EARLY).not_valid_after(until.astimezone(UTC))


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _host_name(host: str, *, as_constraint: bool = False) -> x509.GeneralName:
    """A constraint names an address as a network of one."""
    try:
        return x509.IPAddress(ipaddress.ip_network(host) if as_constraint else ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
