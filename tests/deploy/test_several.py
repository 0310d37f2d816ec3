"""deploy/several with a real engine: operator A's server as several processes on PostgreSQL behind Caddy, B's as one,
and a study over both, in which a process that takes uploads and then the one that drives are killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from client_agent.learning.study_file import study_from_toml
from client_agent.site.journal import StudyJournal
from deploy.prepare_demo import STUDY_FILE, prepare
from protocol.messages.control import Study
from protocol.sharing import Side
from tests.deploy.containers import ROOT, Deployment, build_images, compose_command, images_beside, run, wait_until
from tests.deploy.test_containers import (
    REQUESTER,
    SETTINGS,
    SITES,
    check_against_plain_run,
    finished,
    health,
    in_whole_batches,
    is_healthy,
)
from tests.kit.present import present
from tests.ports import more_free_ports

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]

USER = 10001
SEVERAL = ROOT / "deploy" / "several"
UPLOADS, DRIVERS = ("upload-1", "upload-2"), ("driver-1", "driver-2")
URLS = {Side.A: "https://operator-a", Side.B: "https://operator-b:8443"}
CADDYS_CA = "/data/caddy/pki/authorities/local/root.crt"
DRIVES = """
import ssl, urllib.request as u
print(u.urlopen('https://127.0.0.1:8443/drives', context=ssl._create_unverified_context()).status)
"""


@dataclass(frozen=True)
class Started:
    """``several`` is operator A's; ``others`` has B and the sites."""

    several: Deployment
    others: Deployment
    study: Study
    port: int

    def drives(self) -> str | None:
        """The process that drives."""
        asked = {name: self.several.attempt(name, "python3", "-c", DRIVES).stdout.strip() for name in DRIVERS}
        return next((name for name, said in asked.items() if said == "200"), None)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    compose = compose_command()
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: the containers' user owns the operator's folder, which root alone can say")
    build_images()
    images = images_beside()
    folder, project = tmp_path_factory.mktemp("several") / "demo", f"moiety-several-{os.getpid()}"
    parties = prepare(folder, URLS)
    text = in_whole_batches(STUDY_FILE.read_text(encoding="utf-8"))
    (folder / REQUESTER / "study.toml").write_text(text, encoding="utf-8")
    study = study_from_toml(text, STUDY_FILE.name, parties.roster.message, None, folder / REQUESTER / "data")
    port, plain_port = more_free_ports(2)
    told = {"MOIETY_URL": URLS[Side.A], "MOIETY_NAME": "operator-a", "MOIETY_ISSUER": "internal"}
    told |= {"MOIETY_PORT": str(port), "MOIETY_HTTP_PORT": str(plain_port), **images}
    file = as_the_page_says(folder / "operator-a", folder.parent / "several", f"{project}-a")
    several = Deployment(compose, f"{project}-a", folder, file, told)
    others = Deployment(compose, project, folder)
    try:
        several.up()
        join(several, others)
        yield Started(several, others, study, port)
    finally:
        several.down()
        others.down()


def as_the_page_says(own: Path, place: Path, project: str) -> Path:
    """The compose file and what has to lie beside it. -> the file"""
    place.mkdir()
    shutil.copy(SEVERAL / "Caddyfile", place)
    shutil.move(own, place / "operator-a")
    own = place / "operator-a"
    settings = own / "settings.toml"
    settings.write_text(f'forwarded_by = ["10.89.44.0/24"]\n{settings.read_text()}')
    for path in (own, *own.iterdir()):
        os.chown(path, USER, USER)
        path.chmod(0o755 if path.is_dir() else 0o600)
    (own / "tls-certificate.pem").chmod(0o644)  # of which Caddy's container knows no more than this
    secrets = place / "secrets"
    secrets.mkdir()
    (secrets / "postgres").write_text("a-long-password")
    url = "postgresql+psycopg://moiety:a-long-password@postgres/moiety"
    (secrets / "postgres.env").write_text(f"MOIETY_SERVER_DATABASE_URL={url}\n")
    text = (SEVERAL / "operator-a.yaml").read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not line.startswith("name:")]  # docker-compose 1 does not know it
    file = place / "operator-a.yaml"
    file.write_text("\n".join(kept).replace("name: moiety-several-a", f"name: {project}") + "\n")
    return file


