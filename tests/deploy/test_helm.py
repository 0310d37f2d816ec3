"""The Helm chart: right by Kubernetes' own schemas, confined, its settings a server's, its commands the documents'."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from deploy.bundle import version
from servers.settings import Engine, load_settings
from tests.deploy.charts import (
    CHART,
    DIGEST,
    SEVERAL,
    SHARDED,
    SIMPLEST,
    helm,
    pod,
    pods,
    rendered,
    require_restricted,
    tool,
)
from tests.deploy.containers import attempt
from tests.documents.walk import Walk
from tests.kit.certificates import write_certificate

VERSIONS = ("1.29.0", "1.37.0")
ALL = {
    "simplest": SIMPLEST,
    "sharded": SHARDED,
    "several": SEVERAL,
    "several over a cluster": (*SHARDED, *SEVERAL[len(SIMPLEST) :]),
    "by hand": (*SIMPLEST, "--set-string", "roster=x = 1\ny = 2", "--set", "persistence.existingClaim=mine"),
    "side b": (*SIMPLEST, "--set", "server.side=b", "--set", "networkPolicy.monitoring[0].podSelector.matchLabels.a=b"),
    "own Ray": (*SIMPLEST, "--set", "server.engine=ray", "--set", "ray.wrappingKeySecret=w"),
}


def test_helm_finds_no_fault() -> None:
    for values in ((), SIMPLEST, SHARDED, SEVERAL):
        done = helm("lint", "--strict", str(CHART), *values)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("named", list(ALL))
def test_every_manifest_is_what_kubernetes_takes(named: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="NOT TESTED: pip install kubernetes-validate")
    manifests = rendered(*ALL[named])
    assert len(manifests) >= 7
    for one in manifests.values():
        for release in VERSIONS:
            schemas.validate(one, release, strict=True)
    wrong = manifests["PodDisruptionBudget/operator-a"] | {"spec": {"maxUnavailible": 0}}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, VERSIONS[0], strict=True)


def test_kubeconform_agrees(tmp_path: Path) -> None:
    program = tool("kubeconform", "https://github.com/yannh/kubeconform; it needs a network for its schemas")
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(rendered(*SHARDED).values()))
    done = attempt(program, "-strict", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("named", list(ALL))
def test_the_pod_is_restricted(named: str) -> None:
    for spec in pods(rendered(*ALL[named])):
        require_restricted(spec)
        (server,) = spec["containers"]
        assert all(
            volume.keys() <= {"name", "projected", "emptyDir", "persistentVolumeClaim"} for volume in spec["volumes"]
        )
        writable = {mount["mountPath"] for mount in server["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"/var/lib/moiety", "/tmp"}
        assert server["image"] == f"moiety-server@{DIGEST}"


@pytest.mark.parametrize("named", list(ALL))
def test_no_secret_is_in_a_manifest(named: str) -> None:
    manifests = rendered(*ALL[named])
    assert not [name for name in manifests if name.startswith("Secret/")]
    for spec in pods(manifests):
        for one in spec["containers"][0].get("env", ()):
            assert "valueFrom" in one or one["name"].startswith(("RAY_", "MOIETY_SERVER_ROLE")), one


def settings_in(folder: Path, manifests: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """As the pod's server reads them, with its environment; secrets are any text."""
    for name in ("operator-a", "operator-a-roster"):
        for file, text in manifests.get(f"ConfigMap/{name}", {"data": {}})["data"].items():
            (folder / file).write_text(text)
    for one in pod(manifests)["containers"][0].get("env", ()):
        monkeypatch.setenv(one["name"], one.get("value", "postgresql+psycopg://someone@db/moiety"))
    return load_settings(folder / "settings.toml")


def test_the_settings_are_a_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ("--set", "server.limits.disk_reserve_bytes=8589934592", "--set-json", "server.limits.peer_timeout_s=12.5")
    days = ("--set", "server.deleteEndedAfterDays=0", "--set", "server.forwardedBy={10.1.0.0/16}")
    text = ("--set-string", 'card=name = "a"\nurl = "b"')
    manifests = rendered(*SIMPLEST, *limits, *days, *text)
    settings = settings_in(tmp_path, manifests, monkeypatch)
    assert (settings.side, settings.public_url, settings.peer_url) == ("a", "https://a.example.org:8443", None)
    assert (settings.limits.disk_reserve_bytes, settings.limits.peer_timeout_s) == (2**33, 12.5)
    assert (settings.delete_ended_after_days, str(settings.forwarded_by[0])) == (0, "10.1.0.0/16")
    assert settings.card.read_text() == 'name = "a"\nurl = "b"\n'
    ports = {one["name"]: one["containerPort"] for one in pod(manifests)["containers"][0]["ports"]}
    assert ports == {"public": settings.port, "operations": settings.operations}
    assert settings.engine is Engine.HERE
    named = (settings.keys, settings.tls_certificate, settings.tls_key)
    assert mounted_secrets(manifests) == {str(path.relative_to(tmp_path)) for path in named}
    for place in (settings.data_dir, settings.roster):
        assert str(place).startswith("/var/lib/moiety/data")


def sources(manifests: dict[str, Any]) -> list[dict[str, Any]]:
    (projected,) = [volume["projected"] for volume in pod(manifests)["volumes"] if "projected" in volume]
    assert projected["defaultMode"] == 0o440
    found: list[dict[str, Any]] = projected["sources"]
    return found


def mounted_secrets(manifests: dict[str, Any]) -> set[str]:
    """Below /etc/moiety."""
    secrets = [source["secret"] for source in sources(manifests) if "secret" in source]
    return {item["path"] for secret in secrets for item in secret["items"]}


