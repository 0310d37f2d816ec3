"""Which Ray cluster does the runs, and what a run asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch

from harness.training.device import ON_CPU, Computing
from protocol.errors import ConfigurationError


class Engine(StrEnum):
    """What carries a case's runs out."""

    PROCESSES = "processes"
    RAY = "ray"


@dataclass(frozen=True)
class RayCluster:
    """``address`` of a cluster that runs already; None: one of this machine alone, of ``cpus`` CPUs, for as long.

    A run is a task that asks for ``cpus_per_run`` and ``gpus_per_run``: whole numbers, or parts of one that several
    runs share. Ray has no more runs under way than the cluster has of them.
    """

    address: str | None = None
    cpus: int = 1
    cpus_per_run: float = 1.0
    gpus_per_run: float = 0.0


_WHOLE: Final = 1.0
_MOST: Final = 10_000


def cluster_of(
    engine: Engine, address: str | None, cpus: int, cpus_per_run: float | None, gpus_per_run: float | None
) -> RayCluster | None:
    """From the command line's words; None: processes of this machine. Raises: ConfigurationError"""
    if engine is Engine.PROCESSES:
        for name, found in (("--address", address), ("--cpus-per-run", cpus_per_run), ("--gpus-per-run", gpus_per_run)):
            if found is not None:
                raise ConfigurationError(f"{name} is of a Ray cluster: give --engine ray besides")
        return None
    asked = {"--cpus-per-run": cpus_per_run, "--gpus-per-run": gpus_per_run}
    for name, number in asked.items():
        if number is not None and not (0 <= number <= _WHOLE or number in range(1, _MOST)):
            raise ConfigurationError(f"{name}: found {number}; give a part of one, or a whole number")
    return RayCluster(address, cpus, 1.0 if cpus_per_run is None else cpus_per_run, gpus_per_run or 0.0)


def computing_of(cluster: RayCluster | None, device: str, batched: bool | None) -> Computing:
    """Where runs train: on this machine's ``device``, or on what a cluster gives a run, which need not be here.

    Raises: ConfigurationError
    """
    if cluster is None:
        return Computing.chosen(device, batched)
    if device != "auto":
        raise ConfigurationError(f"--device {device}: a Ray cluster gives a run its device; say --gpus-per-run instead")
    if cluster.gpus_per_run:
        return Computing(torch.device("cuda"), batched is None or batched)
    return Computing(ON_CPU.device, bool(batched))
