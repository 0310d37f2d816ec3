"""Shares in an S3-compatible object store, over its own protocol: moto's server, which speaks it, and s3fs.

Neither is among the development packages (s3fs asks for one version of fsspec alone): pip install 's3fs' 'moto[server]'
runs these tests, in ``make soak``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ProtocolViolation, Unavailable
from servers.scale.ray import OnRay
from servers.store.object_storage import RemoteStorage, open_storage
from tests.ports import more_free_ports
from tests.unit.servers.scale.stored import (
    BOUND,
    KEY_TEXT,
    MASK,
    STEP,
    D,
    cut_by,
    here,
    require_bits,
    store_all,
    values,
    write_key,
)

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")]
BUCKET = "moiety-a"
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server of its own, which forgets everything at its end; the drivers find it by their usual variables."""
    for needed in ("s3fs", "moto.server"):
        try:
            found = importlib.util.find_spec(needed)
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip(f"NOT TESTED against S3: {needed} is not installed: pip install s3fs 'moto[server]'")
    (port,) = more_free_ports(1)
    url = f"http://127.0.0.1:{port}"
    told = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "a-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        _wait_for(url)
        _s3fs().S3FileSystem().mkdir(BUCKET, create_parents=True)
        yield f"s3://{BUCKET}"
    finally:
        server.terminate()
        server.wait(20)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _s3fs() -> Any:
    return importlib.import_module("s3fs")


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5.0):
                return
        except urllib.error.URLError:
            assert time.monotonic() < deadline, "moto's server does not answer"
            time.sleep(0.1)


@pytest.fixture
def storage(endpoint: str, request: pytest.FixtureRequest) -> RemoteStorage:
    found = open_storage(f"{endpoint}/{request.node.name}")
    assert isinstance(found, RemoteStorage)
    return found


def test_what_is_written_is_read_by_ranges_listed_and_deleted(storage: RemoteStorage, tmp_path: Path) -> None:
    assert storage.names() == []
    storage.write("one", bytes(range(256)) * 4)
    file = tmp_path / "draft"
    file.write_bytes(b"taken in" * 2**20)  # eight megabytes: more than one request carries
    storage.take_in(file, "two")
    assert not file.exists()
    assert sorted(storage.names()) == ["one", "two"]
    assert storage.read("one", 250, 10) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3])
    assert storage.read("two", 2**23 - 4, 100) == b"n in", "to the end and no further"
    storage.delete(["one", "never there"])
    assert storage.names() == ["two"]
    with pytest.raises(ProtocolViolation):
        storage.read("one", 0, 4)


def test_a_store_that_is_away_is_waited_for(storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = more_free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    _s3fs().S3FileSystem.clear_instance_cache()
    away = open_storage(f"s3://{BUCKET}/away")
    try:
        for asked in (
            lambda: away.read("one", 0, 4),
            lambda: away.write("one", b"data"),
            lambda: away.delete(["one"]),
            away.names,
        ):
            with pytest.raises(Unavailable):
                asked()
    finally:
        _s3fs().S3FileSystem.clear_instance_cache()


def test_passes_over_it_have_the_bits_of_one_process(storage: RemoteStorage, tmp_path: Path) -> None:
    cut = here(storage, tmp_path)
    require_bits(cut, store_all(storage))
    names = set(storage.names())
    cut.forget(BOUND.study)
    assert len(names - set(storage.names())) == -(-D // STEP), "the sum's ranges go"
    _require_nothing_in_clear(storage)


def test_so_do_tasks_of_a_cluster(endpoint: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'moiety[scale]'")
    url = f"{endpoint}/cluster"
    storage = open_storage(url)
    workers = OnRay(None, 2, url, write_key(tmp_path))
    try:
        require_bits(cut_by(workers, storage, tmp_path / "sums"), store_all(storage))
    finally:
        workers.close()


def _require_nothing_in_clear(storage: RemoteStorage) -> None:
    secrets = [MASK, bytes.fromhex(KEY_TEXT), values(0)[:4].tobytes()]
    for name in storage.names():
        content = storage.read(name, 0, 2**30)
        assert not [secret for secret in secrets if secret in content]
