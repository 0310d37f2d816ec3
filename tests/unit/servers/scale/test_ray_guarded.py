"""A Ray cluster whose every connection is under TLS and asks for a token: passes go through it, strangers do not."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest
import trustme

from servers.store.object_storage import FolderStorage
from tests.ports import more_free_ports
from tests.unit.servers.scale.stored import MASK, masked_sum_of_one_process, write_key

pytestmark = [pytest.mark.soak, pytest.mark.timeout(280)]
WITHIN_S: Final = 120.0
HOST: Final = "127.0.0.1"
PROGRAM: Final = """
import hashlib
import sys
from pathlib import Path
from servers.scale.ray import OnRay
from servers.scale.passes import Shards
from servers.store.object_storage import FolderStorage
from tests.unit.servers.scale.stored import BOUND, D, MASK, STEP, WRAPPING, store_all
address, folder = sys.argv[1], Path(sys.argv[2])
storage = FolderStorage(folder / "storage")
workers = OnRay(address, 1, str(folder / "storage"), folder / "wrapping.key")
cut = Shards(workers, storage, WRAPPING, folder / "sums", range_elements=STEP, shares_a_task=2)
masked = cut.masked_sum(BOUND, store_all(storage), MASK, D).elements(0, D)
print("sum", hashlib.sha256(masked.tobytes()).hexdigest())
workers.close()
"""
"""Of its own, since Ray reads these variables when it is loaded."""


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


def test_a_pass_goes_through_it(guarded: _Guarded) -> None:
    done = guarded.run()
    wanted = hashlib.sha256(masked_sum_of_one_process(MASK).tobytes()).hexdigest()
    assert f"sum {wanted}" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("without", ["RAY_USE_TLS", "RAY_AUTH_TOKEN"])
def test_who_lacks_either_gets_nothing_done(guarded: _Guarded, without: str) -> None:
    try:
        done = guarded.run(without)
    except subprocess.TimeoutExpired:
        return
    assert done.returncode != 0
    assert "sum " not in done.stdout
