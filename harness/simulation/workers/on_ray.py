"""Runs as tasks of a Ray cluster (docs/simulating.md, "Over a cluster").

A run is one task: what it is made of goes in, its line comes out, and it keeps its rounds in the folder of
checkpoints, which on more than one machine has to be one that all of them see. A run whose machine is lost is begun
again elsewhere, by its checkpoint where it left off. When the simulation ends or is killed, so do its tasks.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from harness.datasets.public_data import DATA_VARIABLE
from harness.datasets.registry import path_of
from harness.simulation.files.code_digest import code_digest
from harness.simulation.run_one import PlannedRun, execute
from harness.simulation.runs import RunKey, RunLine
from harness.simulation.workers.cluster import RayCluster
from harness.simulation.workers.told import RoundDone, teller
from host.extensions import FOLDER
from protocol.errors import ConfigurationError, MoietyError

_POLL_S: Final = 0.5
_OBJECT_STORE_BYTES: Final = 100_000_000
_AGAIN_AFTER_A_LOST_MACHINE: Final = 5


@dataclass(frozen=True)
class _Refused:
    """A run could not be done, for a reason that a person has to mend."""

    why: str


def run_on_ray(
    planned: Sequence[PlannedRun], cluster: RayCluster, show: Callable[[RoundDone], None]
) -> Iterator[tuple[PlannedRun, RunLine]]:
    """Every run with its line, as they finish; ``show`` is told of every round, some half a second later.

    Raises: ConfigurationError where Ray is not installed, the cluster does not answer, lacks what a run asks for, or
    has another version of this code; and what a run raises
    """
    if not planned:
        return
    with _connected(cluster) as ray:
        _require_room(ray, cluster)
        rounds = ray.remote(num_cpus=0)(_Rounds).remote()
        task = ray.remote(
            num_cpus=cluster.cpus_per_run,
            num_gpus=cluster.gpus_per_run,
            max_retries=_AGAIN_AFTER_A_LOST_MACHINE,
        )(_execute_there)
        waiting = {task.remote(_anywhere(one), rounds, code_digest()): one for one in planned}
        try:
            yield from _as_they_finish(ray, waiting, rounds, show)
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


def _as_they_finish(
    ray: Any,  # noqa: ANN401  (Ray is an extra)
    waiting: dict[Any, PlannedRun],
    rounds: Any,  # noqa: ANN401
    show: Callable[[RoundDone], None],
) -> Iterator[tuple[PlannedRun, RunLine]]:
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=_POLL_S)
        for told in ray.get(rounds.taken.remote()):
            show(told)
        for under_way in done:
            one = waiting.pop(under_way)
            line = _line(ray, under_way, one)
            show(RoundDone(one.key, len(line.kind)))  # what was told of its last rounds may come after the line
            yield one, line


def _line(ray: Any, under_way: Any, planned: PlannedRun) -> RunLine:  # noqa: ANN401
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


def _execute_there(planned: PlannedRun, rounds: Any, code: str) -> RunLine | _Refused:  # noqa: ANN401
    """What a machine of the cluster does: the run, telling of its rounds twice a second."""
    if code_digest() != code:
        return _Refused(
            f"machine {socket.gethostname()} of the cluster has code {code_digest()[:12]}, this is code {code[:12]}: "
            "install one version on all machines, and start the cluster again"
        )
    told_s = time.monotonic()

    def tell(done: RoundDone) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= _POLL_S:
            told_s = time.monotonic()
            rounds.told.remote(done)

    try:
        return execute(planned, teller(planned, tell))
    except MoietyError as refused:
        return _Refused(f"machine {socket.gethostname()}: {refused.detail}")


class _Rounds:
    """How far every run is; an actor."""

    def __init__(self) -> None:
        self._latest: dict[RunKey, RoundDone] = {}

    def told(self, done: RoundDone) -> None:
        self._latest[done.key] = done

    def taken(self) -> list[RoundDone]:
        taken, self._latest = list(self._latest.values()), {}
        return taken


@contextmanager
def _connected(cluster: RayCluster) -> Iterator[Any]:
    """Ray, connected. Raises: ConfigurationError"""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else a local cluster reports what it does to Ray's makers
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ConfigurationError("--engine ray needs Ray: pip install 'moiety[scale]'") from None
    own: dict[str, object] = {
        "num_cpus": cluster.cpus,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    try:
        ray.init(
            address="local" if cluster.address is None else cluster.address,
            log_to_driver=False,
            configure_logging=False,
            **(own if cluster.address is None else {}),
        )
    except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.AuthenticationError) as error:
        reason = str(error).strip().splitlines()[0]
        if cluster.address is None:
            raise ConfigurationError(f"--engine ray: no Ray cluster of this machine starts: {reason}") from None
        raise ConfigurationError(
            f"--address {cluster.address}: no Ray cluster is reached there: {reason}; is it started, and is "
            "RAY_AUTH_MODE=token set here, with its token in ~/.ray/auth_token or at RAY_AUTH_TOKEN_PATH?"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_room(ray: Any, cluster: RayCluster) -> None:  # noqa: ANN401
    """A task that no machine has room for would wait for ever. Raises: ConfigurationError"""
    machines = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    if any(one.get("CPU", 0) >= cluster.cpus_per_run and one.get("GPU", 0) >= cluster.gpus_per_run for one in machines):
        return
    have = "; ".join(f"{one.get('CPU', 0):g} CPUs and {one.get('GPU', 0):g} GPUs" for one in machines)
    raise ConfigurationError(
        f"a run asks for {cluster.cpus_per_run:g} CPUs and {cluster.gpus_per_run:g} GPUs, which no machine of the "
        f"cluster has ({have}): lower --cpus-per-run or --gpus-per-run"
    )
