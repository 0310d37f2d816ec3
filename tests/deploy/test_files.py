"""The deployment's files, without an engine: compose files, dashboards, study, prepared settings, health check."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme
import yaml

from client_agent.learning.data import load_folder, names_of
from client_agent.learning.study_file import study_from_toml
from client_agent.settings import load_settings as load_agent_settings
from client_agent.site.identity import load_chain
from deploy.prepare_demo import STUDY_FILE, demo_sites, prepare
from deploy.requirements import requirements
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.studies import BREAST_CANCER
from harness.engine.parties import OPERATOR_NAMES
from protocol.sharing import Side
from servers.monitoring import Metrics
from servers.settings import load_settings as load_server_settings
from tests.deploy.containers import attempt

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DEPLOYED = ("operator-a.yaml", "operator-b.yaml", "site.yaml")
SITES = tuple(site.name for site in demo_sites())


def compose(name: str) -> dict:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [*DEPLOYED, "compose.demo.yaml"])
def test_every_service_is_confined(name: str) -> None:
    services = compose(name)["services"]
    assert services
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "unless-stopped"
        assert service["mem_limit"]
        assert service["pids_limit"]
        assert not {"privileged", "user", "network_mode", "cap_add"} & service.keys()
        mounts = dict(volume.rsplit(":/", 1) for volume in service["volumes"])
        assert "etc/moiety:ro" in mounts.values()
        assert [to for to in mounts.values() if not to.endswith(":ro")] == ["var/lib/moiety"]


def test_compose_files_in_one_folder_do_not_take_each_others_place() -> None:
    """Without a name a project is called after its folder, and the second file's service replaces the first's."""
    files = [compose(name) for name in DEPLOYED]
    projects = [file.get("name") for file in files]
    assert None not in projects
    assert len(set(projects)) == len(projects)
    volumes = [volume["name"] for file in files for volume in file["volumes"].values() if volume]
    assert len(set(volumes)) == len(volumes) == len(DEPLOYED)


def test_the_demonstration_separates_the_sites() -> None:
    file = compose("compose.demo.yaml")
    operators = set(OPERATOR_NAMES.values())
    members: dict[str, set[str]] = {network: set() for network in file["networks"]}
    for name, service in file["services"].items():
        assert "ports" not in service
        for network in service["networks"]:
            members[network].add(name)
    assert set(file["services"]) == operators | set(SITES)
    assert members == {"operators": operators} | {site: {site} | operators for site in SITES}
    assert all(network == {"internal": True} for network in file["networks"].values())


def test_a_server_of_several_processes_has_one_driver_more_and_caddy_knows_all_of_them() -> None:
    file = compose("several/operator-a.yaml")
    processes = {name: one for name, one in file["services"].items() if name not in ("postgres", "caddy")}
    roles = [one["environment"]["MOIETY_SERVER_ROLE"] for one in processes.values()]
    assert sorted(roles) == ["driver", "driver", "upload", "upload"]
    for name, one in processes.items():
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["restart"] == "unless-stopped", "a driver that lost its lease ends"
        assert one["hostname"] == name, "processes of one machine's name differ in it"
        assert "ports" not in one
        assert "data:/var/lib/moiety" in one["volumes"], "all of them share one data_dir"
    assert "ports" not in file["services"]["postgres"]
    assert file["networks"]["inside"]["internal"] is True
    told = file["services"]["caddy"]["environment"]
    for role in ("upload", "driver"):
        named = [f"https://{name}:8443" for name in processes if name.startswith(role)]
        assert told[f"MOIETY_{role.upper()}S"].split() == named
    asked = set(re.findall(r"\{\$(\w+)[:}]", (DEPLOY / "several" / "Caddyfile").read_text(encoding="utf-8")))
    assert asked - {"MOIETY_CHOOSE", "MOIETY_CERTIFICATE"} == told.keys()


def test_a_site_listens_to_nothing() -> None:
    assert "ports" not in compose("site.yaml")["services"]["agent"]


def exported() -> set[str]:
    """Every name that /metrics can show: a histogram's are only there once it has a value, so all get one."""
    metrics = Metrics()
    labels = {"outcome": "x", "phase": "x", "direction": "in", "kind": "x", "event": "x", "code": "x"}
    for metric in vars(metrics).values():
        names = getattr(metric, "_labelnames", ())
        if names:
            child = metric.labels(**{name: labels[name] for name in names})
            child.observe(1) if hasattr(child, "observe") else child.inc()
    return set(re.findall(r"^(moiety_\w+)", metrics.exposition().decode(), flags=re.MULTILINE))


