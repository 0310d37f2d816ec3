"""Runs over processes: one after the other here, or ``--jobs`` at a time in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from types import ModuleType
from typing import Final, Protocol

from harness.simulation.run_one import PlannedRun, execute, forget_data
from harness.simulation.runs import RunLine
from harness.simulation.workers.told import RoundDone, teller

_POLL_S: Final = 0.5


class _Inbox(Protocol):
    def put(self, item: RoundDone) -> None: ...
    def get_nowait(self) -> RoundDone: ...


def run_in_processes(
    planned: Sequence[PlannedRun], jobs: int, show: Callable[[RoundDone], None]
) -> Iterator[tuple[PlannedRun, RunLine]]:
    """Every run with its line, as they finish; ``show`` is told of every round.

    Raises: whatever a run raises, after the runs that were under way have kept their last round
    """
    if jobs == 1 or len(planned) < 2:
        forget_data()
        for one in planned:
            yield one, execute(one, teller(one, show))
        return
    context = multiprocessing.get_context("spawn")
    inbox: _Inbox = context.Queue()
    stop = context.Event()
    processes, given = min(jobs, len(planned)), (inbox, stop)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker, initargs=given) as pool:
        with _without_main():
            waiting = {pool.submit(_execute_there, one): one for one in planned}
        try:
            yield from _as_they_finish(waiting, inbox, show)
        finally:
            stop.set()
            for future in waiting:
                future.cancel()


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep workers that start now from importing the caller's script, which would simulate once more in each."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _as_they_finish(
    waiting: dict[Future[RunLine], PlannedRun], inbox: _Inbox, show: Callable[[RoundDone], None]
) -> Iterator[tuple[PlannedRun, RunLine]]:
    while waiting:
        done, _ = wait(waiting, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        _tell(inbox, show)
        for future in done:
            one, line = waiting.pop(future), future.result()
            show(RoundDone(one.key, len(line.kind)))  # what the process told of its last rounds may come after the line
            yield one, line


class _Worker:
    """What a worker process was given when it began."""

    inbox: _Inbox
    stop: Event


class _Stopped(Exception):
    """Another run has failed, or the simulation ends: this one is kept up to its last round."""


def _begin_worker(inbox: _Inbox, stop: Event) -> None:
    """Take what connects with the simulation, and end at once when it is killed: nobody would read what comes out."""
    _Worker.inbox, _Worker.stop = inbox, stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _execute_there(planned: PlannedRun) -> RunLine:
    def tell(done: RoundDone) -> None:
        _Worker.inbox.put(done)
        if _Worker.stop.is_set():
            raise _Stopped

    return execute(planned, teller(planned, tell))


def _tell(inbox: _Inbox, show: Callable[[RoundDone], None]) -> None:
    while True:
        try:
            show(inbox.get_nowait())
        except queue.Empty:
            return
