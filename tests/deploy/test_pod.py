"""The chart's pod, as a kubelet would start it, and the documents' own container commands: with a real engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.charts import SIMPLEST, pod, rendered
from tests.deploy.containers import attempt, build_images, compose_command, run, wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

USER = 10001
LENT = 0o440
SETTINGS = ("--config", "/etc/moiety/settings.toml")


@dataclass(frozen=True)
class Pod:
    name: str
    spec: dict[str, Any]

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return attempt("docker", "exec", self.name, *command)

    def healthy(self) -> bool:
        """The probe's own request; a kubelet does not look at the certificate."""
        probe = self.spec["containers"][0]["startupProbe"]["httpGet"]
        assert (probe["scheme"], probe["path"]) == ("HTTPS", "/healthz")
        asked = (
            "import ssl, urllib.request as u; c = ssl._create_unverified_context(); "
            "print(u.urlopen('https://127.0.0.1:8443/healthz', context=c).status)"
        )
        return self.execute("python3", "-c", asked).stdout.strip() == "200"

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("docker", "inspect", self.name))[0]["State"]
        return found


def lend(path: Path, text: str) -> None:
    """As Kubernetes projects secrets and config maps: root's, readable by the pod's group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(LENT)
    os.chown(path, 0, USER)


def projected(manifests: dict[str, Any], secrets: dict[str, dict[str, str]], into: Path) -> None:
    """The pod's one projected volume."""
    (volume,) = [one["projected"] for one in pod(manifests)["volumes"] if "projected" in one]
    assert volume["defaultMode"] == LENT
    for source in volume["sources"]:
        if "configMap" in source:
            held = manifests[f"ConfigMap/{source['configMap']['name']}"]["data"]
            items = source["configMap"].get("items", [{"key": key, "path": key} for key in held])
        else:
            held, items = secrets[source["secret"]["name"]], source["secret"]["items"]
        for item in items:
            lend(into / item["path"], held[item["key"]])


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    compose_command()
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: root lends secrets to the pod's group, and only root can say so")
    manifests = rendered(*SIMPLEST, "--set-string", "card=")
    build_images()
    folder = tmp_path_factory.mktemp("pod")
    own, etc, data = (folder / name for name in ("own", "etc", "data"))
    for path in (own, etc, data):
        path.mkdir()
    os.chown(own, USER, USER)
    said = ("--side", "a", "--federation", "clinics", "--name", "operator-a", "--url", "https://a.example.org:8443")
    made = ("server", "init", *said, "--own-ca", "--out", "/etc/moiety")
    run("docker", "run", "--rm", "-v", f"{own}:/etc/moiety", "moiety-server:local", *made)
    held = {path.name: path.read_text() for path in own.iterdir()}
    manifests = rendered(*SIMPLEST, "--set-file", f"card={own / 'operator-a.card.toml'}", "--set", "drain.withinS=5")
    tls = {"tls.crt": held["tls-certificate.pem"], "tls.key": held["tls-key.pem"]}
    projected(manifests, {"operator-a": {"keys.toml": held["keys.toml"]}, "operator-a-tls": tls}, etc)
    os.chown(data, 0, USER)
    data.chmod(0o2775)  # a volume after fsGroup
    found = Pod(f"moiety-pod-{os.getpid()}", pod(manifests))
    try:
        run("docker", "run", "-d", "--name", found.name, *confined(found.spec, etc, data), "moiety-server:local")
        yield found
    finally:
        subprocess.run(("docker", "rm", "-f", found.name), capture_output=True, check=False)


def confined(spec: dict[str, Any], etc: Path, data: Path) -> Iterator[str]:
    """The manifest's confinement, as an engine's options."""
    whole, (server,) = spec["securityContext"], spec["containers"]
    own = server["securityContext"]
    yield f"--user={whole['runAsUser']}:{whole['runAsGroup']}"
    yield f"--group-add={whole['fsGroup']}"
    yield from (f"--cap-drop={one}" for one in own["capabilities"]["drop"])
    if own["readOnlyRootFilesystem"]:
        yield "--read-only"
    if not own["allowPrivilegeEscalation"]:
        yield "--security-opt=no-new-privileges:true"
    tmp = next(one["emptyDir"] for one in spec["volumes"] if "emptyDir" in one)
    yield f"--tmpfs=/tmp:size={tmp['sizeLimit'].removesuffix('i').lower()},mode=1777"
    yield f"--memory={server['resources']['limits']['memory'].removesuffix('i').lower()}"
    for mount in server["volumeMounts"]:
        place = {"settings": etc, "data": data}.get(mount["name"])
        if place is not None:
            yield f"--volume={place}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"


def test_the_pod_comes_up_with_secrets_that_root_lends(started: Pod) -> None:
    wait_until(started.healthy, "healthy", 120)
    done = started.execute("moiety", "doctor", *SETTINGS, "--json")
    wrong = {one["check"]: one["found"] for one in json.loads(done.stdout)["findings"] if one["verdict"] == "failed"}
    assert not [found for check, found in wrong.items() if check in ("settings", "disk", "certificate", "database")]
    assert not [found for found in wrong.values() if "chmod" in found or "ermission" in found], wrong
    for place in ("/", "/etc/moiety", "/etc/moiety/keys", "/opt/moiety"):
        assert started.execute("touch", f"{place}/x").returncode != 0
    assert started.execute("stat", "-c", "%a %u", "/var/lib/moiety/data").stdout.split() == ["2700", "10001"]


def test_it_drains_before_it_stops(started: Pod) -> None:
    command = started.spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    wait_until(started.healthy, "healthy", 120)
    done = started.execute(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is under way" in done.stdout  # its federation is not founded yet
    assert started.state()["Running"]
    run("docker", "stop", "--time", "60", started.name)
    assert started.state()["ExitCode"] == 0
    run("docker", "start", started.name)
    wait_until(started.healthy, "healthy again", 120)