def test_dashboard_and_alerts_name_only_metrics_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "dashboards" / "server.json").read_text(encoding="utf-8"))
    rules = yaml.safe_load((DEPLOY / "dashboards" / "alerts.yml").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    named = {name for expression in expressions for name in re.findall(r"moiety_\w+", expression)}
    assert len(named) >= 6
    assert named <= exported()


def test_no_file_names_an_index_or_a_registry() -> None:
    for path in DEPLOY.iterdir():
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"https?://(?!127\.0\.0\.1|\{)", text), path.name


def test_the_server_image_asks_for_no_torch() -> None:
    wanted = requirements(ROOT / "pyproject.toml", ["server"])
    assert not [one for one in wanted if one.startswith(("torch", "safetensors"))]
    assert [one for one in requirements(ROOT / "pyproject.toml", ["agent"]) if one.startswith("torch")]
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert [one for one in requirements(ROOT / "pyproject.toml", ["he"]) if one.startswith("tenseal")]
    assert "packages server he postgres ${SERVER_EXTRAS}\n" in text
    assert [one for one in requirements(ROOT / "pyproject.toml", ["page"]) if one.startswith("jinja2")]
    assert "packages agent he sql postgres ${AGENT_EXTRAS}\n" in text
    assert "ARG AGENT_EXTRAS=\n" in text
    server = text.split("FROM runtime AS server\n")[1].split("FROM runtime AS agent\n")[0]
    assert "USER moiety" in server
    assert "HEALTHCHECK" in server


