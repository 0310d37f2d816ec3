"""A case's runs over processes of this machine, or as tasks of a Ray cluster.

A run is one task: what it is made of goes in, its line comes out, and it keeps its rounds in the folder of
checkpoints, which on more than one machine has to be one that all of them see. A run whose machine is lost is begun
again elsewhere, by its checkpoint where it left off. When the simulation ends or is killed, so do its tasks.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import torch

from client_agent.learning.flat_vector import pick_device
from harness.datasets.public_data import DATA_VARIABLE
from harness.datasets.registry import path_of
from harness.engine.training import Computing
from harness.fork_server import fork_context
from harness.simulate.run_line import RunKey, RunLine
from harness.simulate.run_one import PlannedRun, execute, forget_data
from harness.simulate.store import code_digest
from host.extensions import FOLDER
from protocol.errors import ConfigurationError, MoietyError

Show: TypeAlias = Callable[[RunKey, int], None]
"""Is told that so many rounds of a run are done."""
Lines: TypeAlias = Iterator[tuple[PlannedRun, RunLine]]


@dataclass(frozen=True)
class RayCluster:
    """A cluster that runs already, by its address.

    A run is a task that asks for ``cpus_per_run`` and ``gpus_per_run``: whole numbers, or parts of one that several
    runs share. Ray has no more runs under way than the cluster has of them.
    """

    address: str
    cpus_per_run: float = 1.0
    gpus_per_run: float = 0.0


_WHOLE: Final = 1.0
_MOST: Final = 10_000


def cluster_of(address: str | None, cpus_per_run: float | None, gpus_per_run: float | None) -> RayCluster | None:
    """Read the command line's words; None: processes of this machine. Raises: ConfigurationError"""
    for name, number in (("--cpus-per-run", cpus_per_run), ("--gpus-per-run", gpus_per_run)):
        if number is not None and address is None:
            raise ConfigurationError(f"{name} is of a Ray cluster: give its --address besides")
        if number is not None and not (0 <= number <= _WHOLE or number in range(1, _MOST)):
            raise ConfigurationError(f"{name}: found {number}; give a part of one, or a whole number")
    if address is None:
        return None
    return RayCluster(address, 1.0 if cpus_per_run is None else cpus_per_run, gpus_per_run or 0.0)


def computing_of(cluster: RayCluster | None, device: str) -> Computing:
    """Return where runs train: on this machine's ``device``, or on what a cluster gives a run, which need not be here.

    Raises: ConfigurationError
    """
    if cluster is None:
        return Computing.on(pick_device(device))
    if device != "auto":
        raise ConfigurationError(f"--device {device}: a Ray cluster gives a run its device; say --gpus-per-run instead")
    return Computing.on(torch.device("cuda" if cluster.gpus_per_run else "cpu"))


_POLL_S: Final = 0.5
F = TypeVar("F")


class _Inbox(Protocol):
    def put(self, item: tuple[RunKey, int]) -> None: ...
    def get_nowait(self) -> tuple[RunKey, int]: ...


def run_all(planned: Sequence[PlannedRun], where: int | RayCluster, show: Show) -> Lines:
    """Every run with its line, as they finish, to the same bits ``where``-ever; ``show`` is told of every round.

    where   a number of processes of this machine, or a Ray cluster, which tells of rounds some half a second later

    Raises: whatever a run raises, after the runs that were under way have kept their last round; ConfigurationError
            where Ray is not installed, the cluster does not answer, lacks what a run asks for, or has another version
            of this code
    """
    if isinstance(where, RayCluster):
        yield from _run_on_ray(planned, where, show)
    elif where == 1 or len(planned) < 2:
        forget_data()
        for one in planned:
            yield one, execute(one, partial(show, one.key))
    else:
        yield from _run_in_processes(planned, where, show)


def _as_they_finish(
    waiting: dict[F, PlannedRun],
    done: Callable[[Sequence[F]], Iterable[F]],
    told: Callable[[], Iterable[tuple[RunKey, int]]],
    line_of: Callable[[F, PlannedRun], RunLine],
    show: Show,
) -> Lines:
    """``done`` waits a while for some of those that it is given, ``told`` are rounds since it was last asked."""
    while waiting:
        found = done(list(waiting))
        for key, rounds in told():
            show(key, rounds)
        for under_way in found:
            one = waiting.pop(under_way)
            line = line_of(under_way, one)
            show(one.key, len(line.kind))  # what was told of its last rounds may come after the line
            yield one, line


def _run_in_processes(planned: Sequence[PlannedRun], jobs: int, show: Show) -> Lines:
    context = fork_context()
    inbox: _Inbox = context.Queue()
    stop = context.Event()
    processes, given = min(jobs, len(planned)), (inbox, stop, dict(os.environ))
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker, initargs=given) as pool:
        with _without_main():
            waiting = {pool.submit(_execute_in_process, one): one for one in planned}
        try:
            yield from _as_they_finish(
                waiting,
                lambda futures: wait(futures, timeout=_POLL_S, return_when=FIRST_COMPLETED).done,
                partial(_taken_from, inbox),
                lambda future, one: future.result(),
                show,
            )
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


