"""Two operators, a requester and sites who share nothing, by the commands of docs/enrolling.md in containers on
separate networks, one site behind a proxy that asks for a password: to a finished study, a site that joins in the
middle of one, a renewed certificate and a revoked site.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.site_data import write_site_folder
from tests.deploy.containers import ROOT, build_images, compose_command, require_no_secret, run, wait_until
from tests.deploy.parties import Networks, Stranger

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]

FIRST, LATE, PROXIED = ("requester", "clinic-1", "clinic-2", "clinic-3"), "clinic-4", "clinic-2"
SITES = (*FIRST, LATE)
LEAVES = "clinic-1"
PASSWORD = "ward:secret"
PROXY = "http://proxy.hospital:3128"
DIRECT = tuple(site for site in SITES if site != PROXIED)
STUDY = """
name = "{name}"
rounds = {rounds}
round_deadline_s = 60.0
[model]
kind = "linear"
inputs = [30]
classes = 2
[rule]
name = "fedavg"
[training]
update = "gradient"
batch_size = 16
server_learning_rate = 0.5
[parameters]
clip_norm = 4.0
least_contributors = 3
"""
# Whether a late site may be summed at once depends on how much updates move: here nobody asks for isolation.
MOST_ROUNDS = 5000
POLICY = "\n[policy]\nleast_isolation = 0.0\n"


@dataclass(frozen=True)
class Strangers:
    operators: dict[str, Stranger]
    sites: dict[str, Stranger]
    data: Path

    @property
    def requester(self) -> Stranger:
        return self.sites[FIRST[0]]

    def took_part(self, study: str) -> list[list[str]]:
        """The sites that took part in each of the requester's rounds."""
        return [one["took_part"] for one in self.requester.rounds(study)]


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strangers]:
    compose = compose_command()
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: the containers' user owns the parties' folders, which root alone can say")
    build_images()
    place = tmp_path_factory.mktemp("strangers")
    networks = Networks(f"moiety-walk-{os.getpid()}", ("operators", "proxy", *SITES))
    reached_from = ("operators", "proxy", *DIRECT)
    operators = {
        side: Stranger(compose, place, f"operator-{side}", networks, reached_from, f"{side}.example.org")
        for side in ("a", "b")
    }
    sites = {name: Stranger(compose, place, name, networks, (name,)) for name in SITES}
    made = Strangers(operators, sites, place / "data")
    _write_data(made.data)
    proxy = f"{networks.prefix}-proxy-machine"
    try:
        networks.make()
        _start_proxy(proxy, networks)
        yield made
    finally:
        networks.remove_all()


def _write_data(folder: Path) -> None:
    federation = breast_cancer_five_hospitals(0)
    for name, site in zip(SITES, federation.sites, strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        write_site_folder(site, folder / name, federation.names)
    for path in (folder, *folder.rglob("*"), *folder.parents[:-2]):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))


def _start_proxy(name: str, networks: Networks) -> None:
    """On the proxied site's network, and on one with both servers; that site is on no other."""
    script = ROOT / "tests" / "kit" / "web_proxy.py"
    alias = ("--network", networks.of(PROXIED), "--network-alias", "proxy.hospital")
    command = ("--entrypoint", "python3", "moiety-server:local", "/proxy.py", "0.0.0.0", "3128", PASSWORD)
    run("docker", "run", "-d", "--no-healthcheck", "--name", name, *alias, "-v", f"{script}:/proxy.py:ro", *command)
    run("docker", "network", "connect", networks.of("proxy"), name)


def admit(strangers: Strangers, site: Stranger, digits: str) -> None:
    """Its fingerprint is read to both operators and, if it is another's, to the requester."""
    for operator in strangers.operators.values():
        operator.inside("server", "admit", site.name, "--fingerprint", digits)
    if site is not strangers.requester:
        strangers.requester.moiety("site", "admit", site.name, "--fingerprint", digits)


def join(strangers: Strangers, name: str) -> str:
    """With an invitation of each operator, from an empty folder; its fingerprint."""
    site, role = strangers.sites[name], ("--requester",) if name == FIRST[0] else ()
    lines = [one.inside("server", "invite", name, *role).strip() for one in strangers.operators.values()]
    samples = len(breast_cancer_five_hospitals(0).sites[SITES.index(name)].train)
    site.make_folder()
    words = ("site", "join", *lines, "--samples", str(samples), "--data", str(strangers.data / name))
    words = (*words, "--out", "/etc/moiety")
    if name == PROXIED:
        assert "host name does not resolve" in site.first(*words).stderr
        words = (*words, "--proxy", PROXY)
        refused = site.first(*words).stderr
        assert "it asks for a user name and password" in refused
        site.put("proxy-credentials", PASSWORD, 0o600)
        words = (*words, "--proxy-credentials", "/etc/moiety/proxy-credentials")
    done = site.first(*words, "--json")
    assert done.returncode == 0, done.stderr
    site.put("settings.toml", site.take("settings.toml") + POLICY)
    said = json.loads(done.stdout)
    assert (said["site"], set(said["operators"])) == (name, {"operator-a", "operator-b"})
    return str(said["fingerprint"])