def test_the_sharded_servers_settings_name_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered(*SHARDED)
    settings = settings_in(tmp_path, manifests, monkeypatch)
    assert settings.engine is Engine.RAY
    assert settings.ray.address == "ray://moiety-ray-head.moiety.svc:10001"
    assert settings.ray.storage == "s3://moiety-operator/shares"
    assert str(settings.ray.wrapping_key) == "/etc/moiety/wrapping/wrapping.key"
    assert settings.database == "postgresql+psycopg://someone@db/moiety"
    said = {one["name"]: one.get("value") for one in pod(manifests)["containers"][0]["env"]}
    assert (said["RAY_USE_TLS"], said["RAY_AUTH_MODE"]) == ("1", "token")
    mounted = {
        item["path"] for source in sources(manifests) if "secret" in source for item in source["secret"]["items"]
    }
    own = {value.removeprefix("/etc/moiety/") for name, value in said.items() if value and value.startswith("/etc")}
    assert own <= mounted
    assert "wrapping/wrapping.key" in mounted


def test_a_roster_carried_by_hand_changes_without_a_restart() -> None:
    before, after = (rendered(*SIMPLEST, "--set-string", f"roster=x = {number}") for number in (1, 2))
    assert before["ConfigMap/operator-a-roster"] != after["ConfigMap/operator-a-roster"]
    assert before["StatefulSet/operator-a"] == after["StatefulSet/operator-a"]
    other = rendered(*SIMPLEST, "--set", "server.limits.grace_s=5")
    assert other["StatefulSet/operator-a"] != rendered(*SIMPLEST)["StatefulSet/operator-a"]


def test_it_stops_drained_and_is_alone() -> None:
    manifests = rendered(*SIMPLEST, "--set", "drain.withinS=120")
    spec, (server,) = pod(manifests), pod(manifests)["containers"]
    command = server["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:6] == ["moiety", "server", "drain", "--stay", "--within", "120"]
    assert spec["terminationGracePeriodSeconds"] > 120
    assert server["livenessProbe"]["terminationGracePeriodSeconds"] < 120
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"] == {"path": "/healthz", "port": "public", "scheme": "HTTPS"}
    assert manifests["StatefulSet/operator-a"]["spec"]["replicas"] == 1
    assert manifests["PodDisruptionBudget/operator-a"]["spec"]["maxUnavailable"] == 0


def test_who_is_reached_and_who_reaches() -> None:
    policy = rendered(*SIMPLEST, "--set", "networkPolicy.peer.cidr=203.0.113.7/32")["NetworkPolicy/operator-a"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": "public"}]}]
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [53, 8443]
    assert policy["egress"][1]["to"] == [{"ipBlock": {"cidr": "203.0.113.7/32"}}]
    other = rendered(*ALL["side b"])["NetworkPolicy/operator-a"]["spec"]
    assert [rule["ports"][0]["port"] for rule in other["egress"]] == [53]
    (watched,) = [rule for rule in other["ingress"] if rule["ports"][0]["port"] == "operations"]
    assert watched["from"] == [{"podSelector": {"matchLabels": {"a": "b"}}}]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--set", "server.sid=a"), "Additional property sid is not allowed"),
        (("--set", "server.side=c"), "server.side"),
        (("--set", "secrets.keys="), "secrets.keys: the Secret with keys.toml"),
        (("--set", "image.digest="), "image.digest: name the digest"),
        (("--set", "image.digest=latest"), "image.digest"),
        (("--set", "server.publicUrl=http://a.example.org"), "server.publicUrl"),
        (("--set", "server.engine=ray"), "ray.wrappingKeySecret"),
        (("--values", str(CHART / "values-sharded.yaml"), "--set", "ray.tokenSecret="), "with a token alone"),
        (("--values", str(CHART / "values-sharded.yaml"), "--set", "ray.storage="), "where every worker reads shares"),
    ],
)
def test_what_is_wrong_is_said(wrong: tuple[str, ...], said: str) -> None:
    done = helm("template", "operator-a", str(CHART), *SIMPLEST, *wrong)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == version()


def test_the_documents_commands_make_what_the_chart_asks_for(tmp_path: Path) -> None:
    """As they stand in operating.md; nothing is installed: helm renders, kubectl prints."""
    walk, keys = Walk(("docs/operating.md",)), tmp_path / "operator-a"
    keys.mkdir()
    for name in ("keys.toml", "operator-a.card.toml"):
        (keys / name).write_text("x = 1\n")
    chain, key = write_certificate(keys, trustme.CA())
    chain.rename(keys / "tls-certificate.pem")
    key.rename(keys / "tls-key.pem")
    there = {"operator-a/": f"{keys}/"}
    manifests = rendered(*shlex.split(walk.line("helm install operator-a", {**there, "sha256:...": DIGEST}))[4:])
    assert manifests["ConfigMap/operator-a"]["data"]["card.toml"] == "x = 1\n"
    asked = {source["secret"]["name"]: source["secret"]["items"] for source in sources(manifests) if "secret" in source}
    secret = "kubectl -n moiety create secret"
    lines = [walk.line(one, there) for one in ("kubectl create namespace", f"{secret} generic", f"{secret} tls")]
    assert {shlex.split(line)[6] for line in lines[1:]} == set(asked)
    if shutil.which("kubectl") is None:
        pytest.skip("NOT TESTED: no kubectl; its lines were read and not run")
    namespace, *secrets = [printed(line) for line in lines]
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", "moiety")
    for made in secrets:
        assert set(made["data"]) == {item["key"] for item in asked[made["metadata"]["name"]]}


def printed(line: str) -> dict[str, Any]:
    """The objects that kubectl would create."""
    done = attempt(*shlex.split(line), "--dry-run=client", "-o", "yaml")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found
