"""Both servers in memory for somebody who speaks for the sites itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import httpx
import numpy as np

from client_agent.learning.data import Examples, LocalData
from harness.federation.memory.apps import AppsInMemory
from harness.federation.memory.network import Network
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from host.clock import Clock
from protocol.messages.control import Roster
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side


class ServersInMemory(RunningFederation):
    """Two applications with their databases and files in ``folder``, on a clock of their own; the first site asks.

    A context manager. ``apps`` are the applications, whose functions can be replaced in this process.
    """

    def __init__(self, folder: Path, sites: Sequence[str], network: Network | None = None) -> None:
        nothing = Examples(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64))
        specs = tuple(SiteSpec(name, LocalData(nothing, nothing)) for name in sites)
        super().__init__(FederationSpec("attacked", sites[0], specs), folder)
        operators = {side: self.roster.operator(side).name for side in Side}
        self.apps = AppsInMemory({side: self.config(operators[side]) for side in Side}, network=network)
        self.clock: Clock = self.apps.clock
        self.connect: Callable[[], httpx.BaseTransport] | None = self.apps.transport

    def __enter__(self) -> Self:
        return self

    @property
    def roster(self) -> Roster:
        return self.parties.roster.message

    def keys(self, name: str) -> PartyKeys:
        return self.parties.keys_of(name)

    def stop(self) -> None:
        self.apps.stop()