def _taken_from(inbox: _Inbox) -> Iterator[tuple[RunKey, int]]:
    with suppress(queue.Empty):
        while True:
            yield inbox.get_nowait()


class _Worker:
    inbox: _Inbox
    stop: Event


class _Stopped(Exception):
    """Another run has failed, or the simulation ends: this one is kept up to its last round."""


def _begin_worker(inbox: _Inbox, stop: Event, environment: Mapping[str, str]) -> None:
    """Take what connects with the simulation, and end at once when it is killed: nobody would read what comes out."""
    os.environ.clear()
    os.environ.update(environment)
    _Worker.inbox, _Worker.stop = inbox, stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _execute_in_process(planned: PlannedRun) -> RunLine:
    def tell(rounds: int) -> None:
        _Worker.inbox.put((planned.key, rounds))
        if _Worker.stop.is_set():
            raise _Stopped

    return execute(planned, tell)


_AGAIN_AFTER_A_LOST_MACHINE: Final = 5


@dataclass(frozen=True)
class _Refused:
    """A run could not be done, for a reason that a person has to mend."""

    why: str


def _run_on_ray(planned: Sequence[PlannedRun], cluster: RayCluster, show: Show) -> Lines:
    if not planned:
        return
    with _connected(cluster) as ray:
        _require_room(ray, cluster)
        rounds = ray.remote(num_cpus=0)(_Rounds).remote()
        task = ray.remote(
            num_cpus=cluster.cpus_per_run,
            num_gpus=cluster.gpus_per_run,
            max_retries=_AGAIN_AFTER_A_LOST_MACHINE,
        )(_execute_in_task)
        waiting = {task.remote(_anywhere(one), rounds, code_digest()): one for one in planned}
        try:
            yield from _as_they_finish(
                waiting,
                lambda tasks: ray.wait(tasks, timeout=_POLL_S)[0],
                lambda: ray.get(rounds.taken.remote()),
                partial(_line, ray),
                show,
            )
        finally:
            for under_way in waiting:
                ray.cancel(under_way)


def _anywhere(planned: PlannedRun) -> PlannedRun:
    """The run with whole paths: a machine of the cluster has neither this folder nor this environment."""
    partial = planned.partial and planned.partial.absolute()
    named = planned.data.folder or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    name = planned.data.data
    if name.startswith(FOLDER):
        name = f"{FOLDER}{path_of(name).absolute()}"
    return replace(planned, partial=partial, data=replace(planned.data, data=name, folder=named and named.absolute()))


def _line(ray: Any, under_way: Any, planned: PlannedRun) -> RunLine:  # noqa: ANN401  # Ray has no types here
    try:
        found: RunLine | _Refused = ray.get(under_way)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(
            f"run {planned.key}: the cluster lost it {_AGAIN_AFTER_A_LOST_MACHINE + 1} times, at last so: {reason}; "
            "see to its machines (memory, above all), then give the same command again"
        ) from None
    if isinstance(found, _Refused):
        raise ConfigurationError(found.why)
    return found


def _execute_in_task(planned: PlannedRun, rounds: Any, code: str) -> RunLine | _Refused:  # noqa: ANN401
    if code_digest() != code:
        return _Refused(
            f"machine {socket.gethostname()} of the cluster has code {code_digest()[:12]}, this is code {code[:12]}: "
            "install one version on all machines, and start the cluster again"
        )
    told_s = time.monotonic()

    def tell(done: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= _POLL_S:
            told_s = time.monotonic()
            rounds.told.remote(planned.key, done)

    try:
        return execute(planned, tell)
    except MoietyError as refused:
        return _Refused(f"machine {socket.gethostname()}: {refused.detail}")


class _Rounds:
    def __init__(self) -> None:
        self._latest: dict[RunKey, int] = {}

    def told(self, key: RunKey, rounds: int) -> None:
        self._latest[key] = rounds

    def taken(self) -> list[tuple[RunKey, int]]:
        taken, self._latest = list(self._latest.items()), {}
        return taken


@contextmanager
def _connected(cluster: RayCluster) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else a cluster that begins here reports to Ray's makers
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ConfigurationError("--address needs Ray: pip install 'moiety[scale]'") from None
    try:
        ray.init(cluster.address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.AuthenticationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(
            f"--address {cluster.address}: no Ray cluster is reached there: {reason}; is it started, and is "
            "RAY_AUTH_MODE=token set here, with its token in ~/.ray/auth_token or at RAY_AUTH_TOKEN_PATH?"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_room(ray: Any, cluster: RayCluster) -> None:  # noqa: ANN401  # Ray has no types here
    """A task that no machine has room for would wait for ever. Raises: ConfigurationError"""
    machines = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    if any(one.get("CPU", 0) >= cluster.cpus_per_run and one.get("GPU", 0) >= cluster.gpus_per_run for one in machines):
        return
    have = "; ".join(f"{one.get('CPU', 0):g} CPUs and {one.get('GPU', 0):g} GPUs" for one in machines)
    raise ConfigurationError(
        f"a run asks for {cluster.cpus_per_run:g} CPUs and {cluster.gpus_per_run:g} GPUs, which no machine of the "
        f"cluster has ({have}): lower --cpus-per-run or --gpus-per-run"
    )
