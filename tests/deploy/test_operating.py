"""The container commands of operating.md, typed as they stand there: keys, doctor, start, readiness, status, drain."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.prepare_demo import prepare
from tests.deploy.containers import ROOT, attempt, build_images, compose_command, container_of, run, wait_until
from tests.documents.walk import Walk
from tests.ports import more_free_ports

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

USER = 10001
ELSEWHERE = (
    *("docker build ", "PYTHON=python3.11 deploy/fetch_wheels.sh"),  # tests/deploy/containers.py
    *("tar -xf moiety", "PYTHON=python3.11 sh moiety-", "/opt/moiety/bin/moiety lab faults"),  # test_bundle.py
    *("cp deploy/systemd", "install -d", "systemctl"),  # test_systemd.py, into a folder in the place of a machine
    *("kubectl ", "helm "),  # test_helm.py
    *("openssl req", "chmod 600 operator-a/tls-key.pem"),  # test_caddy.py
    *("moiety server drain --config", "tar -C", "rm -rf DATA_DIR"),  # tests/integration/test_drained_upgrade.py
    "moiety server run",  # likewise
    *("export RAY_", "ray start"),  # tests/unit/servers/scale/test_on_ray.py, by the same variables
)


@dataclass
class Operator:
    """A shell of operator A's, in a folder that holds what the documents presuppose, with a project of its own."""

    place: Path
    compose: tuple[str, ...]
    project: str
    walk: Walk = field(default_factory=lambda: Walk(("docs/operating.md",), ELSEWHERE))
    port: int = field(default_factory=lambda: more_free_ports(1)[0])

    def type(self, begins: str, put: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A line as it stands there, but for the project's name and addresses of this machine."""
        own = {"docker compose -f": f"{' '.join(self.compose)} -p {self.project} -f"}
        own |= {"run --rm server": "run --rm -T server", "exec server": "exec -T server"}  # no terminal is here
        line = self.walk.line(begins, {**(put or {}), **own})
        return attempt("bash", "-ec", line, cwd=self.place, env=os.environ | {"MOIETY_PORT": str(self.port)})

    def typed(self, begins: str, put: dict[str, str] | None = None) -> str:
        """Run a command that must succeed; return its output."""
        done = self.type(begins, put)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def container(self) -> str:
        return container_of(self.project, "server")


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    compose = compose_command()
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: the containers' user owns the operator's folder, which root alone can say")
    build_images()
    place = tmp_path_factory.mktemp("operating")
    prepare(place / "made")
    (place / "deploy").mkdir()
    text = (ROOT / "deploy" / "operator-a.yaml").read_text(encoding="utf-8")
    project = f"moiety-typed-{os.getpid()}"
    lines = [line for line in text.splitlines() if not line.startswith("name:")]  # as the page says for Compose 1
    kept = "\n".join(lines).replace("name: moiety-operator-a", f"name: {project}")
    (place / "deploy" / "operator-a.yaml").write_text(kept + "\n", encoding="utf-8")
    own = place / "deploy" / "operator-a"
    shutil.copytree(place / "made" / "operator-a", own)
    for path in (own, *own.iterdir()):
        os.chown(path, USER, USER)
        path.chmod(0o700 if path.is_dir() else 0o600)
    found = Operator(place, compose, project)
    try:
        yield found
    finally:
        whole = (*compose, "-p", project, "-f", str(place / "deploy" / "operator-a.yaml"), "down", "--volumes")
        subprocess.run(whole, capture_output=True, check=False)


def test_keys_are_made(operator: Operator) -> None:
    operator.typed("mkdir operator-a-new && chown 10001 operator-a-new")
    operator.typed("docker run --rm -v")
    made = {path.name: path.stat().st_mode & 0o777 for path in (operator.place / "operator-a-new").iterdir()}
    assert len(made) == 2
    assert 0o600 in made.values()


def test_a_server_is_looked_at_started_watched_drained_and_replaced(operator: Operator) -> None:
    looked = operator.type("docker compose -f deploy/operator-a.yaml run --rm server doctor")
    assert "roster and keys" in looked.stdout, looked.stdout + looked.stderr
    assert looked.returncode == 1  # nobody is side B here
    operator.typed("docker compose -f deploy/operator-a.yaml up -d")
    inside = "curl --fail --silent --show-error --noproxy '*' --cacert deploy/operator-a/ca.pem --resolve"
    address = f"{inside} operator-a:{operator.port}:127.0.0.1 https://operator-a:{operator.port}/healthz"
    put = {"curl https://a.example.org:8443/healthz": address}
    wait_until(lambda: operator.type("curl https", put).returncode == 0, "/healthz", 120)
    ready = operator.type(
        "docker compose -f deploy/operator-a.yaml exec server python3 /usr/local/lib/moiety/healthcheck"
    )
    assert ready.returncode == 1
    assert "operator-b" in ready.stdout  # nobody is side B
    said = operator.typed("docker compose -f deploy/operator-a.yaml exec server moiety server status")
    assert "server a (operator-a): NOT READY" in said
    assert "no study is at this server" in said
    drained = operator.typed("docker compose -f deploy/operator-a.yaml exec server moiety server drain")
    assert "start the new release" in drained
    before = operator.container
    run("docker", "tag", "moiety-server:local", "moiety-server:typed")
    try:
        operator.typed("MOIETY_SERVER_IMAGE=moiety-server:NEW", {"moiety-server:NEW": "moiety-server:typed"})
        assert operator.container != before
        wait_until(lambda: operator.type("curl https", put).returncode == 0, "/healthz of the new one", 120)
    finally:
        run("docker", "rm", "-f", operator.container)
        run("docker", "rmi", "moiety-server:typed")


def test_nothing_on_the_page_is_left_untyped(operator: Operator) -> None:
    assert operator.walk.left() == []
