"""Fixtures of several files of tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.attack.scripted_rounds import SITES, STRANGER, AttackedPair
from harness.federation.server_apps import ServersInMemory
from tests.integration.crash_modes import CrashProcesses


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedPair[ServersInMemory]]:
    """Both servers in memory, and whoever speaks for the sites of ``scripted_rounds``."""
    with ServersInMemory(tmp_path_factory.mktemp("pair"), [*SITES, STRANGER]) as servers, AttackedPair(servers) as made:
        yield made


@pytest.fixture(scope="module")
def crash_processes() -> Iterator[CrashProcesses]:
    processes = CrashProcesses()
    yield processes
    processes.close()
