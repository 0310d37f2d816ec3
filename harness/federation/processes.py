"""A federation as real processes on one machine: two servers and an agent per site, over HTTPS (docs/architecture.md).

Writes everything a real deployment has (certificates, keys, the signed roster, settings, data folders) into one
folder, starts ``moiety server run`` and ``moiety agent run``, and stops them all in the end.

What runs is what the command line runs, in a process of its own: own memory, files, group and environment, killed and
started again like a service. Only the imports (two to three seconds of torch for every agent) are done once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Final, Self

import httpx
import trustme
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from client_agent.learning.data import LocalData, save_folder
from client_agent.learning.study_file import FinishTable
from client_agent.study.outbox import create_study
from harness.engine.parties import OPERATOR_NAMES, Parties, SiteEntry, make_parties
from harness.fork_server import fork_context, one_thread
from host.network import is_loopback
from protocol.errors import ConfigurationError, Unavailable
from protocol.messages.control import Study
from protocol.policy.site_policy import SitePolicy
from protocol.roster.keyfile import dump_party_keys, dump_roster
from protocol.sharing import Side
from servers.settings import Limits


class Forked:
    """A forked process with the part of ``subprocess.Popen`` that a federation uses; it ends with its parent."""

    def __init__(
        self, run: Callable[..., None], arguments: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self._process = fork_context().Process(
            target=_run, args=(run, tuple(arguments), str(log), dict(environment)), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        found = self._process.pid
        if found is None:
            raise RuntimeError("a process that was started has no id")
        return found

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that killed it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Raises: subprocess.TimeoutExpired."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("forked", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """To its whole group, once it leads one; nothing where it has ended."""
        if self.poll() is not None:
            return
        try:
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass


def fork_command(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Forked:
    """``moiety ARGUMENTS`` in a process of its own; what it prints is added to ``log``."""
    return Forked(run_command, arguments, log, environment)


def spawn_command(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The same in a process that shares no memory with another, for whoever measures what one takes."""
    return spawn_module("moiety", arguments, log, environment)


def spawn_module(
    module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start ``python -m MODULE ARGUMENTS``; what it prints is added to ``log``."""
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )


def run_command(*arguments: str) -> None:
    """The command line, in the process that was forked for it."""
    import moiety

    moiety.main(arguments)


def _run(run: Callable[..., None], arguments: tuple[str, ...], log: str, environment: dict[str, str]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run(*arguments)


def _end_with_parent() -> None:
    """A parent that was killed stops nobody: without this, a federation would go on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)


_READY_WITHIN_S: Final = 60.0
_STOP_WITHIN_S: Final = 8.0
_TAIL_LINES: Final = 12
_TAIL_CHARACTERS: Final = 400
_LOOPBACK: Final = "127.0.0.1"
_OPERATIONS_ABOVE: Final = 1000
_CONNECTIONS_A_SITE: Final = 20
_PROJECT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class SiteSpec:
    """One site: its name, its data, and the policy its agent is configured with."""

    name: str
    data: LocalData = field(repr=False)
    policy: SitePolicy = field(default_factory=SitePolicy)


@dataclass(frozen=True)
class FederationSpec:
    """A federation to start. With a ``seed`` every random draw is reproducible, on loopback addresses only.

    Draws are labelled by the study's digest, which covers the servers' addresses through the roster: ``ports`` are
    taken where they are free, so that the same seed gives the same draws. ``bootstrap_samples`` are drawn by every site
    after a study for the intervals of its scores, which can take longer than a short study.
    """

    name: str
    requester: str
    sites: tuple[SiteSpec, ...]
    seed: int | None = None
    host: str = "127.0.0.1"
    ports: tuple[int, int] = (8441, 8442)
    bootstrap_samples: int = 200

    def __post_init__(self) -> None:
        if self.seed is not None and not is_loopback(self.host):
            raise ConfigurationError(
                f"a seeded federation makes every secret predictable: host must be loopback, found {self.host!r}; "
                "use 127.0.0.1, or leave the seed out"
            )
        if self.requester not in {site.name for site in self.sites}:
            raise ConfigurationError(f"the requester {self.requester!r} is not among the sites")


@dataclass(frozen=True)
class Running:
    """One started process and where it writes its log."""

    name: str
    process: Forked | subprocess.Popen[bytes] = field(repr=False)
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(line[:_TAIL_CHARACTERS] for line in lines[-_TAIL_LINES:])


