"""Whole rounds of Flower: a SuperLink, a SuperNode for every client, and the processes that both start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from harness.bench.against.whole.environments import Environment, environment
from harness.bench.against.whole.gauge import Gauge
from harness.bench.against.whole.relay import Relay
from harness.bench.against.whole.running import Processes, free_port
from harness.bench.against.whole.taken import Asked, Taken

VERSION: Final = "1.41.0"
_APP: Final = Path(__file__).with_name("programs") / "flower_app.py"
_PROJECT: Final = """[project]
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
    return environment(cache, "flower", (f"flwr=={VERSION}",))


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
    project = _PROJECT.format(
        secure=str(secure).lower(),
        rounds=asked.all_rounds,
        clients=asked.clients,
        parameters=asked.parameters,
        marks=marks,
    )
    (app / "pyproject.toml").write_text(project, encoding="utf-8")
    (home / "config.toml").write_text(_ADDRESS.format(port=port), encoding="utf-8")
