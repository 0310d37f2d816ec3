"""Whole rounds of Flower and NVFlare: environments of their own, their processes, the moments that they note in a file.

Each runs its own server, clients and what these start, behind a relay that counts bytes. Every client adds a constant
of its own to every parameter, so that the average is known.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.bench.meter import Between, Gauge, Reading, Relay, between
from harness.bench.processes import Processes, free_port
from protocol.errors import ConfigurationError, ProtocolViolation

STEP: Final = 1e-3
"""Client number i, from 1, adds i times this to every parameter in every round."""
_LARGEST_ERROR: Final = 1e-4
_WITHIN_S_PER_ROUND: Final = 300.0
_INSTALLED: Final = "installed.txt"
_MADE_WITHIN_S: Final = 900.0
_LOOK_S: Final = 0.2
FLOWER: Final = "1.41.0"
_APP: Final = Path(__file__).with_name("flower_app.py")
_APP_PROJECT: Final = """[project]
name = "peer-flower"
version = "1.0.0"
description = "Every client adds a constant"
license = {{ text = "Apache-2.0" }}
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "moiety"
[tool.flwr.app.components]
serverapp = "flower_app:server"
clientapp = "flower_app:client"
[tool.flwr.app.config]
secure = {secure}
rounds = {rounds}
clients = {clients}
parameters = {parameters}
marks = "{marks}"
"""
_ADDRESS: Final = '[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
NVFLARE: Final = "2.9.0"
TENSEAL: Final = "0.3.18"
_JOB: Final = Path(__file__).with_name("nvflare_job.py")
_PROJECT: Final = "peers"
_ADMIN: Final = "admin@nvidia.com"
_SERVER: Final = "nvflare.private.fed.app.server.server_train"
_CLIENT: Final = "nvflare.private.fed.app.client.client_train"
_MORE: Final = ("org=nvidia", "config_folder=config")


@dataclass(frozen=True)
class Environment:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    @property
    def variables(self) -> dict[str, str]:
        """This process's environment without our packages, its own programs first, one thread a library."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return {**kept, **threads, "PATH": f"{self.folder / 'bin'}{os.pathsep}{kept.get('PATH', '')}"}


def environment(cache: Path, name: str, requirements: tuple[str, ...]) -> Environment:
    """Made unless it is there with just these requirements.

    Raises: ConfigurationError with the last line of what failed
    """
    wanted = "\n".join(requirements)
    folder = cache / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    made = Environment(folder)
    if (folder / _INSTALLED).exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    _done(f"python -m venv {folder}", [sys.executable, "-m", "venv", "--clear", str(folder)])
    quiet = ["install", "--quiet", "--disable-pip-version-check"]
    _done(f"pip install {' '.join(requirements)}", [str(made.python), "-m", "pip", *quiet, *requirements])
    (folder / _INSTALLED).write_text(wanted, encoding="utf-8")
    return made