class RunningFederation:
    """The processes of one federation; use as a context manager, which stops them whatever happens."""

    def __init__(self, spec: FederationSpec, folder: Path, *, forked: bool = True) -> None:
        self._start = fork_command if forked else spawn_command
        self.spec = spec
        self.folder = Path(os.path.realpath(folder))
        self._ports = dict(zip(Side, _free_ports(spec.host, spec.ports), strict=True))
        own = [port + _OPERATIONS_ABOVE for port in self._ports.values()]
        self._operations_ports = dict(zip(Side, _free_ports(_LOOPBACK, own), strict=True))
        self.running: dict[str, Running] = {}
        self._ca = trustme.CA()
        self.parties = self._write_everything()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- places ---

    def url(self, side: Side) -> str:
        return f"https://{self.spec.host}:{self._ports[side]}"

    def operations_url(self, side: Side) -> str:
        return f"http://{_LOOPBACK}:{self._operations_ports[side]}"

    def config(self, name: str) -> Path:
        """The settings file of a server (by its operator's name) or a site."""
        return self.folder / name / "settings.toml"

    def state(self, site: str) -> Path:
        """The folder in which a site's agent keeps its journal, ledger and metrics."""
        return self.folder / site / "state"

    def ledger(self, site: str) -> Path:
        return self.state(site) / "ledger.jsonl"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    # --- life ---

    def start(self) -> None:
        """Both servers, then, once they answer, every agent; returns when both servers are ready."""
        for side in Side:
            self.start_server(side)
        for side in Side:
            self.wait_for(side, "/healthz")
        for site in self.spec.sites:
            self.start_agent(site.name)
        for side in Side:
            self.wait_for(side, "/readyz")

    def start_server(self, side: Side) -> None:
        self.spawn(OPERATOR_NAMES[side], "server", "run", "--config", str(self.config(OPERATOR_NAMES[side])))

    def start_agent(self, site: str) -> None:
        self.spawn(site, "agent", "run", "--config", str(self.config(site)))

    def stop(self) -> None:
        """Ask every process to end, kill those that do not."""
        for running in self.running.values():
            running.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_WITHIN_S
        for running in self.running.values():
            try:
                running.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                running.process.send_signal(signal.SIGKILL)
                running.process.wait()
        self.running.clear()

    def kill(self, name: str) -> None:
        """kill -9 of one process, for tests of what comes back."""
        running = self.running.pop(name)
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()

    def check(self) -> None:
        """Unavailable, with the end of its log, if a process has ended by itself."""
        for running in self.running.values():
            code = running.process.poll()
            if code is not None:
                raise Unavailable(
                    f"{running.name} ended with exit code {code}; the end of {running.log}:\n{running.tail()}"
                )

    def tails(self) -> str:
        names = (*OPERATOR_NAMES.values(), self.spec.requester)
        return "\n".join(f"{name}:\n{self.running[name].tail()}" for name in names if name in self.running)

    def wait_for(self, side: Side, path: str, within_s: float = _READY_WITHIN_S) -> None:
        """Until a server answers 200 at ``path``; Unavailable when it does not or a process ends."""
        name, deadline = OPERATOR_NAMES[side], time.monotonic() + within_s
        answer = "no answer"
        with self._http() as http:
            while time.monotonic() < deadline:
                self.check()
                try:
                    response = http.get(self.operations_url(side) + path)
                except httpx.TransportError as error:
                    answer = type(error).__name__
                else:
                    if response.status_code == httpx.codes.OK:
                        return
                    answer = f"{response.status_code} {response.text[:200]}"
                time.sleep(0.1)
        raise Unavailable(f"{name} is not ready at {path} after {within_s:g} s: {answer}\n{self.running[name].tail()}")

    # --- what can be read from outside ---

    @property
    def process_ids(self) -> dict[str, int]:
        """Name -> process id of everything that runs."""
        return {name: running.pid for name, running in self.running.items()}

    def metrics(self, side: Side) -> str:
        with self._http() as http:
            return http.get(self.operations_url(side) + "/metrics").raise_for_status().text

    def samples(self, side: Side, name: str) -> list[Sample]:
        """Current samples of a server's metric, by their labels."""
        families = text_string_to_metric_families(self.metrics(side))
        return [sample for family in families for sample in family.samples if sample.name == name]

    def hand_in(self, study: Study, finish: FinishTable | None = None) -> None:
        """Queue a study at the requester's agent, as ``moiety study create`` does."""
        create_study(self.state(self.spec.requester), study, finish=finish)

    def run_cli(self, *arguments: str) -> str:
        """One ``moiety`` command in its own process, as a person would type it; its standard output."""
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "moiety", *arguments],
            env=own_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            raise Unavailable(f"'moiety {' '.join(arguments)}' ended with exit code {done.returncode}: {said}")
        return done.stdout

    # --- files ---

    def _http(self) -> httpx.Client:
        return httpx.Client(trust_env=False, timeout=5.0)

    def spawn(self, name: str, *arguments: str) -> None:
        """``moiety ARGUMENTS`` as the process ``name``, logged into its folder."""
        log = self.folder / name / "process.log"
        log.touch()
        self.running[name] = Running(name, self._start(arguments, log, own_environment()), log)

    def _write_everything(self) -> Parties:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ca.cert_pem.write_to_path(str(self.ca_file))
        seed = os.urandom(32) if self.spec.seed is None else self.spec.seed.to_bytes(32, "big", signed=True)
        entries = [SiteEntry(site.name, len(site.data.train)) for site in self.spec.sites]
        urls = {side: self.url(side) for side in Side}
        parties = make_parties(self.spec.name, self.spec.requester, entries, seed, urls)
        (self.folder / "roster.toml").write_text(dump_roster(parties.roster), encoding="utf-8")
        for keys in parties.keys:
            place = self.folder / keys.name
            place.mkdir(parents=True, exist_ok=True)
            write_secret(place / "keys.toml", dump_party_keys(keys))
        for side in Side:
            self._write_server(side)
        for site in self.spec.sites:
            self.write_site(site)
        return parties

    def _write_server(self, side: Side) -> None:
        place = self.folder / OPERATOR_NAMES[side]
        certificate = self._ca.issue_cert(self.spec.host)
        write_secret(place / "tls-key.pem", certificate.private_key_pem.bytes().decode())
        (place / "tls-certificate.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        settings = {
            "side": side.value,
            "host": self.spec.host,
            "port": self._ports[side],
            "public_url": self.url(side),
            "peer_url": self.url(side.other),
            "roster": "../roster.toml",
            "keys": "keys.toml",
            "data_dir": "data",
            "tls_certificate": "tls-certificate.pem",
            "tls_key": "tls-key.pem",
            "peer_ca": "../ca.pem",
            "operations_port": self._operations_ports[side],
        }
        self._write_settings(OPERATOR_NAMES[side], settings, {"limits": self.limits()})

    def limits(self) -> dict[str, object]:
        """All sites come from one address here, this machine's."""
        connections = _CONNECTIONS_A_SITE * (len(self.spec.sites) + 1)
        return {
            "connections": max(Limits().connections, 2 * connections),
            "connections_per_address": max(Limits().connections_per_address, connections),
            "unsigned_per_s": 200.0,
        }

    def write_site(self, site: SiteSpec) -> None:
        """A site's settings and data; its keys are written elsewhere."""
        place = self.folder / site.name
        save_folder(place / "data", site.data)
        settings = {
            "site": site.name,
            "roster": "../roster.toml",
            "keys": "keys.toml",
            "data": "data",
            "state_dir": "state",
            "ca": "../ca.pem",
            "device": "cpu",
            "approve": "policy",
            "bootstrap_samples": self.spec.bootstrap_samples,
        }
        self._write_settings(site.name, settings, {"policy": site.policy.model_dump(exclude_none=True)})

    def _write_settings(
        self, name: str, settings: Mapping[str, object], tables: Mapping[str, Mapping[str, object]] | None = None
    ) -> None:
        seeded = {} if self.spec.seed is None else {"seed": self.spec.seed}
        text = toml_lines({**settings, **seeded})
        for table, values in (tables or {}).items():
            text += f"\n[{table}]\n" + toml_lines(values)
        self.config(name).write_text(text, encoding="utf-8")


def toml_lines(values: Mapping[str, object]) -> str:
    """Flat TOML: JSON's strings, numbers, booleans and lists are TOML as they are."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def own_environment() -> dict[str, str]:
    """The caller's environment, without settings meant for other servers and agents, one thread per process."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MOIETY_SERVER_", "MOIETY_AGENT_"))}
    found = [str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return one_thread({**kept, "PYTHONPATH": os.pathsep.join(found), "PYTHONUNBUFFERED": "1"})


def _free_ports(host: str, wanted: Sequence[int]) -> list[int]:
    """The ports that are wanted, or another one for each that is taken just now."""
    sockets = [socket.socket() for _ in wanted]
    try:
        for one, port in zip(sockets, wanted, strict=True):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((host, port))
            except OSError:
                one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def write_secret(path: Path, text: str) -> None:
    """A file that only its owner may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
