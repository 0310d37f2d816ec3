"""The process that forks others: it imports and compiles once what each of them needs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Final

ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_IN_MEMORY: Final = "harness.federation.preload"
_FORKING: Final = multiprocessing.get_context("forkserver")


def one_thread(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with one thread for each library that would take a processor's all."""
    return {**environment, **dict.fromkeys(ONE_THREAD, "1")}


def fork_context() -> ForkServerContext:
    """Start the fork server where none runs. Its libraries read there how many threads they may have.

    A forked process has the environment of that start: hand over your own.
    """
    _FORKING.set_forkserver_preload([_IN_MEMORY])
    before = dict(os.environ)
    os.environ.update(one_thread({}))
    try:
        forkserver.ensure_running()
    finally:
        for name in ONE_THREAD:
            os.environ.pop(name)
        os.environ.update(before)
    return _FORKING
