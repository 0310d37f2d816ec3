"""A study whose servers have their passes done by ranges: the same model, bit for bit, no share or key in clear."""

from __future__ import annotations

import importlib.util
import re
import secrets
from pathlib import Path

import psutil
import pytest

from client_agent.net import server_client
from client_agent.site.events import RoundEnd
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec, write_secret
from protocol.arithmetic.ring import SEED_BYTES
from protocol.channel.sealing import sealed_length
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from servers.scale import ray
from servers.scale.passes import Here, Shards
from servers.scale.ranges import read_wrapping_key
from servers.store.object_storage import FolderStorage, open_storage
from tests.integration.agents import changed, final_model, finished, in_memory, run_to_end, wait_for
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation
from tests.ports import free_ports
from tests.unit.servers.scale.stored import STEP, write_key

SITES = ("requester", "c1", "c2", "c3")
D = STEP + 500
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2)


@pytest.fixture
def ranges_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of a cluster, whose ranges the server's own process does; what Ray adds is tested beside it."""

    def workers(address: str | None, cpus: int, url: str, key: Path) -> Here:
        assert (address, cpus) == (None, 2)
        return Here(open_storage(url), read_wrapping_key(key))

    monkeypatch.setattr(ray, "OnRay", workers)
    monkeypatch.setenv("MOIETY_SERVER_ENGINE", "ray")
    monkeypatch.setenv("MOIETY_SERVER_RAY__WRAPPING_KEY", str(write_key(tmp_path)))
    monkeypatch.setenv("MOIETY_SERVER_RAY__RANGE_PARAMETERS", str(STEP))
    monkeypatch.setattr(ray, "_SHARES_A_TASK", 3)


def run(running: InMemoryFederation, bits: int = 64) -> bytes:
    """The model of a study of two rounds, so that each side masks one."""
    study = light_study(running.parties, f"large-{bits}", EROSION, rounds=2, dimension=D)
    records = run_to_end(running, changed(study, ring_bits=bits))
    assert [record.state for record in records] == [RoundEnd.RELEASED] * 2
    assert all(record.distances for record in records)
    (model,) = {final_model(running, site, study.name) for site in SITES}
    return model


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, bytes]:
    """Models without ranges, by the ring's bits."""
    with in_memory(tmp_path_factory.mktemp("plain")) as running:
        running.start()
        return {bits: run(running, bits) for bits in (64, 48)}


@pytest.mark.parametrize("bits", [64, 48])
def test_ranges_make_the_same_study_and_leave_no_share_in_clear(
    bits: int, plain: dict[int, bytes], ranges_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, kept_bytes = list[bytes](), list[int]()
    wrap, take_in = Shards.wrap, FolderStorage.take_in

    def wrapped(self: Shards, content_key: bytes, name: str) -> bytes:
        keys.append(content_key)
        return wrap(self, content_key, name)

    def taken_in(self: FolderStorage, file: Path, name: str) -> None:
        kept_bytes.append(file.stat().st_size)
        take_in(self, file, name)

    monkeypatch.setattr(server_client, "LARGE_BYTES", 2**16)  # vectors come in parts, seeds in one request
    monkeypatch.setattr(Shards, "wrap", wrapped)
    monkeypatch.setattr(FolderStorage, "take_in", taken_in)
    with in_memory(tmp_path / "ranges") as running:
        running.start()
        model = run(running, bits)
        folders = [running.servers.apps[side].state.server.settings.data_dir for side in Side]
        files = [path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert model == plain[bits]
    both = [sealed_length(SEED_BYTES), sealed_length(bits // 8 * D)]
    assert sorted(kept_bytes) == sorted(2 * len(SITES) * both)  # as they came, in two rounds
    assert len(set(keys)) == 2 * 2 * len(SITES)
    assert not [key for key in keys for file in files if key in file or key.hex().encode() in file]


@pytest.mark.soak
def test_two_servers_each_on_a_cluster_of_its_own_make_the_same_study(plain: dict[int, bytes]) -> None:
    """Real processes, two Ray clusters on this machine; neither server reaches the other's."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'moiety[scale]'")
    spec = FederationSpec("memory", SITES[0], light_sites(SITES, POLICY), seed=5, ports=free_ports())
    with folder_on_disk() as folder:
        federation = Federation(folder, spec, light_learner)
        for side in Side:
            name, key = OPERATOR_NAMES[side], federation.folder / f"{side.value}.key"
            write_secret(key, secrets.token_hex(32))
            cluster = f'{{ cpus = 1, range_parameters = {STEP}, wrapping_key = "{key}" }}'
            federation.plain[name] = f'engine = "ray"\nray = {cluster}\n' + federation.plain[name]
            federation.config(name).write_text(federation.plain[name])
        try:
            federation.start_servers()
            federation.start_agents()
            study = light_study(federation.parties, "large", EROSION, rounds=2, dimension=D)
            federation.hand_in(study)
            wait_for("the end", finished(federation, "large", *SITES), 120.0, federation.site_tails)
            assert {final_model(federation, site, "large") for site in SITES} == {plain[64]}
            sessions = {side: _ray_sessions(federation.running[OPERATOR_NAMES[side]].pid) for side in Side}
            assert all(len(found) == 1 for found in sessions.values()), "a cluster each"
            assert sessions[Side.A] != sessions[Side.B]
        finally:
            federation.stop()


def _ray_sessions(pid: int) -> set[str]:
    """The sessions of the clusters that a server's process has started, by their processes' command lines."""
    lines = [line for child in psutil.Process(pid).children(recursive=True) for line in child.cmdline()]
    return {found.group() for line in lines if (found := re.search(r"session_[\d_-]+", line))}
