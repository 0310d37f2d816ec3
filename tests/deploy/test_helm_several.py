"""The Helm chart's server of several processes: what deploy/several runs, with the same Caddyfile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import trustme

from servers.settings import Role, load_settings
from servers.store.processes import process_name
from tests.deploy.charts import CHART, SEVERAL, helm, pod, rendered, require_restricted
from tests.deploy.containers import attempt
from tests.kit.certificates import write_certificate

FRONT, UPLOAD, DRIVER = "Deployment/operator-a-front", "StatefulSet/operator-a-upload", "StatefulSet/operator-a-driver"
TRIAL = (*SEVERAL, "--set", "server.side=b", "--set", "processes.uploads=2", "--set", "processes.drivers=3")


def environment(spec: dict[str, Any]) -> dict[str, str]:
    """Secrets are any text."""
    return {
        one["name"]: one.get("value", "postgresql+psycopg://someone@db/moiety") for one in spec["containers"][0]["env"]
    }


@pytest.mark.parametrize(("of", "role"), [(UPLOAD, Role.UPLOAD), (DRIVER, Role.DRIVER)])
def test_each_process_reads_its_role(of: str, role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered(*SEVERAL)
    for name, value in environment(pod(manifests, of)).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "settings.toml").write_text(manifests["ConfigMap/operator-a"]["data"]["settings.toml"])
    settings = load_settings(tmp_path / "settings.toml")
    assert (settings.role, str(settings.forwarded_by[0])) == (role, "10.244.0.0/16")
    assert settings.database is not None


def test_there_is_no_other_process_and_all_share_one_volume() -> None:
    manifests = rendered(*TRIAL)
    sets = {name: one["spec"] for name, one in manifests.items() if name.startswith("StatefulSet/")}
    assert {name: one["replicas"] for name, one in sets.items()} == {UPLOAD: 2, DRIVER: 3}
    for one in sets.values():
        assert one["updateStrategy"] == {"type": "OnDelete"}, "releases are not mixed"
        assert "volumeClaimTemplates" not in one
        data = [volume for volume in one["template"]["spec"]["volumes"] if volume["name"] == "data"]
        assert data == [{"name": "data", "persistentVolumeClaim": {"claimName": "moiety-data"}}]
        # a drain is of the whole server: one process that stops must not ask for it
        assert "lifecycle" not in one["template"]["spec"]["containers"][0]


def test_sites_come_to_caddy_alone_which_knows_every_process() -> None:
    manifests = rendered(*TRIAL)
    told = environment(pod(manifests, FRONT))
    for of, asked in ((UPLOAD, "MOIETY_UPLOADS"), (DRIVER, "MOIETY_DRIVERS")):
        spec = manifests[of]["spec"]
        headless = manifests[f"Service/{spec['serviceName']}"]["spec"]
        assert headless["clusterIP"] == "None"
        assert headless["selector"] == spec["selector"]["matchLabels"]
        assert headless["selector"].items() <= spec["template"]["metadata"]["labels"].items()
        name = of.partition("/")[2]
        expected = [f"https://{name}-{n}.{spec['serviceName']}:8443" for n in range(spec["replicas"])]
        assert told[asked].split() == expected
    front = manifests[FRONT]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service/operator-a"]["spec"]["selector"].items() <= front.items()
    assert not manifests["Service/operator-a-operations"]["spec"]["selector"].items() <= front.items()
    inner, outer = (manifests[f"NetworkPolicy/operator-a{end}"]["spec"] for end in ("", "-front"))
    (public,) = [rule for rule in inner["ingress"] if rule["ports"][0]["port"] == "public"]
    assert public["from"] == [{"podSelector": {"matchLabels": front}}]
    assert outer["podSelector"]["matchLabels"] == front
    assert outer["egress"][1]["to"] == [{"podSelector": inner["podSelector"]}]


def test_caddy_is_confined_and_its_file_is_the_one_of_the_compose_file() -> None:
    manifests = rendered(*SEVERAL)
    require_restricted(pod(manifests, FRONT))
    caddyfile = (CHART / "Caddyfile").read_text(encoding="utf-8")
    assert caddyfile == (CHART.parents[1] / "several" / "Caddyfile").read_text(encoding="utf-8")
    assert manifests["ConfigMap/operator-a-front"]["data"]["Caddyfile"] == caddyfile


@pytest.mark.parametrize("certificate", ["files", "acme"])
def test_caddy_takes_its_file(certificate: str, tmp_path: Path) -> None:
    if shutil.which("caddy") is None:
        pytest.skip("NOT TESTED: no caddy here (Debian's package caddy, 2.6 or later)")
    told = environment(pod(rendered(*SEVERAL), FRONT))
    write_certificate(tmp_path, trustme.CA(), "a.example.org")[0].rename(tmp_path / "tls.crt")
    told = {name: value.replace("/etc/tls", str(tmp_path)) for name, value in told.items()}
    told |= {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    if certificate == "acme":  # the compose file's defaults: nothing is said of certificates and of how to choose
        told = {name: value for name, value in told.items() if name not in ("MOIETY_CERTIFICATE", "MOIETY_CHOOSE")}
    command = ("caddy", "validate", "--adapter", "caddyfile", "--config", str(CHART / "Caddyfile"))
    done = attempt(*command, env=os.environ | told)
    assert done.returncode == 0, done.stderr


def test_processes_of_the_longest_release_differ_in_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = "o" * 30
    done = helm("template", longest, str(CHART), *SEVERAL)
    assert done.returncode == 0, done.stderr
    (tmp_path / "settings.toml").write_text(rendered(*SEVERAL)["ConfigMap/operator-a"]["data"]["settings.toml"])
    settings, names = load_settings(tmp_path / "settings.toml"), set()
    for number in (98, 99):
        monkeypatch.setattr("socket.gethostname", lambda number=number: f"{longest}-upload-{number}")
        names.add(process_name(settings))
    assert len(names) == 2
    assert "at most 30 characters" in helm("template", longest + "o", str(CHART), *SEVERAL).stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--set", "database.secret="), "several processes of one server need PostgreSQL"),
        (("--set", "persistence.existingClaim="), "a volume that all of them mount"),
        (("--set", "server.forwardedBy=null"), "the network of the cluster's pods"),
        (("--set", "processes.front.image.digest="), "the digest of Caddy's image"),
        (("--set", "processes.drivers=0"), "drivers"),
        (("--set", "processes.front.choose=cookie"), "choose"),
    ],
)
def test_what_is_lacking_is_said(wrong: tuple[str, ...], said: str) -> None:
    done = helm("template", "operator-a", str(CHART), *SEVERAL, *wrong)
    assert done.returncode != 0
    assert said in done.stderr
