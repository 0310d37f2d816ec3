"""Ranges as tasks of a real Ray cluster of this machine: the bits of one process, and nothing secret in what Ray keeps.

The slow ones kill workers, and a server's process in the middle of a sum.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import trustme

from harness.attack.signed_client import until
from protocol.arithmetic.ring import to_bytes
from protocol.errors import ConfigurationError, Unavailable
from servers.scale import ray
from servers.scale.passes import Shards
from servers.scale.ranges import Done, SumTask, Task
from servers.scale.ray import OnRay, Places
from servers.store.object_storage import FolderStorage
from tests.ports import more_free_ports
from tests.unit.servers.scale.stored import (
    BOUND,
    KEY_TEXT,
    MASK,
    SITES,
    D,
    content_key,
    cut_by,
    masked_sum_of_one_process,
    require_bits,
    require_sum,
    seed,
    sketches_of_one_process,
    store_all,
    values,
    write_key,
)

# --- on ray -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cluster:
    workers: OnRay
    folder: Path

    @property
    def storage(self) -> FolderStorage:
        return FolderStorage(self.folder / "storage")

    @property
    def ray(self) -> Any:
        return self.workers._ray

    def shards(self, folder: Path) -> Shards:
        return cut_by(self.workers, self.storage, folder)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cluster]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'moiety[scale]'")
    folder = tmp_path_factory.mktemp("ray")
    workers = OnRay(None, 2, str(folder / "storage"), write_key(folder))
    try:
        yield _Cluster(workers, folder)
    finally:
        workers.close()


@pytest.mark.soak
@pytest.mark.timeout(280)
def test_a_cluster_gives_the_bits_of_one_process_and_sees_nothing(cluster: _Cluster, tmp_path: Path) -> None:
    stored, cut = store_all(cluster.storage), cluster.shards(tmp_path / "sums")
    require_bits(cut, stored)
    wrong = cut.masked_sum(replace(BOUND, round=4), [replace(stored[0], name=stored[2].name)], MASK, D)
    with pytest.raises(Unavailable, match=r"machine \S+: a wrapped key does not open here"):
        wrong.elements(0, 8)
    secrets = [MASK, bytes.fromhex(KEY_TEXT), *(seed(site) for site in range(SITES))]
    secrets += [content_key(site) for site in range(SITES)]
    secrets += [to_bytes(values(site)[place : place + 4]) for site in range(SITES) for place in (0, D - 4)]
    secrets += [to_bytes(one[:4]) for one in sketches_of_one_process()]
    secrets += [secret.hex().encode() for secret in secrets]
    assert _seen(cluster.ray, secrets) == []


def _seen(ray: Any, secrets: list[bytes]) -> list[bytes]:
    """Secrets found in the session's files, logs among them, or in the memory of the object store's process.

    Both places hold something that was put there to be found.
    """
    in_store, in_log = _marked(), _marked()

    def says() -> None:
        print(in_log.decode(), flush=True)

    kept = ray.put(in_store * 10_000)  # too large for a message: it lies in the object store
    ray.get(ray.remote(num_cpus=1)(says).remote())
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [path for path in session.rglob("*") if path.is_file() and not path.is_symlink()]
    held = b"\n".join(path.read_bytes() for path in files if path.stat().st_size)
    (raylet,) = [one for one in psutil.Process().children(recursive=True) if one.name() == "raylet"]
    memory = _memory(raylet.pid)
    assert in_log in held, "the search would not find what a worker writes to its log"
    assert in_store in memory, "the search would not find what lies in the object store"
    del kept
    return [secret for secret in secrets if secret in held or secret in memory]


def _marked() -> bytes:
    """Something that is nowhere else."""
    return os.urandom(16).hex().encode()


def _memory(pid: int) -> bytes:
    """All that a process can write in its memory, what it shares with others included."""
    pieces = []
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            place, mode = line.split()[:2]
            start, stop = (int(one, 16) for one in place.split("-"))
            if mode.startswith("rw"):
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(start)
                    pieces.append(memory.read(stop - start))
    return b"".join(pieces)


@pytest.mark.soak
@pytest.mark.timeout(280)
def test_killed_workers_cost_their_ranges_alone(cluster: _Cluster, tmp_path: Path) -> None:
    """A share that is a pipe holds whoever opens it until they are killed."""
    stored, bound = store_all(cluster.storage), replace(BOUND, round=5)
    share = cluster.folder / "storage" / stored[0].name
    share.rename(tmp_path / "aside")
    os.mkfifo(share)
    masked = cluster.shards(tmp_path / "sums").masked_sum(bound, stored, MASK, D)
    assert until(lambda: len(_at_work()) == 2, 60.0)
    shutil.copy(tmp_path / "aside", tmp_path / "whole")
    shutil.move(tmp_path / "whole", share)
    for worker in _at_work():
        worker.kill()
    assert masked.elements(0, D).tobytes() == masked_sum_of_one_process().tobytes()


def _at_work() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "_carry_out_there" in " ".join(process.cmdline()):
                found.append(process)
    return found


_DIES_AFTER_TWO = """
import os, signal, sys
from pathlib import Path
from servers.scale.ray import OnRay
from servers.scale.passes import WrittenRanges
from tests.unit.servers.scale.stored import BOUND, MASK, D, cut_by, store_all
from servers.store.object_storage import FolderStorage
folder, add, done = Path(sys.argv[1]), WrittenRanges.add, []
def dies(self, bound, written):
    add(self, bound, written)
    done.append(written)
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
WrittenRanges.add = dies
storage = FolderStorage(folder / "storage")
workers = OnRay(None, 1, str(folder / "storage"), folder / "wrapping.key")
cut = cut_by(workers, storage, folder / "sums")
cut.masked_sum(BOUND, store_all(storage), MASK, D).elements(0, D)
"""


@pytest.mark.soak
@pytest.mark.timeout(280)
def test_a_server_killed_in_the_middle_of_a_sum_goes_on_where_it_was(cluster: _Cluster) -> None:
    killed = subprocess.run([sys.executable, "-c", _DIES_AFTER_TWO, cluster.folder], check=False, timeout=200)
    assert killed.returncode == -signal.SIGKILL
    stored, asked = store_all(cluster.storage), list[int]()

    class Counted(OnRay):
        def do(self, tasks: Sequence[Task], over: threading.Event) -> Iterator[Done]:
            asked.extend(task.start for task in tasks)
            return super().do(tasks, over)

    workers = object.__new__(Counted)
    workers.__dict__.update(vars(cluster.workers))
    again = cut_by(workers, cluster.storage, cluster.folder / "sums")
    require_sum(again, stored)
    assert len(asked) == 2


def test_a_cluster_elsewhere_is_used_behind_tls_and_a_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ConfigurationError, match="RAY_AUTH_MODE=token is not set: whoever reaches a cluster"):
        OnRay("10.1.2.3:6379", 1, "/shared", Path("key"))


def test_without_ray_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'moiety\[server,scale\]'"):
        OnRay(None, 1, "/shared", Path("key"))


def test_a_worker_with_other_code_does_nothing() -> None:
    refused = ray._carry_out_there(SumTask(BOUND, (), 0, 8, b""), Places("/nowhere", "/nowhere", "0" * 64))
    assert isinstance(refused, ray._Refused)
    assert "another version" in refused.why


def test_an_error_of_a_worker_says_no_more_than_its_kind(tmp_path: Path) -> None:
    places = Places(str(tmp_path / "storage"), str(tmp_path / "missing"), ray.code_digest())
    refused = ray._carry_out_there(SumTask(BOUND, (), 0, 8, b""), places)
    assert isinstance(refused, ray._Refused)
    assert "cannot be read" in refused.why
    broken: Any = object()
    refused = ray._carry_out_there(broken, replace(places, wrapping_key=str(write_key(tmp_path))))
    assert isinstance(refused, ray._Refused)
    assert "a range failed (AttributeError)" in refused.why


# --- ray guarded ------------------------------------------------------------------------------------------------------

WITHIN_S: Final = 120.0
HOST: Final = "127.0.0.1"
PROGRAM: Final = """
import hashlib
import sys
from pathlib import Path
from servers.scale.ray import OnRay
from servers.store.object_storage import FolderStorage
from tests.unit.servers.scale.stored import BOUND, D, MASK, cut_by, store_all
address, folder = sys.argv[1], Path(sys.argv[2])
storage = FolderStorage(folder / "storage")
workers = OnRay(address, 1, str(folder / "storage"), folder / "wrapping.key")
cut = cut_by(workers, storage, folder / "sums")
masked = cut.masked_sum(BOUND, store_all(storage), MASK, D).elements(0, D)
print("sum", hashlib.sha256(masked.tobytes()).hexdigest())
workers.close()
"""
"""A process of its own, since Ray reads these variables when it is loaded."""


@dataclass(frozen=True)
class _Guarded:
    address: str
    folder: Path
    told: dict[str, str]

    def run(self, *without: str) -> subprocess.CompletedProcess[str]:
        """The program, told everything but ``without``."""
        environment = {name: value for name, value in (os.environ | self.told).items() if name not in without}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, self.address, str(self.folder)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Guarded]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'moiety[scale]'")
    folder = tmp_path_factory.mktemp("guarded")
    write_key(folder)
    FolderStorage(folder / "storage")
    ca = trustme.CA()
    own_address = _own_address()
    certificate = ca.issue_cert(own_address, HOST, "localhost")
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "certificate.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    told = {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(folder / "certificate.pem"),
        "RAY_TLS_SERVER_KEY": str(folder / "key.pem"),
        "RAY_TLS_CA_CERT": str(folder / "ca.pem"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    (port,) = more_free_ports(1)
    command = [
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--port={port}",
        f"--node-ip-address={own_address}",
    ]
    own = ["--num-cpus=1", "--include-dashboard=false", "--object-store-memory=100000000"]
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen([sys.executable, "-m", *command, *own], env=os.environ | told, stdout=log, stderr=log)
    try:
        found = _Guarded(f"{own_address}:{port}", folder, told)
        _wait(found, head)
        yield found
    finally:
        _end(head)


def _own_address() -> str:
    """Ray calls itself by the machine's address, even where it is told the loopback's."""
    import ray

    return str(ray.util.get_node_ip_address())


def _wait(guarded: _Guarded, head: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while b"Ray runtime started" not in (guarded.folder / "head.log").read_bytes():
        assert head.poll() is None, (guarded.folder / "head.log").read_text()
        assert time.monotonic() < deadline, (guarded.folder / "head.log").read_text()
        time.sleep(0.2)


def _end(head: subprocess.Popen[bytes]) -> None:
    """It and what it started: 'ray stop' would end everybody's."""
    started = psutil.Process(head.pid).children(recursive=True)
    head.terminate()
    with suppress(subprocess.TimeoutExpired):
        head.wait(20)
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    head.kill()
    head.wait(20)


@pytest.mark.soak
@pytest.mark.timeout(280)
def test_a_pass_goes_through_it(guarded: _Guarded) -> None:
    done = guarded.run()
    wanted = hashlib.sha256(masked_sum_of_one_process(MASK).tobytes()).hexdigest()
    assert f"sum {wanted}" in done.stdout, done.stderr[-2000:]


@pytest.mark.soak
@pytest.mark.timeout(280)
@pytest.mark.parametrize("without", ["RAY_USE_TLS", "RAY_AUTH_TOKEN"])
def test_who_lacks_either_gets_nothing_done(guarded: _Guarded, without: str) -> None:
    try:
        done = guarded.run(without)
    except subprocess.TimeoutExpired:
        return
    assert done.returncode != 0
    assert "sum " not in done.stdout
