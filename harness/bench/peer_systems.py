"""Whole rounds of Flower and NVFlare, each with its server, its clients and the processes that they start."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

from harness.bench.meter import Gauge
from harness.bench.peer_processes import Asked, Environment, Processes, Relay, Taken, environment, free_port
from protocol.errors import Unavailable

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


def flower_environment(cache: Path) -> Environment:
    """Raises: ConfigurationError"""
    return environment(cache, "flower", (f"flwr=={FLOWER}",))


def flower_rounds(asked: Asked, cache: Path, folder: Path, *, secure: bool) -> Taken:
    """FedAvg, or FedAvg under SecAgg+. Raises: ConfigurationError, Unavailable"""
    here = flower_environment(cache)
    port, marks = free_port(), folder / "marks"
    _write_app(asked, folder, marks, port, secure=secure)
    own = {**here.variables, "FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    with Processes(folder, own) as processes, Relay(port) as relay:
        server = processes.start("superlink", _superlink(here, port))
        processes.wait_for_port("superlink", port)
        names = [f"supernode-{place}" for place in range(asked.clients)]
        clients = [processes.start(name, _node(here, relay.port, place)) for place, name in enumerate(names)]
        with Gauge([server], clients, relay.counted) as gauge:
            processes.start("run", [here.program("flwr"), "run", str(folder / "app"), "local"])
            found = processes.wait_for_round(marks, asked.all_rounds + 1, ["superlink", *names, "run"], asked.within_s)
    return Taken.of(gauge.readings, found, asked)


def _superlink(here: Environment, port: int) -> list[str]:
    options = ["--insecure", "--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
    return [here.program("flower-superlink"), *options]


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


NVFLARE: Final = "2.9.0"
TENSEAL: Final = "0.3.18"
_JOB: Final = Path(__file__).with_name("nvflare_job.py")
_PROJECT: Final = "peers"
_ADMIN: Final = "admin@nvidia.com"
_SERVER: Final = "nvflare.private.fed.app.server.server_train"
_CLIENT: Final = "nvflare.private.fed.app.client.client_train"
_MORE: Final = ("org=nvidia", "config_folder=config")
_PREPARED_WITHIN_S: Final = 180.0


def nvflare_environment(cache: Path) -> Environment:
    """Raises: ConfigurationError"""
    return environment(cache, "nvflare", (f"nvflare=={NVFLARE}", f"tenseal=={TENSEAL}"))


def nvflare_rounds(asked: Asked, cache: Path, folder: Path, *, encrypted: bool) -> Taken:
    """FedAvg by ScatterAndGather, or the same under CKKS. Raises: ConfigurationError, Unavailable"""
    here = nvflare_environment(cache)
    port, marks = free_port(), folder / "marks"
    own = {**here.variables, "HOME": str(folder)}
    with Processes(folder, own) as processes, Relay(port) as relay:
        kits = _provision(here, _project(asked, port, relay.port), folder)
        server = processes.start("server", _program(here, _SERVER, kits / "server", "fed_server.json"))
        processes.wait_for_port("server", port)
        names = [f"site-{place}" for place in range(1, asked.clients + 1)]
        clients = [processes.start(n, _program(here, _CLIENT, kits / n, "fed_client.json", f"uid={n}")) for n in names]
        for name in names:
            processes.wait_for_text(name, "Successfully registered client")
        with Gauge([server], clients, relay.counted) as gauge:
            processes.start("job", _job(here, asked, kits, marks, encrypted=encrypted))
            found = processes.wait_for_round(marks, asked.all_rounds + 1, ["server", *names, "job"], asked.within_s)
    return Taken.of(gauge.readings, found, asked)


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
    """Certificates, signed settings and CKKS contexts of server, clients and admin. Raises: Unavailable"""
    file = folder / "project.yml"
    file.write_text(json.dumps(project), encoding="utf-8")  # JSON is YAML
    done = subprocess.run(  # noqa: S603 - a program of the peer's own environment
        [here.program("nvflare"), "provision", "-p", str(file), "-w", str(folder)],
        env={**here.variables, "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PREPARED_WITHIN_S,
    )
    kits = folder / _PROJECT / "prod_00"
    if done.returncode != 0 or not (kits / "server").is_dir():
        last = ((done.stderr or done.stdout).strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"nvflare provision: {last}")
    return kits


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
