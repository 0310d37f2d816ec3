"""A process that runs many sites' agents, each as ``moiety agent run`` does but for what they learn with.

``python -m harness.bench.load.agents FOLDER OUT SITE...`` runs until SIGTERM and then writes what the calls took to
OUT. Nothing is trained: updates come from :class:`LightLearner` in microseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx
from pydantic import BaseModel, ConfigDict

from client_agent.daemon import run_agent
from client_agent.network.ledger import Ledger
from client_agent.network.transport import CountingTransport, tls_context
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.events import AgentEvent, EventKind
from harness.bench import probe
from harness.bench.load.calls import Calls, TimedTransport
from harness.federation.memory.learners import light_learner
from host.placed_files import rewrite

_USUAL_POLL_S: Final = AgentSettings.model_fields["poll_s"].default
"""Federations on loopback look for studies more often than an agent is told to."""


class Played(BaseModel):
    """What a process's agents did: milliseconds of calls by purpose, failed calls, and what they complained of."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    milliseconds: dict[str, list[float]]
    failed: dict[str, int]
    problems: tuple[str, ...]
    cpu_ns: int
    peak_mb: float


class Agents:
    """Agents of sites in threads of this process."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        self.calls = Calls()
        self.problems: list[str] = []
        self._context = tls_context(folder / "ca.pem")
        self._stop = threading.Event()
        configs = [folder / site / "settings.toml" for site in sites]
        self._threads = [threading.Thread(target=self._run, args=(c,), name=c.parent.name) for c in configs]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask all of them to end, and wait for it."""
        self.calls.close()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, config: Path) -> None:
        settings = load_settings(config).model_copy(update={"poll_s": _USUAL_POLL_S})
        try:
            run_agent(settings, self._stop, self._emit, partial(light_learner, settings), self._connect)
        except BaseException as error:
            self.problems.append(f"{settings.site} ended: {error!r}")
            raise

    def _connect(self, server: str, ledger: Ledger) -> httpx.BaseTransport:
        return TimedTransport(CountingTransport(server, self._context, ledger), self.calls)

    def _emit(self, event: AgentEvent) -> None:
        if event.kind is EventKind.PROBLEM and not self._stop.is_set():
            self.problems.append(f"{event.site}: {event.text}")


def main(folder: Path, out: Path, sites: Sequence[str]) -> None:
    """Run them until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    agents = Agents(folder, sites)
    agents.start()
    ended.wait()
    used_ns, peak_mb = probe.cpu_ns(os.getpid()), probe.peak_mb(os.getpid())
    agents.stop()
    played = Played(
        milliseconds=agents.calls.milliseconds,
        failed=agents.calls.failed,
        problems=tuple(agents.problems),
        cpu_ns=used_ns,
        peak_mb=peak_mb,
    )
    rewrite(out, played.model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