def test_every_package_is_in_the_images_and_nothing_hides_it() -> None:
    """The engine sees of the project what .dockerignore lets through."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "deploy"}
    assert {"protocol", "host", "servers", "client_agent", "harness"} <= packages
    shown = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    copied = re.findall(r"^COPY (\S+) \1$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for package in packages:
        assert f"!{package}" in shown, package
        assert copied.count(package) == 2, package


def test_prepared_settings_are_accepted(tmp_path: Path) -> None:
    parties = prepare(tmp_path / "demo")
    for side, name in OPERATOR_NAMES.items():
        settings = load_server_settings(tmp_path / "demo" / name / "settings.toml")
        assert settings.side is side
        assert settings.seed is None
        assert settings.public_url == parties.roster.message.operator(side).url
        assert settings.peer_url == parties.roster.message.operator(side.other).url
    for site in demo_sites():
        agent = load_agent_settings(tmp_path / "demo" / site.name / "settings.toml")
        agent.keys.chmod(0o600)  # as the container's copy
        chain, keys = load_chain(agent)
        assert (keys.name, chain.head) == (site.name, parties.roster.message)
        assert agent.seed is None
        assert len(load_folder(agent.data, (30,), 2).train) == len(site.train)


def test_the_demonstrations_study_has_the_settings_of_the_demo(tmp_path: Path) -> None:
    roster = prepare(tmp_path / "demo").roster.message
    data = tmp_path / "demo" / SITES[0] / "data"
    study = study_from_toml(STUDY_FILE.read_text(encoding="utf-8"), STUDY_FILE.name, roster, None, data)
    assert study.training == BREAST_CANCER.training
    assert study.parameters.clip_norm == BREAST_CANCER.clip_norm
    assert study.parameters.least_contributors == len(SITES) - 1
    assert (study.rule.distance_penalty, study.rule.size_penalty) == (
        BREAST_CANCER.distance_penalty,
        BREAST_CANCER.size_penalty,
    )
    assert study.model.inputs == breast_cancer_five_hospitals(0).inputs
    assert names_of(study.model) == breast_cancer_five_hospitals(0).names


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def test_the_health_check_trusts_only_the_servers_own_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, other = (authority.issue_cert("server.example.org") for _ in range(2))
    server = HTTPServer(("127.0.0.1", 0), Answering)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = tmp_path / "settings.toml"
    settings.write_text(f'port = {server.server_port}\ntls_certificate = "tls.pem"\n', encoding="utf-8")

    def code() -> int:
        return attempt(sys.executable, str(DEPLOY / "healthcheck.py"), str(settings)).returncode

    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.pem"))
    assert code() == 0
    other.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.pem"))
    assert code() == 1
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.pem"))
    server.shutdown()
    server.server_close()
    assert code() == 1


@pytest.mark.parametrize(("code", "said"), [(200, '{"status":"ready"}'), (503, "the other server is not reached")])
def test_what_readyz_says_is_shown_whether_it_is_ready_or_not(code: int, said: str, tmp_path: Path) -> None:
    class Ready(Answering):
        def do_GET(self) -> None:
            self.send_response(code if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(said.encode())

    server = HTTPServer(("127.0.0.1", 0), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "settings.toml").write_text(f"port = 1\noperations_port = {server.server_port}\n", encoding="utf-8")
    command = (sys.executable, str(DEPLOY / "healthcheck.py"), str(tmp_path / "settings.toml"), "--ready")
    behind = os.environ | {"http_proxy": "http://192.0.2.1:3128", "HTTP_PROXY": "http://192.0.2.1:3128"}
    done = attempt(*command, env=behind)
    server.shutdown()
    server.server_close()
    assert (done.returncode, done.stdout) == (0 if code == 200 else 1, f"{said}\n")


@pytest.mark.parametrize("side", list(Side))
def test_the_operators_port_is_on_an_internal_network_alone(side: Side) -> None:
    file = compose(f"{OPERATOR_NAMES[side]}.yaml")
    server = file["services"]["server"]
    assert server["ports"] == ["${MOIETY_PORT:-8443}:8443"]
    assert "operations" in server["networks"]
    assert file["networks"]["operations"] == {"internal": True}
    scraped = yaml.safe_load((DEPLOY / "dashboards" / "prometheus.yml").read_text(encoding="utf-8"))
    port = server["environment"]["MOIETY_SERVER_OPERATIONS_PORT"]
    assert scraped["scrape_configs"][0]["static_configs"] == [{"targets": [f"server:{port}"]}]


def test_the_demonstrations_containers_take_copies_of_keys_that_nobody_else_may_read(tmp_path: Path) -> None:
    mounted, own, tools = (tmp_path / name for name in ("etc", "own", "bin"))
    for folder in (mounted, own, tools):
        folder.mkdir()
    for name in ("keys.toml", "tls-key.pem", "roster.toml"):
        (mounted / name).write_text(name)
        (mounted / name).chmod(0o644)
    (tools / "moiety").write_text("#!/bin/sh\necho started $1\n")
    (tools / "moiety").chmod(0o755)
    script = (DEPLOY / "entrypoint.sh").read_text().replace("/usr/local/lib/moiety/kernels", str(tools))
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "TMPDIR": str(own),
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
        "MOIETY_KEYS_FROM": str(mounted),
    }
    command = ("sh", "-c", script, "entrypoint", "server")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "started server\n"
    assert {path.name: path.stat().st_mode & 0o777 for path in own.iterdir()} == {
        "keys.toml": 0o600,
        "tls-key.pem": 0o600,
    }
    for name, service in compose("compose.demo.yaml")["services"].items():
        said = service["environment"]
        assert said["MOIETY_KEYS_FROM"] == "/etc/moiety"
        role = "SERVER" if name in OPERATOR_NAMES.values() else "AGENT"
        assert said[f"MOIETY_{role}_KEYS"] == "/tmp/keys.toml"
        assert role == "AGENT" or said["MOIETY_SERVER_TLS_KEY"] == "/tmp/tls-key.pem"


def test_the_demonstrations_operators_ports_stay_in_their_containers(tmp_path: Path) -> None:
    prepare(tmp_path / "demo")
    for name in OPERATOR_NAMES.values():
        assert load_server_settings(tmp_path / "demo" / name / "settings.toml").operations_host == "127.0.0.1"


@pytest.mark.parametrize("side", list(Side))
def test_operators_files_differ_only_in_the_side(side: Side) -> None:
    name = OPERATOR_NAMES[side]
    assert f"- ${{MOIETY_CONFIG:-./{name}}}:/etc/moiety:ro" in (DEPLOY / f"{name}.yaml").read_text(encoding="utf-8")
    assert compose(f"{name}.yaml")["volumes"] == {"data": {"name": f"moiety-{name}"}}