def start(site: Stranger) -> None:
    """Once the roster is there."""
    assert "is here, signed by all" in site.moiety("site", "status")
    site.up()
    wait_until(lambda: "connected to operator-a and operator-b" in site.logs(), f"{site.name} connected", 90)


def begin(strangers: Strangers, study: str, rounds: int) -> None:
    """Created by the requester; every contributor's people say yes once it is there."""
    strangers.requester.put("study.toml", STUDY.format(name=study, rounds=rounds))
    strangers.requester.moiety("study", "create", "/etc/moiety/study.toml")
    for name in FIRST[1:]:
        approve(strangers.sites[name], study)


def approve(site: Stranger, study: str) -> None:
    wait_until(lambda: f"{study}: study: waits for a person" in site.logs(), f"{study} at {site.name}", 90)
    site.inside("agent", "approve", study, "--person", "Dr. A", "--reason", "permit 12", "--yes")


def test_operators_begin_and_are_paired(strangers: Strangers) -> None:
    fingerprints = {}
    for side, operator in strangers.operators.items():
        operator.make_folder()
        told = ("--side", side, "--federation", "clinics", "--name", operator.name)
        url = f"https://{operator.host}:8443"
        done = operator.first("server", "init", *told, "--url", url, "--own-ca", "--json", "--out", "/etc/moiety")
        assert done.returncode == 0, done.stderr
        fingerprints[side] = json.loads(done.stdout)["fingerprint"]
    a, b = strangers.operators.values()
    a.put("operator-b.card.toml", b.take("operator-b.card.toml"))
    a.moiety("server", "pair", "/etc/moiety/operator-b.card.toml", "--fingerprint", fingerprints["b"])
    a.up()
    wait_until(lambda: '"listening"' in a.logs(), "operator-a listens", 90)
    assert "the requester to join" in a.logs()
    b.moiety("server", "pair", "https://a.example.org:8443", "--fingerprint", fingerprints["a"])
    b.up()
    wait_until(lambda: '"listening"' in b.logs(), "operator-b listens", 90)


def test_sites_join_and_the_requester_founds(strangers: Strangers) -> None:
    for name in FIRST:
        admit(strangers, strangers.sites[name], join(strangers, name))
    assert "founded: clinics with clinic-1, clinic-2, clinic-3, requester" in strangers.requester.moiety(
        "site", "found"
    )
    for name in FIRST:
        start(strangers.sites[name])
    assert "clinic-2: nothing failed" in strangers.sites[PROXIED].inside("doctor")


def test_a_study_is_finished(strangers: Strangers) -> None:
    begin(strangers, "first", 3)
    wait_until(lambda: len(strangers.took_part("first")) == 3, "three rounds", 180)
    assert {tuple(sorted(names)) for names in strangers.took_part("first")} == {tuple(sorted(FIRST))}
    for name in FIRST:
        wait_until(partial(has_finished, strangers.sites[name], "first"), f"{name} finished", 60)


def test_a_site_joins_in_the_middle_a_certificate_is_renewed_and_a_site_is_revoked(strangers: Strangers) -> None:
    requester, late = strangers.requester, strangers.sites[LATE]
    begin(strangers, "second", MOST_ROUNDS)
    wait_until(lambda: bool(strangers.took_part("second")), "a round of the second study", 180)

    admit(strangers, late, join(strangers, LATE))
    assert "the requester to add clinic-4" in late.moiety("site", "status")
    requester.moiety("site", "add", LATE, "--reason", "clinic-4 joins")
    start(late)
    approve(late, "second")
    wait_until(lambda: LATE in strangers.took_part("second")[-1], "a round with clinic-4", 180)
    assert len(strangers.took_part("second")[-1]) == len(SITES)

    a, b = strangers.operators.values()
    a.moiety("server", "renew")
    wait_until(lambda: '"certificate_renewed"' in a.logs(), "the new certificate is shown", 60)
    at = len(strangers.took_part("second"))
    wait_until(lambda: len(strangers.took_part("second")) > at + 1, "rounds under the new certificate", 120)

    for operator in (a, b):
        operator.inside("server", "remove", LEAVES)
    requester.moiety("site", "remove", LEAVES, "--reason", "clinic-1 leaves")
    wait_until(lambda: goes_on_without(strangers, LEAVES), "a round without clinic-1", 180)
    assert "was removed from the roster by change 2 ('clinic-1 leaves')" in strangers.sites[LEAVES].fails(
        "site", "status"
    )
    requester.moiety("study", "cancel", "second", "--reason", "enough")
    wait_until(lambda: "second: finished: cancelled" in late.logs(), "the second study's end", 90)


def has_finished(site: Stranger, study: str) -> bool:
    return f"{study}: finished: completed" in site.logs()


def goes_on_without(strangers: Strangers, name: str) -> bool:
    last = strangers.took_part("second")[-1]
    return name not in last and len(last) == len(SITES) - 1


def test_no_log_holds_a_secret(strangers: Strangers) -> None:
    for one in (*strangers.operators.values(), *strangers.sites.values()):
        require_no_secret(one.logs(), one.take("keys.toml"), PASSWORD.split(":")[1])
