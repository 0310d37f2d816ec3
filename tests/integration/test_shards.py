"""A study whose servers have their passes done by ranges: the same model, bit for bit, no share or key in clear."""

from __future__ import annotations

import importlib.util
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from client_agent.net import server_client
from client_agent.site.events import RoundEnd
from harness.engine.parties import OPERATOR_NAMES
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
def ranges_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Settings of a cluster, whose ranges the server's own process does; what Ray adds is tested beside it."""

    def workers(address: str | None, cpus: int, url: str, key: Path) -> Here:
        assert (address, cpus) == (None, 2)
        return Here(open_storage(url), read_wrapping_key(key))

    @contextmanager
    def patched() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(ray, "OnRay", workers)
            patch.setenv("MOIETY_SERVER_ENGINE", "ray")
            patch.setenv("MOIETY_SERVER_RAY__WRAPPING_KEY", str(write_key(tmp_path)))
            patch.setenv("MOIETY_SERVER_RAY__RANGE_PARAMETERS", str(STEP))
            patch.setattr(ray, "_SHARES_A_TASK", 3)
            yield

    with patched():
        yield


def run(folder: Path, bits: int = 64) -> tuple[bytes, list[bytes]]:
    """A study of two rounds, so that each side masks one: its model, and what lay in both servers' folders."""
    with in_memory(folder) as running:
        running.start()
        study = light_study(running.parties, "large", EROSION, rounds=2, dimension=D)
        records = run_to_end(running, changed(study, ring_bits=bits))
        assert [record.state for record in records] == [RoundEnd.RELEASED] * 2
        assert all(record.distances for record in records)
        (model,) = {final_model(running, site, "large") for site in SITES}
        folders = [running.servers.apps[side].state.server.settings.data_dir for side in Side]
        files = [path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()]
    return model, files


@pytest.mark.parametrize("bits", [64, 48])
def test_ranges_make_the_same_study_and_leave_no_share_in_clear(
    bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    plain, _ = run(tmp_path / "plain", bits)
    keys, kept_bytes = list[bytes](), list[int]()
    wrap, take_in = Shards.wrap, FolderStorage.take_in

    def wrapped(self: Shards, content_key: bytes, name: str) -> bytes:
        keys.append(content_key)
        return wrap(self, content_key, name)

    def taken_in(self: FolderStorage, file: Path, name: str) -> None:
        kept_bytes.append(file.stat().st_size)
        take_in(self, file, name)

    request.getfixturevalue("ranges_here")
    monkeypatch.setattr(server_client, "LARGE_BYTES", 2**16)  # vectors come in parts, seeds in one request
    monkeypatch.setattr(Shards, "wrap", wrapped)
    monkeypatch.setattr(FolderStorage, "take_in", taken_in)
    model, files = run(tmp_path / "ranges", bits)
    assert model == plain
    both = [sealed_length(SEED_BYTES), sealed_length(bits // 8 * D)]
    assert sorted(kept_bytes) == sorted(2 * len(SITES) * both)  # as they came, in two rounds
    assert len(set(keys)) == 2 * 2 * len(SITES)
    assert not [key for key in keys for file in files if key in file or key.hex().encode() in file]


@pytest.mark.soak
def test_two_servers_each_on_a_cluster_of_its_own_make_the_same_study(tmp_path: Path) -> None:
    """Real processes, two Ray clusters on this machine; neither server reaches the other's."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'moiety[scale]'")
    plain, _ = run(tmp_path / "plain")
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
            assert {final_model(federation, site, "large") for site in SITES} == {plain}
            sessions = {side: _ray_sessions(federation.running[OPERATOR_NAMES[side]].pid) for side in Side}
            assert all(len(found) == 1 for found in sessions.values()), "a cluster each"
            assert sessions[Side.A] != sessions[Side.B]
        finally:
            federation.stop()


def _ray_sessions(pid: int) -> set[str]:
    """The sessions of the clusters that a server's process has started, by their processes' command lines."""
    lines = [line for child in psutil.Process(pid).children(recursive=True) for line in child.cmdline()]
    return {found.group() for line in lines if (found := re.search(r"session_[\d_-]+", line))}
