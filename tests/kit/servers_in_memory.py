"""Both servers in memory for a test that speaks for the sites itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.federation.server_apps import AppsInMemory
from protocol.sharing import Side
from tests.kit.processes import Federation, prepare_servers


@contextmanager
def servers_in_memory(
    folder: Path, sites: Sequence[str], *, seed: int | None = None, limits: dict[str, Any] | None = None
) -> Iterator[Federation]:
    """As ``start_servers``, in this process and on a clock of their own."""
    federation = prepare_servers(folder, sites, seed=seed, limits=limits)
    apps = AppsInMemory({side: federation.servers[side].config for side in Side})
    try:
        federation.clock, federation.connect = apps.clock, apps.transport
        yield federation
    finally:
        apps.stop()