def _done(
    what: str, command: Sequence[str], cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> None:
    try:
        ended = subprocess.run(  # noqa: S603 - our own python, and programs of the peer's environment
            command, cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=_MADE_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{what}: not done in {_MADE_WITHIN_S:g} s") from None
    if ended.returncode != 0:
        last = ((ended.stderr or ended.stdout).strip().splitlines() or ["no message"])[-1]
        raise ConfigurationError(f"{what}: {last}")


@dataclass(frozen=True)
class Marks:
    """When each round began, by number from 1, and the smallest and largest parameter that were noted last."""

    rounds: dict[int, float]
    found: tuple[float, float] | None


def read_marks(path: Path) -> Marks:
    """Read what the peer has noted so far; lines ``SECONDS round N`` and ``SECONDS found LEAST MOST``."""
    rounds: dict[int, float] = {}
    found = None
    for line in path.read_text(encoding="ascii").splitlines() if path.exists() else []:
        match line.split():
            case [at_s, "round", number]:
                rounds[int(number)] = float(at_s)
            case [_, "found", least, most]:
                found = (float(least), float(most))
            case _:
                raise ProtocolViolation(f"{path}: a line is no mark: {line[:80]!r}")
    return Marks(rounds, found)


def wait_for_round(processes: Processes, marks: Path, number: int, names: Sequence[str], within_s: float) -> Marks:
    """Until round ``number`` has begun. Raises: Unavailable, when that is too long or a program has ended"""
    begun = f"round {number} had not begun"
    processes.wait_for(lambda: number in read_marks(marks).rounds, names, begun, within_s)
    return read_marks(marks)


@dataclass(frozen=True)
class Asked:
    """``rounds`` are measured, after one that warms everything up."""

    parameters: int
    clients: int
    rounds: int

    @property
    def all_rounds(self) -> int:
        return 1 + self.rounds

    @property
    def within_s(self) -> float:
        return _WITHIN_S_PER_ROUND * (1 + self.all_rounds)


def measured_rounds(readings: Sequence[Reading], marks: Marks, asked: Asked) -> Between:
    """All rounds after the first together. Raises: ProtocolViolation, when the average is wrong"""
    _require_average(marks, asked)
    return between(readings, marks.rounds[2], marks.rounds[2 + asked.rounds])


def _require_average(marks: Marks, asked: Asked) -> None:
    """Require that the last model is that of some whole number of rounds, everywhere the same."""
    if marks.found is None:
        raise ProtocolViolation("the peer has noted no model")
    least, most = marks.found
    step = STEP * (1 + asked.clients) / 2
    whole = round(most / step)
    if not (whole >= asked.rounds and math.isclose(least, most, abs_tol=_LARGEST_ERROR)) or not math.isclose(
        most, whole * step, abs_tol=_LARGEST_ERROR
    ):
        raise ProtocolViolation(f"the peer's model lies between {least:g} and {most:g}, not at a multiple of {step:g}")


@dataclass
class _Run:
    """One system's programs: its server listens at ``port``, its clients reach it through the relay."""

    asked: Asked
    processes: Processes
    port: int
    relay: Relay
    marks: Path

    def measured(
        self, server: list[str], clients: Mapping[str, list[str]], ready: str | None, job: list[str]
    ) -> Between:
        """Start everything, the job last. ``ready``: what a client's log says before it. Raises: Unavailable"""
        server_id = self.processes.start("server", server)
        self.processes.wait_for_port("server", self.port)
        ids = [self.processes.start(name, command) for name, command in clients.items()]
        for name in clients if ready is not None else ():
            self.processes.wait_for_text(name, ready or "")
        with Gauge([server_id], ids, self.relay.counted) as gauge:
            self.processes.start("job", job)
            names = ["server", *clients, "job"]
            found = wait_for_round(self.processes, self.marks, self.asked.all_rounds + 1, names, self.asked.within_s)
        return measured_rounds(gauge.readings, found, self.asked)


# --- Flower ---


def flower_rounds(asked: Asked, cache: Path, folder: Path, *, secure: bool) -> Between:
    """FedAvg, or FedAvg under SecAgg+. Raises: ConfigurationError, Unavailable"""
    here = environment(cache, "flower", (f"flwr=={FLOWER}",))
    port, marks = free_port(), folder / "marks"
    _write_app(asked, folder, marks, port, secure=secure)
    own = {**here.variables, "FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    with Processes(folder, own) as processes, Relay(port) as relay:
        options = ["--insecure", "--host", "127.0.0.1", "--port", str(port)]
        server = [here.program("flower-superlink"), *options, "--disable-runtime-dependency-installation"]
        nodes = {f"supernode-{place}": _node(here, relay.port, place) for place in range(asked.clients)}
        job = [here.program("flwr"), "run", str(folder / "app"), "local"]
        return _Run(asked, processes, port, relay, marks).measured(server, nodes, None, job)


def _node(here: Environment, port: int, place: int) -> list[str]:
    options = ["--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
    return [here.program("flower-supernode"), *options, "--node-config", f"partition-id={place}"]


def _write_app(asked: Asked, folder: Path, marks: Path, port: int, *, secure: bool) -> None:
    app, home = folder / "app", folder / "home"
    app.mkdir(parents=True)
    home.mkdir()
    shutil.copy(_APP, app)
    project = _APP_PROJECT.format(
        secure=str(secure).lower(),
        rounds=asked.all_rounds,
        clients=asked.clients,
        parameters=asked.parameters,
        marks=marks,
    )
    (app / "pyproject.toml").write_text(project, encoding="utf-8")
    (home / "config.toml").write_text(_ADDRESS.format(port=port), encoding="utf-8")


# --- NVFlare ---


def nvflare_rounds(asked: Asked, cache: Path, folder: Path, *, encrypted: bool) -> Between:
    """FedAvg by ScatterAndGather, or the same under CKKS. Raises: ConfigurationError, Unavailable"""
    here = environment(cache, "nvflare", (f"nvflare=={NVFLARE}", f"tenseal=={TENSEAL}"))
    port, marks = free_port(), folder / "marks"
    own = {**here.variables, "HOME": str(folder)}
    with Processes(folder, own) as processes, Relay(port) as relay:
        kits = _provision(here, _project(asked, port, relay.port), folder)
        server = _program(here, _SERVER, kits / "server", "fed_server.json")
        names = [f"site-{place}" for place in range(1, asked.clients + 1)]
        clients = {name: _program(here, _CLIENT, kits / name, "fed_client.json", f"uid={name}") for name in names}
        job = _job(here, asked, kits, marks, encrypted=encrypted)
        run = _Run(asked, processes, port, relay, marks)
        return run.measured(server, clients, "Successfully registered client", job)


def _project(asked: Asked, port: int, relay_port: int) -> dict[str, object]:
    """One server, the clients, which reach it through the relay, and an admin: as NVFlare's own examples have it."""
    lighter = "nvflare.lighter.impl"
    templates = {"template_file": ["master_template.yml", "aws_template.yml", "azure_template.yml"]}
    builders: list[dict[str, object]] = [
        {"path": f"{lighter}.workspace.WorkspaceBuilder", "args": templates},
        {"path": f"{lighter}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
        {"path": f"{lighter}.cert.CertBuilder"},
        {"path": f"{lighter}.he.HEBuilder", "args": {}},
        {"path": f"{lighter}.signature.SignatureBuilder"},
    ]
    server = {"name": "server", "type": "server", "org": "nvidia", "default_host": "localhost", "fed_learn_port": port}
    admin = {"name": _ADMIN, "type": "admin", "org": "nvidia", "role": "project_admin"}
    way = {"host": "localhost", "port": relay_port}
    clients = [
        {"name": f"site-{place}", "type": "client", "org": "nvidia", "connect_to": way}
        for place in range(1, asked.clients + 1)
    ]
    participants = [server, admin, *clients]
    return {
        "api_version": 3,
        "name": _PROJECT,
        "description": "peers",
        "participants": participants,
        "builders": builders,
    }


def _provision(here: Environment, project: dict[str, object], folder: Path) -> Path:
    """Certificates, signed settings and CKKS contexts of server, clients and admin. Raises: ConfigurationError"""
    file = folder / "project.yml"
    file.write_text(json.dumps(project), encoding="utf-8")  # JSON is YAML
    command = [here.program("nvflare"), "provision", "-p", str(file), "-w", str(folder)]
    _done("nvflare provision", command, folder, {**here.variables, "HOME": str(folder)})
    return folder / _PROJECT / "prod_00"


def _program(here: Environment, module: str, kit: Path, settings: str, *more: str) -> list[str]:
    options = ["-m", str(kit), "-s", settings, "--set", "secure_train=true", *more, *_MORE]
    return [str(here.python), "-u", "-m", module, *options]


def _job(here: Environment, asked: Asked, kits: Path, marks: Path, *, encrypted: bool) -> list[str]:
    """One round more than is measured: a round ends here when the next one reaches the first site."""
    jobs = kits.parent / "jobs"
    jobs.mkdir()
    numbers = [str(asked.parameters), str(asked.clients), str(asked.all_rounds + 1)]
    kind = "he" if encrypted else "plain"
    return [str(here.python), str(_JOB), kind, str(kits / _ADMIN), str(jobs), *numbers, str(marks)]
