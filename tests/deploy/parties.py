"""Strangers in containers, each in a folder and on networks of its own, as docs/enrolling.md has them start."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.containers import attempt, container_of, logs_of, run
from tests.ports import more_free_ports

USER = 10001
CONFIG = ("--config", "/etc/moiety/settings.toml")


@dataclass(frozen=True)
class Networks:
    """Internal ones, so that nobody reaches anybody but those who are on them; ``prefix`` is this run's."""

    prefix: str
    names: tuple[str, ...]

    def of(self, name: str) -> str:
        assert name in self.names
        return f"{self.prefix}-{name}"

    def make(self) -> None:
        for name in self.names:
            run("docker", "network", "create", "--internal", self.of(name))

    def remove_all(self) -> None:
        """Containers, volumes and networks whose name begins with the prefix: all of this run's."""
        named = ("--filter", f"name={self.prefix}")
        for listed, removed in (
            (("ps", "-aq"), ("rm", "-f")),
            (("volume", "ls", "-q"), ("volume", "rm")),
            (("network", "ls", "-q"), ("network", "rm")),
        ):
            found = run("docker", *listed, *named).split()
            if found:
                run("docker", *removed, *found)


@dataclass(frozen=True)
class Stranger:
    """An operator or a site: a folder below ``place`` in which its compose file lies once it has begun."""

    compose: tuple[str, ...]
    place: Path
    name: str
    networks: Networks
    on: tuple[str, ...]
    host: str | None = None
    port: int = field(default_factory=lambda: more_free_ports(1)[0])

    @property
    def is_operator(self) -> bool:
        return self.host is not None

    @property
    def folder(self) -> Path:
        return self.place / self.name

    @property
    def _service(self) -> str:
        return "server" if self.is_operator else "agent"

    @property
    def _project(self) -> str:
        return f"{self.networks.prefix}-{self.name}"

    def make_folder(self) -> None:
        """Empty, and of the containers' user."""
        self.folder.mkdir(mode=0o755)
        os.chown(self.folder, USER, USER)

    def put(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        os.chown(path, USER, USER)

    def take(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def first(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Its first command, for which there is the image alone."""
        image = f"moiety-{self._service}:local"
        network = () if self.is_operator else ("--network", self.networks.of(self.on[0]))
        return attempt("docker", "run", "--rm", *network, "-v", f"{self.folder}:/etc/moiety", image, *words)

    def moiety(self, *words: str) -> str:
        """``docker compose run --rm moiety ...`` in its folder."""
        return self._compose("run", "--rm", "-T", "moiety", *words, *CONFIG)

    def inside(self, *words: str) -> str:
        """In the container that runs already."""
        return run("docker", "exec", self.container, "moiety", *words, *CONFIG)

    def fails(self, *words: str) -> str:
        """Run a command that must fail; return its message."""
        done = attempt("docker", "exec", self.container, "moiety", *words, *CONFIG)
        assert done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    def up(self) -> None:
        self._compose("up", "-d")

    @property
    def container(self) -> str:
        return container_of(self._project, self._service)

    def logs(self) -> str:
        return logs_of(self.container)

    def rounds(self, study: str) -> list[dict]:
        """The lines of a study's metrics, at a site."""
        path = f"/var/lib/moiety/studies/{study}/metrics.jsonl"
        done = attempt("docker", "exec", self.container, "cat", path)
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

    def _compose(self, *words: str) -> str:
        """Its own compose file, on this run's networks and with a volume of this run's; the name is an option, since
        the old docker-compose does not know it in the file."""
        lines = self.take("compose.yaml").splitlines(keepends=True)
        made = self.place / f"{self.name}.compose.yaml"
        made.write_text("".join(line for line in lines if not line.startswith("name:")), encoding="utf-8")
        beside = self.place / f"{self.name}.networks.yaml"
        beside.write_text(self._networks_text(), encoding="utf-8")
        files = ("-f", str(made), "-f", str(beside))
        options = ("-p", self._project, "--project-directory", str(self.folder))
        return run(*self.compose, *files, *options, *words, environment={"MOIETY_PORT": str(self.port)})

    def _networks_text(self) -> str:
        aliases = {"aliases": [self.host]} if self.host else {}
        volume = "data" if self.is_operator else "state"
        services = {
            self._service: {"networks": {f"n-{name}": aliases for name in self.on}},
            "moiety": {"networks": {f"n-{self.on[0]}": {}}},
        }
        networks = {f"n-{name}": {"external": True, "name": self.networks.of(name)} for name in self.on}
        volumes = {volume: {"name": f"{self._project}-{volume}"}}
        return json.dumps({"services": services, "networks": networks, "volumes": volumes})
