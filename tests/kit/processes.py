"""The one way to start a federation's processes in a test: both servers, and agents with torch or a light learner.

Every one of them can be killed, armed with a failpoint and started again on what it left.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from client_agent.site.events import AgentEvent, EventKind
from client_agent.site.journal import StudyJournal
from harness.attack.signed_client import SignedClient
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.learners import Learners, light_sites
from harness.federation.processes import FederationSpec, Forked, Running, RunningFederation, toml_lines
from harness.federation.server_apps import AppsInMemory
from harness.fork_server import one_thread
from host.clock import SYSTEM, Clock
from protocol.messages.control import Roster
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side
from tests.kit.forked_site import run_site
from tests.kit.postgres import InPostgreSQL
from tests.ports import free_ports

FOR_TESTS: Final = {"connections_per_address": 512, "unsigned_per_s": 1000.0}
"""All sites of a test come from one address, and some send much that nobody signed."""


class Federation(RunningFederation):
    """A federation of processes; as a context manager, all of them run.

    ``learner``, a function of a module, is what agents learn with in place of torch. ``clock`` and ``connect`` are
    those of whoever speaks for the sites itself, where they are not the system's and TLS.
    """

    def __init__(
        self,
        folder: Path,
        spec: FederationSpec,
        learner: Learners | None = None,
        limits: dict[str, Any] | None = None,
    ) -> None:
        self._learner = learner
        self._own_limits = limits or {}
        self.clock: Clock = SYSTEM
        self.connect: Callable[[], httpx.BaseTransport] | None = None
        super().__init__(spec, folder)
        self.servers = {side: Server(self, side) for side in Side}
        self.plain = {name: self.config(name).read_text() for name in (*OPERATOR_NAMES.values(), *self.sites)}
        """Everybody's settings without a failpoint."""
        self.databases: dict[Side, str] = {}
        """The URLs of databases that are no file of the server's."""

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.spec.sites)

    @property
    def roster(self) -> Roster:
        return self.parties.roster.message

    def keys(self, name: str) -> PartyKeys:
        return self.parties.keys_of(name)

    def client(self, name: str) -> SignedClient:
        return SignedClient(self, self.keys(name))

    def limits(self) -> dict[str, object]:
        return {**super().limits(), **FOR_TESTS, **self._own_limits}

    # --- life ---

    def start_servers(self) -> None:
        for side in Side:
            self.start_server(side)
        for side in Side:
            self.wait_for(side, "/readyz")

    def start_agents(self, *sites: str) -> None:
        """These, or all of them."""
        for site in sites or self.sites:
            self.start_agent(site)

    def spawn(self, name: str, *arguments: str) -> None:
        if self._learner is None or arguments[0] != "agent":
            super().spawn(name, *arguments)
            return
        log = self.folder / name / "process.log"
        log.touch()
        process = Forked(partial(run_site, self._learner), [str(self.config(name))], log, one_thread({}))
        self.running[name] = Running(name, process, log)

    def start_party(self, name: str, failpoint: str | None = None, **settings: object) -> None:
        """Start it, armed or not, with further top-level settings; what was left of it is forgotten."""
        self.running.pop(name, None)
        armed = {} if failpoint is None else {"failpoint": failpoint}
        self.config(name).write_text(toml_lines({**armed, **settings}) + self.plain[name])
        for side in Side:
            if name == OPERATOR_NAMES[side]:
                self.start_server(side)
                return
        self.start_agent(name)

    def exit_code(self, name: str) -> int | None:
        return self.running[name].process.poll()

    # --- what is left on disk ---

    def keep_in(self, databases: Mapping[Side, str]) -> None:
        """Servers that are started from now on have their databases there."""
        for side, url in databases.items():
            self.databases[side], name = url, OPERATOR_NAMES[side]
            self.plain[name] = toml_lines({"database_url": url}) + self.plain[name]
            self.config(name).write_text(self.plain[name])

    def database(self, side: Side) -> sqlite3.Connection | InPostgreSQL:
        if side in self.databases:
            return InPostgreSQL(self.databases[side])
        path = self.folder / OPERATOR_NAMES[side] / "data" / "server.db"
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True)

    def journal(self, site: str, study: str) -> StudyJournal:
        return StudyJournal(self.state(site), study)

    def texts(self, kind: EventKind, site: str) -> list[str]:
        """The texts of an agent with a learner of the test's."""
        lines = (self.folder / site / "process.log").read_text().splitlines()
        said = [AgentEvent.model_validate_json(line) for line in lines if line.startswith('{"kind"')]
        return [event.text for event in said if event.kind is kind]

    def site_tails(self) -> str:
        return "\n".join(f"{name}:\n{self.running[name].tail()}" for name in self.sites if name in self.running)


@dataclass(frozen=True)
class Server:
    """One server's process, killed and started again on the same data."""

    federation: Federation
    side: Side

    @property
    def name(self) -> str:
        return OPERATOR_NAMES[self.side]

    @property
    def config(self) -> Path:
        return self.federation.config(self.name)

    @property
    def process(self) -> Forked | subprocess.Popen[bytes]:
        return self.federation.running[self.name].process

    @property
    def operations_url(self) -> str:
        return self.federation.operations_url(self.side)

    @property
    def log(self) -> str:
        return self.config.with_name("process.log").read_text(errors="replace")

    def restart(self) -> None:
        """kill -9: nothing is flushed, nothing says goodbye."""
        self.federation.kill(self.name)
        self.federation.start_server(self.side)
        self.federation.wait_for(self.side, "/healthz")


def prepare_servers(
    folder: Path, sites: Sequence[str], *, seed: int | None = None, limits: dict[str, Any] | None = None
) -> Federation:
    """All that two servers need, written; the first site is the requester."""
    spec = FederationSpec("test", sites[0], light_sites(sites), seed=seed, ports=free_ports())
    return Federation(folder, spec, limits=limits)


@contextmanager
def running_servers(federation: Federation) -> Iterator[Federation]:
    """Both servers up and ready; everything is stopped in the end, whatever happens."""
    try:
        federation.start_servers()
        yield federation
    finally:
        federation.stop()


def start_servers(
    folder: Path, sites: Sequence[str], *, seed: int | None = None, limits: dict[str, Any] | None = None
) -> AbstractContextManager[Federation]:
    return running_servers(prepare_servers(folder, sites, seed=seed, limits=limits))


@contextmanager
def servers_in_memory(
    folder: Path, sites: Sequence[str], *, seed: int | None = None, limits: dict[str, Any] | None = None
) -> Iterator[Federation]:
    """As ``start_servers``, in this process and on a clock of their own, for a test that speaks for the sites."""
    federation = prepare_servers(folder, sites, seed=seed, limits=limits)
    apps = AppsInMemory({side: federation.servers[side].config for side in Side})
    try:
        federation.clock, federation.connect = apps.clock, apps.transport
        yield federation
    finally:
        apps.stop()


def set_limits(config: Path, limits: Mapping[str, object], forwarded_by: Sequence[str] = ()) -> None:
    head = config.read_text().split("[limits]")[0]
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in limits.items())
    config.write_text(f"{head}forwarded_by = {json.dumps(list(forwarded_by))}\n[limits]\n{table}")


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
