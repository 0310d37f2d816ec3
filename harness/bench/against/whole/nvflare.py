"""Whole rounds of NVFlare: a provisioned server and clients over mutual TLS, and the job processes they start."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from harness.bench.against.whole.environments import Environment, environment
from harness.bench.against.whole.gauge import Gauge
from harness.bench.against.whole.relay import Relay
from harness.bench.against.whole.running import Processes, free_port
from harness.bench.against.whole.taken import Asked, Taken
from protocol.errors import Unavailable

VERSION: Final = "2.9.0"
TENSEAL: Final = "0.3.18"
_JOB: Final = Path(__file__).with_name("programs") / "nvflare_job.py"
_PROJECT: Final = "peers"
_ADMIN: Final = "admin@nvidia.com"
_SERVER: Final = "nvflare.private.fed.app.server.server_train"
_CLIENT: Final = "nvflare.private.fed.app.client.client_train"
_MORE: Final = ("org=nvidia", "config_folder=config")
_PREPARED_WITHIN_S: Final = 180.0


def nvflare_environment(cache: Path) -> Environment:
    """Raises: ConfigurationError"""
    return environment(cache, "nvflare", (f"nvflare=={VERSION}", f"tenseal=={TENSEAL}"))


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
