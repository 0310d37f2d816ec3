"""A federation whose servers are several processes each, over PostgreSQL and behind Caddy, as deploy/ runs them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest

from harness.engine.parties import OPERATOR_NAMES
from harness.federation.memory.learners import Learners
from harness.federation.processes import FederationSpec, toml_lines
from protocol.sharing import Side
from tests.kit.postgres import Cluster
from tests.kit.processes import Federation
from tests.ports import more_free_ports

HOST: Final = "127.0.0.1"
LEASE_S: Final = 1.5
WITHIN_S: Final = 60.0
_CADDYFILE: Final = Path(__file__).resolve().parents[2] / "deploy" / "several" / "Caddyfile"
_UPLOADS: Final = 2
_DRIVERS: Final = 2


def upload(side: Side, number: int) -> str:
    """The name of a process."""
    return f"{OPERATOR_NAMES[side]}-upload-{number}"


def driver(side: Side, number: int) -> str:
    return f"{OPERATOR_NAMES[side]}-driver-{number}"


class Several(Federation):
    """Two processes that take uploads and two that may drive, at each side; names as above."""

    def __init__(self, folder: Path, spec: FederationSpec, learner: Learners, cluster: Cluster) -> None:
        if shutil.which("caddy") is None:
            pytest.skip("NOT TESTED: no caddy here (Debian's package caddy, 2.6 or later)")
        super().__init__(folder, spec, learner, {"lease_s": LEASE_S})
        self._fronts = ExitStack()
        self.of = {
            side: (
                *(upload(side, n + 1) for n in range(_UPLOADS)),
                *(driver(side, n + 1) for n in range(_DRIVERS)),
            )
            for side in Side
        }
        names = [name for side in Side for name in self.of[side]]
        ports = more_free_ports(2 * len(names))
        self.ports = dict(zip(names, zip(ports[::2], ports[1::2], strict=True), strict=True))
        for side in Side:
            self.databases[side] = cluster.new_database()
            self._own_certificate(side)
            for name in self.of[side]:
                self._settle(side, name)

    def config(self, name: str) -> Path:
        for side in Side:
            if name.startswith(f"{OPERATOR_NAMES[side]}-"):
                return self.folder / OPERATOR_NAMES[side] / f"{name}.toml"
        return super().config(name)

    def _own_certificate(self, side: Side) -> None:
        """Make a certificate that only Caddy trusts."""
        place = self.folder / OPERATOR_NAMES[side]
        certificate = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        names = ("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}", "-days", "3650")
        files = ("-keyout", str(place / "tls-key.pem"), "-out", str(place / "tls-certificate.pem"))
        subprocess.run((*certificate, *names, *files), check=True, capture_output=True, timeout=60)
        (place / "tls-key.pem").chmod(0o600)

    def _settle(self, side: Side, name: str) -> None:
        """One settings file a process, beside the others of its server."""
        lines = self.plain[OPERATOR_NAMES[side]].splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(("port =", "operations_port ="))]
        port, operations_port = self.ports[name]
        role = "upload" if "-upload-" in name else "driver"
        own: dict[str, object] = {"role": role, "port": port, "operations_port": operations_port}
        own |= {"database_url": self.databases[side], "forwarded_by": [f"{HOST}/32"]}
        self.plain[name] = toml_lines(own) + "".join(kept)
        self.config(name).write_text(self.plain[name])
        (self.folder / name).mkdir()

    # --- life ---

    def start_servers(self) -> None:
        for side in Side:
            self._front(side)
        roots = [self.folder / f"caddy-{side.value}/caddy/pki/authorities/local/root.crt" for side in Side]
        self.until(lambda: all(root.exists() for root in roots), "both of Caddy's CAs")
        self.ca_file.write_text("".join(root.read_text() for root in roots))
        for side in Side:
            for name in self.of[side]:
                self.start_process(name)
        for side in Side:
            for name in self.of[side]:
                self.until(partial(self.ready, name), f"{name} is ready")

    def start_process(self, name: str, failpoint: str | None = None) -> None:
        self.running.pop(name, None)
        armed = {} if failpoint is None else {"failpoint": failpoint}
        self.config(name).write_text(toml_lines(armed) + self.plain[name])
        self.spawn(name, "server", "run", "--config", str(self.config(name)))

    def stop(self) -> None:
        for running in self.running.values():
            running.process.send_signal(signal.SIGCONT)  # one that stands still would hear nothing else
        super().stop()
        self._fronts.close()

    def _front(self, side: Side) -> None:
        data = self.folder / f"caddy-{side.value}"
        urls = {role: [f"https://{HOST}:{self.ports[n][0]}" for n in self.of[side] if role in n] for role in _ROLES}
        told = {
            "MOIETY_URL": self.url(side),
            "MOIETY_NAME": HOST,
            "MOIETY_UPLOADS": " ".join(urls["upload"]),
            "MOIETY_DRIVERS": " ".join(urls["driver"]),
            "MOIETY_UPSTREAM_CA": str(self.folder / OPERATOR_NAMES[side] / "tls-certificate.pem"),
            "MOIETY_ISSUER": "internal",
            "MOIETY_CHOOSE": "round_robin",  # all sites of a test have one address
            "XDG_DATA_HOME": str(data),
            "XDG_CONFIG_HOME": str(data),
        }
        command = ("caddy", "run", "--adapter", "caddyfile", "--config", str(_CADDYFILE))
        with (self.folder / f"caddy-{side.value}.log").open("wb") as log:
            process = subprocess.Popen(command, env=os.environ | told, stdout=log, stderr=log)
        self._fronts.callback(process.wait, 20)
        self._fronts.callback(process.terminate)

    # --- what is seen of them ---

    def asked(self, name: str, path: str) -> int:
        """The status at a process's own port for its operator; 0 where it does not answer."""
        with self._http() as http:
            try:
                return http.get(f"http://{HOST}:{self.ports[name][1]}{path}").status_code
            except httpx.TransportError:
                return 0

    def ready(self, name: str) -> bool:
        return self.asked(name, "/readyz") == 200

    def drives(self, side: Side) -> str | None:
        """The process that drives, by its own word."""
        return next((name for name in self.of[side] if self.asked(name, "/drives") == 200), None)

    def bytes_in(self, name: str, route: str) -> int:
        """Bytes of the requests that a process has answered since its start."""
        counted = f'moiety_bytes_total{{direction="in",kind="{route}"}} '
        with self._http() as http:
            lines = http.get(f"http://{HOST}:{self.ports[name][1]}/metrics").text.splitlines()
        return sum(int(float(line.removeprefix(counted))) for line in lines if line.startswith(counted))

    def log_of(self, name: str) -> str:
        return (self.folder / name / "process.log").read_text(errors="replace")

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not true():
            assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s: {what}\n{self.logs(list(self.running))}"
            time.sleep(0.1)

    def logs(self, names: Sequence[str]) -> str:
        return "\n".join(f"{name}:\n{self.running[name].tail()}" for name in names if name in self.running)


_ROLES: Final = ("upload", "driver")
