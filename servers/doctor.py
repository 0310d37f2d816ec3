"""Everything that a server needs, looked at before it runs: each failure with the next step.

Nothing is written and no port is kept; of the peer is asked what a stranger could ask.
"""

from __future__ import annotations

import platform
import ssl
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from host.doctor import Finding, Report, Way, failed, look_at_disk, look_at_memory, look_at_way, looked, ok, warning
from host.network import require_apart, why_not_free
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Roster
from servers.enrolment.desk import Desk
from servers.enrolment.pairing import completed
from servers.identity.certificate import ServedCertificate, check_tls
from servers.identity.roster import load_identity
from servers.settings import ServerSettings, load_settings
from servers.store.database import open_engine

_GIB: Final = 2**30


def examine_server(config: Path, now: Callable[[], float] = time.time) -> Report:
    try:
        settings = completed(load_settings(config))
    except MoietyError as error:
        return Report(of=str(config), findings=(failed("settings", error.detail),))
    of = f"server {settings.side.value}"
    findings = [ok("settings", f"{config}: side {settings.side.value!r}"), _versions(), *_machine(settings)]
    findings += [_certificate(settings, now()), looked("database", lambda: _database(settings))]
    if settings.card is not None and not settings.roster.exists():
        return Report(of=of, findings=(*findings, looked("roster and keys", lambda: _founding(settings))))
    try:
        chain, keys, _ = load_identity(settings)
    except MoietyError as error:
        return Report(of=of, findings=(*findings, failed("roster and keys", error.detail)))
    roster = chain.head
    own = f"{keys.name!r} of federation {roster.federation!r} with {len(roster.sites)} sites"
    findings.append(ok("roster and keys", own))
    return Report(of=of, findings=(*findings, *_peer(settings, roster, now)))


def _founding(settings: ServerSettings) -> str:
    waits_for = "; ".join(Desk(settings, time.time).waits_for())
    return f"no roster yet, which is right before the federation is founded; waits for {waits_for}"


def _versions() -> Finding:
    found = ", ".join(f"{name} {version(name)}" for name in ("moiety", "fastapi", "uvicorn", "sqlalchemy"))
    return ok("versions", f"{found}, Python {platform.python_version()}, {ssl.OPENSSL_VERSION}")


def _machine(settings: ServerSettings) -> Iterator[Finding]:
    least = settings.limits.disk_reserve_bytes
    yield look_at_disk("data folder", settings.data_dir, least, max(2 * least, 20 * _GIB))
    yield look_at_memory(2 * _GIB)
    ports = (("port", settings.host, settings.port), ("operations_port", settings.operations_host, settings.operations))
    for key, host, port in ports:
        yield _port(key, host, port)


def _port(key: str, host: str, port: int) -> Finding:
    error = why_not_free(host, port)
    if error is None:
        return ok(key, f"{host}:{port} is free")
    found = f"{host}:{port} cannot be listened on: {error.strerror or error}"
    return warning(key, found, "right if this server is running now; else stop who uses it, or name another")


def _certificate(settings: ServerSettings, now_s: float) -> Finding:
    """Valid, for the host that sites call, and for long enough."""
    check = "certificate"
    try:
        check_tls(settings)
        served = ServedCertificate(settings)
        served.require_valid(now_s)
        _require_name(settings)
    except MoietyError as error:
        return failed(check, error.detail)
    remark = served.remark(now_s)
    if remark is not None:
        return warning(check, remark, "a renewed one is taken up within a minute, without a restart")
    return ok(check, f"{settings.tls_certificate} is for {urlsplit(settings.public_url).hostname}")


def _require_name(settings: ServerSettings) -> None:
    host = urlsplit(settings.public_url).hostname or ""
    leaf = x509.load_pem_x509_certificates(settings.tls_certificate.read_bytes())[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    known = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    wild = f"*.{host.partition('.')[2]}"
    if host not in known and wild not in known:
        shown = ", ".join(known[:5]) or "nobody"
        raise ConfigurationError(
            f"key 'tls_certificate': {settings.tls_certificate} is for {shown}, and sites call {host!r} (public_url): "
            "have one issued with that as a subject alternative name"
        )


def _database(settings: ServerSettings) -> str:
    if settings.database_url is None:
        there = (settings.data_dir / "server.db").exists()
        return "SQLite in the data folder" + ("" if there else ", made at the first start")
    engine = open_engine(settings.database)
    try:
        with engine.connect() as connection:
            connection.execute(select(1))
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise ConfigurationError(
            f"key 'database_url': {said}: is it up, and are user, password and name right?"
        ) from None
    finally:
        engine.dispose()
    return f"{engine.dialect.name} answers"


def _peer(settings: ServerSettings, roster: Roster, now: Callable[[], float]) -> Iterator[Finding]:
    urls = (roster.operator_a.url or "", roster.operator_b.url or "")
    yield looked("two operators", lambda: require_apart(urls))
    peer = roster.operator(settings.side.other)
    yield from look_at_way(Way(f"peer ({peer.name})", peer.url or "", settings.peer_ca), now)
