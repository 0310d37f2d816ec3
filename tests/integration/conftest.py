"""Fixtures of several files of tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.crash_modes import CrashProcesses


@pytest.fixture(scope="module")
def crash_processes() -> Iterator[CrashProcesses]:
    processes = CrashProcesses()
    yield processes
    processes.close()
