"""Two real server processes over TLS, and fake agents made of the protocol's own functions."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trustme

from harness.engine.parties import OPERATOR_NAMES, Parties, SiteEntry, make_parties
from harness.federation.forked import Forked, fork_command
from harness.federation.processes import write_secret
from host.clock import SYSTEM, Clock
from protocol.sharing import Side
from protocol.wire.keyfile import PartyKeys, dump_party_keys, dump_roster
from protocol.wire.messages import Roster
from tests.integration.signed_client import SignedClient
from tests.ports import HOST, more_free_ports

READY_WITHIN_S = 60.0
FOR_TESTS = {"connections_per_address": 512, "unsigned_per_s": 1000.0}
"""All sites of a test come from one address, and some send much that nobody signed."""


@dataclass
class ServerHandle:
    """One server process that can be killed and started again on the same data."""

    side: Side
    url: str
    operations_url: str
    config: Path
    ca_file: Path
    process: Forked | None = None

    @property
    def log(self) -> str:
        return self.config.with_name("process.log").read_text(errors="replace")

    def start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOIETY_")}
        log = self.config.with_name("process.log")
        self.process = fork_command(["server", "run", "--config", str(self.config)], log, environment)

    def wait(self, path: str = "/healthz") -> None:
        """Until the server answers 200 at ``path``."""
        deadline = time.monotonic() + READY_WITHIN_S
        with httpx.Client(trust_env=False) as client:
            while time.monotonic() < deadline:
                assert self.process is not None
                assert self.process.poll() is None, self.log
                try:
                    if client.get(self.operations_url + path).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        raise AssertionError(f"not ready at {path}:\n{self.log}")

    def kill(self) -> None:
        """kill -9: nothing is flushed, nothing says goodbye."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def restart(self) -> None:
        self.kill()
        self.start()
        self.wait()


@dataclass
class Federation:
    """Both servers, everybody's keys and the certificate authority."""

    parties: Parties
    servers: dict[Side, ServerHandle]
    ca_file: Path
    folder: Path = field(default_factory=Path)
    clock: Clock = SYSTEM
    connect: Callable[[], httpx.BaseTransport] | None = None
    """The way to both servers where it is none over TLS."""

    @property
    def roster(self) -> Roster:
        return self.parties.roster.message

    def keys(self, name: str) -> PartyKeys:
        return self.parties.keys_of(name)

    def url(self, side: Side) -> str:
        return self.servers[side].url

    def client(self, name: str) -> SignedClient:
        return SignedClient(self, self.keys(name))


def prepare_servers(
    folder: Path,
    sites: Sequence[str],
    *,
    requester: str | None = None,
    seed: int | None = None,
    limits: dict[str, Any] | None = None,
) -> Federation:
    """Write everything that two servers need; the first site is the requester unless another is named."""
    numbers = more_free_ports(4)
    ports = dict(zip(Side, numbers[:2], strict=True))
    operations = dict(zip(Side, numbers[2:], strict=True))
    urls = {side: f"https://{HOST}:{ports[side]}" for side in Side}
    entries = [SiteEntry(name, 100 + i) for i, name in enumerate(sites)]
    parties = make_parties("test", requester or sites[0], entries, secrets.token_bytes(32), urls)
    authority = trustme.CA()
    ca_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    (folder / "roster.toml").write_text(dump_roster(parties.roster))
    servers = {}
    for side in Side:
        place = folder / OPERATOR_NAMES[side]
        place.mkdir()
        certificate = authority.issue_cert(HOST)
        write_secret(place / "tls.key", certificate.private_key_pem.bytes().decode())
        (place / "tls.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        write_secret(place / "keys.toml", dump_party_keys(parties.keys_of(OPERATOR_NAMES[side])))
        settings = {
            "side": side.value,
            "host": HOST,
            "port": ports[side],
            "public_url": urls[side],
            "peer_url": urls[side.other],
            "roster": "../roster.toml",
            "keys": "keys.toml",
            "data_dir": "data",
            "tls_certificate": "tls.pem",
            "tls_key": "tls.key",
            "peer_ca": "../ca.pem",
            "operations_port": operations[side],
            **({} if seed is None else {"seed": seed}),
        }
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        text += "[limits]\n" + "".join(
            f"{key} = {json.dumps(value)}\n" for key, value in {**FOR_TESTS, **(limits or {})}.items()
        )
        (place / "settings.toml").write_text(text)
        servers[side] = ServerHandle(
            side, urls[side], f"http://{HOST}:{operations[side]}", place / "settings.toml", ca_file
        )
    return Federation(parties, servers, ca_file, folder)


@contextmanager
def start_servers(
    folder: Path,
    sites: Sequence[str],
    *,
    requester: str | None = None,
    seed: int | None = None,
    limits: dict[str, Any] | None = None,
) -> Iterator[Federation]:
    """Both servers running and ready; stopped in the end whatever happens."""
    federation = prepare_servers(folder, sites, requester=requester, seed=seed, limits=limits)
    try:
        for server in federation.servers.values():
            server.start()
        for server in federation.servers.values():
            server.wait("/readyz")
        yield federation
    finally:
        for server in federation.servers.values():
            server.stop()
