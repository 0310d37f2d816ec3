"""Both servers in memory for a test that speaks for the sites itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from protocol.sharing import Side
from tests.integration.federation import Federation, prepare_servers
from tests.kit.in_memory import AppsInMemory


@contextmanager
def servers_in_memory(folder: Path, sites: Sequence[str]) -> Iterator[Federation]:
    """As ``start_servers``, in this process and on a clock of their own."""
    federation = prepare_servers(folder, sites)
    apps = AppsInMemory({side: federation.servers[side].config for side in Side})
    try:
        yield replace(federation, clock=apps.clock, connect=apps.transport)
    finally:
        apps.stop()
