"""The first deployment: two operators and four sites in containers, one server killed in the middle of a study.

``make test-deploy`` runs it; it removes its containers, networks, volumes and files, and leaves the built images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.study_file import study_from_toml
from client_agent.net.ledger import read_ledger
from client_agent.site.events import RoundEnd, RoundRecord, read_metrics
from client_agent.site.journal import StudyJournal
from deploy.prepare_demo import PORT, STUDY_FILE, demo_sites, prepare
from protocol.messages.control import Study
from tests.deploy.containers import Deployment, build_images, compose_command, require_no_secret, run, wait_until
from tests.kit.bounds.error_bound import bound_of_run
from tests.kit.present import present
from tests.kit.small_runs import run_plain

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]

OPERATORS = ("operator-a", "operator-b")
SITES = tuple(site.name for site in demo_sites())
REQUESTER = SITES[0]
SETTINGS = ("--config", "/etc/moiety/settings.toml")
KILLED_AFTER = 3

# A port nobody listens on answers "refused" where there is a way to the host, and nothing where there is none.
PROBE = """
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
    print("open")
except OSError as error:
    print("refused" if error.errno == errno.ECONNREFUSED else "nothing")
"""


@dataclass(frozen=True)
class Started:
    deployment: Deployment
    study: Study


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    compose = compose_command()
    build_images()
    folder = tmp_path_factory.mktemp("deploy") / "demo"
    parties = prepare(folder)
    text, roster = in_whole_batches(STUDY_FILE.read_text(encoding="utf-8")), parties.roster.message
    (folder / REQUESTER / "study.toml").write_text(text, encoding="utf-8")
    study = study_from_toml(text, STUDY_FILE.name, roster, None, folder / SITES[0] / "data")
    deployment = Deployment(compose, f"moiety-test-{os.getpid()}", folder)
    try:
        deployment.up()
        yield Started(deployment, study)
    finally:
        deployment.down()


def in_whole_batches(text: str) -> str:
    """The demonstration's study as a plain run can follow it: the order of a deployed site's batches is its secret."""
    for shown, instead in (("batch_size = 16", "batch_size = 128"), ("learning_rate = 1.0", "learning_rate = 0.2")):
        assert shown in text
        text = text.replace(shown, instead)
    return text


def is_healthy(deployment: Deployment, operator: str) -> bool:
    return health(deployment, operator) == "healthy"


def test_both_servers_become_healthy(started: Started) -> None:
    for operator in OPERATORS:
        wait_until(partial(is_healthy, started.deployment, operator), f"{operator} healthy", 120)


def health(deployment: Deployment, service: str) -> str:
    return deployment.inspect(service)["State"]["Health"]["Status"]


@pytest.mark.parametrize("service", [*OPERATORS, *SITES])
def test_nobody_is_root_and_nothing_but_the_state_is_writable(started: Started, service: str) -> None:
    deployment = started.deployment
    assert deployment.execute(service, "id", "-u").strip() == "10001"
    host = deployment.inspect(service)["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    for place in ("/", "/opt/moiety", "/etc/moiety", "/usr/local/lib/moiety"):
        assert deployment.attempt(service, "touch", f"{place}/x").returncode != 0
    assert deployment.attempt(service, "touch", "/tmp/x").returncode == 0


@pytest.mark.parametrize(("service", "absent"), [("operator-a", "torch"), (REQUESTER, "fastapi"), (REQUESTER, "pip")])
def test_each_image_holds_what_it_needs_and_no_more(started: Started, service: str, absent: str) -> None:
    assert started.deployment.attempt(service, "python3", "-c", f"import {absent}").returncode == 1
    assert started.deployment.attempt(service, "python3", "-c", "import protocol, numba").returncode == 0


# What the image leaves out of torch (tests, headers, programs) is missed by nothing that an agent does with it.
TORCH = """
import io, torch
from torch.func import functional_call, grad, vmap
net = torch.nn.Linear(3, 2)
own = {name: value.detach() for name, value in net.named_parameters()}
loss = lambda values, x: functional_call(net, values, (x,)).square().sum()
assert vmap(grad(loss), in_dims=(None, 0))(own, torch.ones(4, 3))["weight"].shape == (4, 2, 3)
made = torch.export.export(net, (torch.zeros(2, 3),), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
kept = io.BytesIO()
torch.export.save(made, kept)
kept.seek(0)
x = torch.ones(5, 3)
assert torch.equal(torch.export.load(kept).module()(x), net(x))
print("well")
"""


def test_torch_without_its_tests_and_headers_trains_and_exports(started: Started) -> None:
    assert started.deployment.execute(REQUESTER, "python3", "-c", TORCH).strip().endswith("well")


def test_the_compiled_kernels_of_the_image_are_used(started: Started) -> None:
    script = (
        "from protocol.arithmetic import numba_kernels as k; import json;"
        "s = k.mask.stats; print(json.dumps([sum(s.cache_hits.values()), sum(s.cache_misses.values())]))"
    )
    hits, misses = json.loads(started.deployment.execute("operator-a", "python3", "-c", script))
    assert hits > 0
    assert misses == 0


def test_sites_reach_both_servers_and_nothing_else(started: Started) -> None:
    deployment = started.deployment

    def probe(service: str, host: str, port: int) -> str:
        return deployment.execute(service, "python3", "-c", PROBE, host, str(port)).strip()

    for site in SITES:
        assert [probe(site, operator, PORT) for operator in OPERATORS] == ["open", "open"]
    assert probe("operator-a", "operator-b", PORT) == "open"
    assert probe("operator-b", "operator-a", PORT) == "open"
    assert probe(SITES[1], "operator-a", PORT + 1) == "refused"
    for other in (REQUESTER, SITES[2]):
        (network,) = deployment.inspect(other)["NetworkSettings"]["Networks"].values()
        assert probe(SITES[1], network["IPAddress"], PORT + 1) == "nothing"
        assert probe(SITES[1], network["IPAddress"], PORT + 1000) == "nothing"
    # An address for documentation (RFC 5737) stands for the rest of the world: an internal network has no way out.
    assert probe(SITES[1], "192.0.2.1", 443) == "nothing"


def test_a_study_with_a_killed_server_ends_as_the_plain_run(started: Started, tmp_path: Path) -> None:
    deployment, study = started.deployment, started.study
    metrics = f"studies/{study.name}/metrics.jsonl"
    wait_until(lambda: health(deployment, "operator-b") == "healthy", "operator-b healthy", 120)
    deployment.execute(REQUESTER, "moiety", "study", "create", "/etc/moiety/study.toml", *SETTINGS)
    wait_until(lambda: len(deployment.lines(REQUESTER, metrics)) >= KILLED_AFTER, "first rounds", 240)

    killed = deployment.container("operator-a")
    run("docker", "kill", killed)
    assert deployment.inspect("operator-a")["State"]["ExitCode"] == 137
    done_at_kill = len(deployment.lines(REQUESTER, metrics))
    assert KILLED_AFTER <= done_at_kill < study.rounds
    run("docker", "start", killed)

    wait_until(lambda: all(finished(deployment, site, study) for site in SITES), "the study's end", 300)
    states = {site: deployment.copy_state(site, tmp_path / site) for site in SITES}
    journals = {site: StudyJournal(state, study.name) for site, state in states.items()}
    check_against_plain_run(study, journals)
    for site, state in states.items():
        ledger = read_ledger(state / "ledger.jsonl")
        assert {entry.server for entry in ledger} == set(OPERATORS), site
        assert sum(entry.socket_sent_bytes for entry in ledger) > 0


def finished(deployment: Deployment, site: str, study: Study) -> bool:
    lines = deployment.lines(site, f"studies/{study.name}/site.json")
    return bool(lines) and json.loads(lines[0])["finished"] is not None


def check_against_plain_run(study: Study, journals: dict[str, StudyJournal]) -> None:
    sites = demo_sites()
    plain = run_plain(study, sites)
    records: tuple[RoundRecord, ...] = read_metrics(journals[REQUESTER].folder / "metrics.jsonl")
    assert [record.round for record in records] == list(range(1, study.rounds + 1))
    assert {record.state for record in records} == {RoundEnd.RELEASED}, [(r.round, r.reason) for r in records]
    assert [(r.round, r.took_part[1:]) for r in records] == [(r.round, r.took_part) for r in plain.rounds]
    assert [record.weights for record in records] == [r.handed_out for r in plain.rounds]
    models = {site: final_model(journal) for site, journal in journals.items()}
    assert len({model.tobytes() for model in models.values()}) == 1
    difference = float(np.linalg.norm(models[REQUESTER].astype(np.float64) - plain.final_model))
    bound = bound_of_run(plain, study, sites)
    assert 0 < difference <= bound
    assert bound < 0.1 * np.linalg.norm(plain.final_model)


def final_model(journal: StudyJournal) -> np.ndarray:
    state = present(journal.site_state())
    return journal.load_model(present(state.model_version))


def test_no_log_holds_a_secret(started: Started) -> None:
    deployment = started.deployment
    for service in (*OPERATORS, *SITES):
        keys = (deployment.folder / service / "keys.toml").read_text(encoding="utf-8")
        require_no_secret(deployment.logs(service), keys)
