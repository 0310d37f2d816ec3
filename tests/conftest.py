"""Holds in every test, and in the processes that one starts.

One example of hypothesis may take as long as a busy machine needs; a test has its timeout. Examples are the same in
every run, and so are the lines that they count. Every library computes with one thread: tests run side by side, and
their models are small. Temporary files are in memory where there is room, which spares some 100,000 waits for a disk;
what must outlive a killed process is tested on a disk (``kit.disk``).

Collecting makes a million objects that stay: the garbage collector is off meanwhile, and never looks at them later.

Counting lines and branches can double a test's time, also where it runs packages that are not counted. Where
``protocol`` alone is counted, as in ``make test``, only tests of the folders in ``COUNTED`` count, which run all of it.
Tests that run again what others run and count, many times or in whole studies, are marked ``uncounted``.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
import structlog
from coverage import Coverage
from hypothesis import settings

from tests.kit.disk import in_memory

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):  # read on import
    os.environ[_name] = "1"
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 leaves its workers nothing beside other tests
_memory = in_memory()
if "TMPDIR" not in os.environ and _memory is not None:
    os.environ["TMPDIR"] = tempfile.tempdir = str(_memory)

settings.register_profile("busy", deadline=None, derandomize=True)
settings.load_profile("busy")

COUNTED: Final = ("property", "unit", "vectors")
"""Folders below this one whose tests run all of ``protocol``."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _counts(item: pytest.Item) -> bool:
    if item.get_closest_marker("uncounted"):
        return False
    folders = item.path.relative_to(Path(__file__).parent).parts
    everything = item.config.getoption("cov_source", None) != ["protocol"]
    return everything or folders[0] in COUNTED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures of an uncounted test are not counted either. A worker's coverage runs on top of another one's."""
    stopped: list[Coverage] = []
    while not _counts(item) and (counting := Coverage.current()) is not None:
        counting.stop()
        stopped.append(counting)
    try:
        return (yield)
    finally:
        structlog.reset_defaults()  # a command that a test called in this process may have set its own
        for counting in reversed(stopped):
            counting.start()
