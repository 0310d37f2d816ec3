"""A server's disk is really full, database and all: 507, nothing stored, and the round goes on when there is room."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from harness.adversaries.scripted_requester import ScriptedSites, make_study
from protocol.sharing import Side
from protocol.wire.messages import RoundState
from tests.integration.test_server_round import NUMERATORS, SITES, updates
from tests.kit.processes import Federation, prepare_servers, running_servers

DIMENSION = 20_000
_DISK_BYTES = 24 * 2**20
_RESERVE_BYTES = 4 * 2**20


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk takes root; the failpoint 'disk_full' of test_crashes.py runs everywhere")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(params=list(Side))
def sites(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScriptedSites]:
    """Both servers, one of them with its data on a disk of 24 MB."""
    federation = prepare_servers(tmp_path, SITES, limits={"disk_reserve_bytes": _RESERVE_BYTES})
    with small_disk(data_of(federation, request.param)), running_servers(federation):
        made = ScriptedSites(federation, make_study(federation, DIMENSION))
        made.create()
        yield made
        made.close()


def data_of(federation: Federation, side: Side) -> Path:
    return federation.folder / f"operator-{side.value}" / "data"


def fill(disk: Path, leave_bytes: int) -> Path:
    """Write zeros until only so much is left, or until nothing more fits."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                free = shutil.disk_usage(disk).free - leave_bytes
                if free <= 0 or file.write(bytes(min(free, 2**20))) == 0:
                    break
        except OSError:
            assert leave_bytes == 0
    return filler


@pytest.mark.parametrize("leave_bytes", [_RESERVE_BYTES, 0], ids=["reserve", "nothing"])
def test_a_full_disk_refuses_and_recovers(
    sites: ScriptedSites, request: pytest.FixtureRequest, leave_bytes: int
) -> None:
    side = next(s for s in Side if (data_of(sites.federation, s)).is_mount())
    disk = data_of(sites.federation, side)
    announcement = sites.announcement(1)
    sites.announce(announcement)
    x = updates(1, dimension=DIMENSION)
    sealed = {site: sites.seal_contribution(site, x[site], announcement) for site in SITES}
    receipts = sites.contribute(SITES[0], sealed[SITES[0]], 1)
    path = sites.contribution_path(1)

    filler = fill(disk, leave_bytes)
    before = sorted(p.name for p in (disk / "shares").iterdir())
    for site in SITES[1:3]:
        answer = sites.clients[site].send(side, "PUT", path, sealed[site].bodies[side])
        assert answer.status_code == 507, (answer.status_code, answer.text)
        assert answer.json()["code"] == "storage_full"
    assert sorted(p.name for p in (disk / "shares").iterdir()) == before
    filler.unlink()

    assert sites.contribute(SITES[0], sealed[SITES[0]], 1) == receipts
    for site in SITES[1:]:
        sites.contribute(site, sealed[site], 1)
    current = sites.wait_transcript(Side.A, 1)
    sites.send_queries(current, x[sites.requester], NUMERATORS)
    for each in Side:
        current = sites.wait_round(each, 1, RoundState.MEASURED)
    sites.release(current)
    for each in Side:
        sites.wait_round(each, 1, RoundState.RELEASED)
    assert np.array_equal(sites.output(SITES[1], 1), sum(x.values()))