def join(several: Deployment, others: Deployment) -> None:
    """B and the sites come up trusting Caddy's CA; Caddy and the drivers come to their networks."""
    wait_until(lambda: several.attempt("caddy", "test", "-s", CADDYS_CA).returncode == 0, "Caddy's CA", 60)
    root = several.execute("caddy", "cat", CADDYS_CA)
    for site in SITES:
        ca = others.folder / site / "ca.pem"
        ca.write_text(ca.read_text() + root)
    others.up("operator-b", *SITES)
    for site in SITES:
        run(
            "docker",
            "network",
            "connect",
            "--alias",
            "operator-a",
            f"{others.project}_{site}",
            several.container("caddy"),
        )
    for name in DRIVERS:
        run("docker", "network", "connect", f"{others.project}_operators", several.container(name))


def test_all_of_them_become_healthy_and_one_drives(started: Started) -> None:
    for name in (*UPLOADS, *DRIVERS):
        wait_until(partial(is_healthy, started.several, name), f"{name} healthy", 180)
    wait_until(lambda: started.drives() is not None, "one drives", 60)


def test_it_is_reached_at_the_published_port_under_caddys_certificate(started: Started, tmp_path: Path) -> None:
    ca = tmp_path / "root.pem"
    ca.write_text(started.several.execute("caddy", "cat", CADDYS_CA))
    address = f"https://operator-a:{started.port}/healthz"
    whole = ("curl", "--fail", "--silent", "--noproxy", "*", "--cacert", str(ca), "-o", "/dev/null")
    at = ("--resolve", f"operator-a:{started.port}:127.0.0.1", address)
    wait_until(lambda: subprocess.run((*whole, *at), check=False, timeout=30).returncode == 0, address, 30)


@pytest.mark.parametrize("service", [*UPLOADS, *DRIVERS, "postgres", "caddy"])
def test_what_is_confined(started: Started, service: str) -> None:
    several = started.several
    host = several.inspect(service)["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert several.attempt(service, "touch", "/usr/x").returncode != 0
    if service in (*UPLOADS, *DRIVERS):
        assert several.execute(service, "id", "-u").strip() == str(USER)
    if service == "postgres":
        assert several.execute(service, "stat", "-c", "%U", "/proc/1").strip() == "postgres"


def test_a_study_ends_as_the_plain_run_though_an_upload_process_and_the_driver_are_killed(
    started: Started, tmp_path: Path
) -> None:
    several, others, study = started.several, started.others, started.study
    wait_until(lambda: health(others, "operator-b") == "healthy", "operator-b healthy", 120)
    others.execute(REQUESTER, "moiety", "study", "create", "/etc/moiety/study.toml", *SETTINGS)

    def rounds() -> int:
        return len(others.lines(REQUESTER, f"studies/{study.name}/metrics.jsonl"))

    wait_until(lambda: rounds() >= 2, "first rounds", 300)
    run("docker", "kill", several.container(UPLOADS[0]))
    killed_at = rounds()
    wait_until(lambda: rounds() > killed_at, "a round without that process", 180)

    first = present(started.drives())
    run("docker", "kill", several.container(first))
    assert rounds() < study.rounds, "the study was over before the driver was killed"
    (second,) = set(DRIVERS) - {first}
    wait_until(lambda: started.drives() == second, f"{second} drives", 60)
    wait_until(lambda: all(finished(others, site, study) for site in SITES), "the study's end", 300)
    for name in (UPLOADS[0], first):
        assert several.inspect(name)["State"]["ExitCode"] == 137
    states = {site: others.copy_state(site, tmp_path / site) for site in SITES}
    check_against_plain_run(study, {site: StudyJournal(state, study.name) for site, state in states.items()})


def test_what_was_killed_comes_back(started: Started) -> None:
    several = started.several
    for name in (*UPLOADS, *DRIVERS):
        run("docker", "start", several.container(name))
        wait_until(partial(is_healthy, several, name), f"{name} healthy", 120)


def test_no_log_holds_the_databases_password(started: Started) -> None:
    for name in (*UPLOADS, *DRIVERS, "postgres", "caddy"):
        log = started.several.logs(name)
        assert log, name
        assert "a-long-password" not in log, name
