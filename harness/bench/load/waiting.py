"""``moiety bench waiting``: what sites without a study cost, counted over minutes, scaled to an hour."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from client_agent.network.ledger import read_ledger
from harness.bench import probe
from harness.bench.load.held import Held, held_federation
from harness.bench.load.results import WaitingBenchmark
from harness.bench.load.samples import Sample
from harness.versions import versions
from protocol.errors import Unavailable
from protocol.sharing import Side

_HOUR_S: Final = 3600.0
_CONNECTED_WITHIN_S: Final = 600.0
_SETTLED_S: Final = 70.0
"""Two of an agent's longest polls."""
_LOOK_S: Final = 1.0


def benchmark_waiting(
    sites: int, seconds: float, processes: int, tell: Callable[[str], None], folder: Path | None = None
) -> WaitingBenchmark:
    """Start everything, wait until every site has asked for studies, count. Raises: Unavailable"""
    with (
        tempfile.TemporaryDirectory(prefix="moiety-bench-", dir=folder) as name,
        held_federation(Path(name), sites, processes) as held,
    ):
        idle_mb = max(map(probe.resident_mb, held.servers.pids))
        _await_all(held, sites)
        tell(f"{sites} sites are connected; counting begins in {_SETTLED_S:g} s and takes {seconds:g} s")
        time.sleep(_SETTLED_S)
        before, traffic = held.sampler.sample(0), _traffic(held)
        time.sleep(seconds)
        after, window = held.sampler.sample(0), _traffic(held) - traffic
        held.check()
        errors: Counter[str] = Counter()
        for one in held.played():
            errors.update(one.failed)
            errors.update(problem.partition(": ")[2] or problem for problem in one.problems)
    command = f"moiety bench waiting --sites {sites} --seconds {seconds:g} --processes {processes}"
    return _result(held, command, processes, idle_mb, (before, after), window, errors)


def _result(
    held: Held,
    command: str,
    processes: int,
    idle_mb: float,
    counted: tuple[Sample, Sample],
    window: _Traffic,
    errors: Counter[str],
) -> WaitingBenchmark:
    """``counted``: as it stood before and after."""
    before, after = counted
    hours = (after.seconds - before.seconds) / _HOUR_S
    return WaitingBenchmark(
        sites=len(held.servers.spec.sites) - 1,
        seconds=after.seconds - before.seconds,
        processes=processes,
        command=command,
        date=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=probe.machine(),
        machine_load=os.getloadavg()[1],
        errors=dict(errors),
        requests=window.requests,
        requests_per_hour=window.requests / hours,
        server_cpu_s_per_hour=(after.cpu_ns - before.cpu_ns) / 1e9 / hours,
        agent_cpu_s_per_hour=_agents_cpu_s(before, after) / hours,
        bytes_up_per_hour=window.sent_bytes / hours,
        bytes_down_per_hour=window.received_bytes / hours,
        server_idle_mb=idle_mb,
        server_resident_mb=after.resident_mb,
        open_files_most=after.open_files,
        versions={one.name: one.version for one in versions()},
    )


def waiting_text(result: WaitingBenchmark) -> str:
    """The figures, one a line."""
    errors = ", ".join(f"{count} x {what}" for what, count in result.errors.items()) or "none"
    return "\n".join(
        (
            f"{result.sites} sites without a study, counted for {result.seconds:.0f} s and scaled to an hour, "
            f"load of the machine {result.machine_load:.1f}",
            f"errors: {errors}",
            f"requests an hour: {result.requests_per_hour:,.0f}",
            f"both servers' CPU seconds an hour: {result.server_cpu_s_per_hour:.1f}; "
            f"of all agents: {result.agent_cpu_s_per_hour:.1f}",
            f"MB an hour at the sites' sockets: up {result.bytes_up_per_hour / 1e6:.1f}, "
            f"down {result.bytes_down_per_hour / 1e6:.1f}",
            f"a server's memory: {result.server_idle_mb:.0f} MB before the sites, "
            f"{result.server_resident_mb:.0f} MB with them; open files: {result.open_files_most}",
        )
    )


@dataclass(frozen=True)
class _Traffic:
    requests: int
    sent_bytes: int
    received_bytes: int

    def __sub__(self, other: _Traffic) -> _Traffic:
        return _Traffic(
            self.requests - other.requests,
            self.sent_bytes - other.sent_bytes,
            self.received_bytes - other.received_bytes,
        )


def _traffic(held: Held) -> _Traffic:
    """Of all contributors so far, as their ledgers have it."""
    contributors = [site.name for site in held.servers.spec.sites if site.name != held.servers.spec.requester]
    entries = [entry for name in contributors for entry in read_ledger(held.servers.ledger(name))]
    return _Traffic(
        sum(entry.count for entry in entries),
        sum(entry.socket_sent_bytes for entry in entries),
        sum(entry.socket_received_bytes for entry in entries),
    )


def _agents_cpu_s(before: Sample, after: Sample) -> float:
    return (after.agents_cpu_ns - before.agents_cpu_ns) / 1e9


def _await_all(held: Held, sites: int) -> None:
    """Until server A has a connection of every site. Raises: Unavailable"""
    deadline = time.monotonic() + _CONNECTED_WITHIN_S
    while (found := _connections(held)) < sites:
        held.check()
        if time.monotonic() > deadline:
            raise Unavailable(f"{found:.0f} of {sites} sites are connected after {_CONNECTED_WITHIN_S:g} s")
        time.sleep(_LOOK_S)


def _connections(held: Held) -> float:
    try:
        page = held.servers.metrics(Side.A)
    except httpx.TransportError:  # a thousand handshakes come first
        return 0.0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "moiety_connections":
                return sample.value
    raise Unavailable("server A's /metrics has no moiety_connections")
