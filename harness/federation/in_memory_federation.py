"""A federation in one process: both servers' applications and the agents, on a clock of its own, without a socket.

Databases, files, journals, signatures, envelopes and seals are the real ones. The servers run in one event loop in a
thread of its own, every agent in its threads as in a process; no time passes while any of them works.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self
from unittest import mock

import httpx

from client_agent.daemon import Pace, run_agent
from client_agent.net.ledger import Ledger, LedgerEntry
from client_agent.settings import load_settings as agent_settings
from client_agent.site.events import AgentEvent, EventKind
from harness.federation.clocks import Stop, VirtualClock
from harness.federation.learners import Learners
from harness.federation.network import Network, Slowly
from harness.federation.processes import FederationSpec, RunningFederation
from harness.federation.server_apps import DEALT, AppsInMemory
from protocol.sharing import Side
from servers.correlations import OBLIVIOUS

_REAL_S: Final = 60.0
_LOOK_AGAIN_S: Final = 5.0


class InMemoryFederation(RunningFederation):
    """Servers and agents; a context manager. ``learner`` makes what a site learns with.

    ``pace`` is that of every agent: each look for new studies is work, and waiting for one is none.
    """

    pace = Pace(look_every_s=20.0)

    def __init__(
        self,
        spec: FederationSpec,
        folder: Path,
        learner: Learners,
        *,
        real_transfer: bool = False,
        network: Network | None = None,
    ) -> None:
        super().__init__(spec, folder)
        self.events: list[AgentEvent] = []
        self._learner = learner
        self._happened = threading.Condition()
        self._agents: dict[str, tuple[Stop, threading.Thread]] = {}
        self._failed: list[BaseException] = []
        configs = {side: self.config(self.parties.roster.message.operator(side).name) for side in Side}
        self.servers = AppsInMemory(configs, transfer=OBLIVIOUS if real_transfer else DEALT, network=network)
        self.clock = self.servers.clock
        self._retries = ExitStack()
        # Time passes while an agent waits to ask again, and says when it gives up: the machine's would under load.
        for place in ("tenacity.nap.time", "tenacity.time"):
            self._retries.enter_context(mock.patch(place, self.clock))

    def __enter__(self) -> Self:
        return self

    def start(self, *sites: str, learner: Learners | None = None) -> None:
        """These sites' agents, all of them when none is named; ``learner`` in place of the federation's."""
        for site in sites or tuple(one.name for one in self.spec.sites):
            stop = Stop(self.clock)
            arguments = (site, stop, learner or self._learner)
            thread = threading.Thread(target=self._run, args=arguments, name=f"agent {site}")
            self._agents[site] = (stop, thread)
            thread.start()

    def stop_agents(self, *sites: str) -> None:
        chosen = sites or tuple(self._agents)
        for site in chosen:
            self._agents[site][0].set()
        for site in chosen:
            _, thread = self._agents.pop(site)
            thread.join(_REAL_S)
            assert not thread.is_alive(), site

    def stop(self) -> None:
        try:
            self.stop_agents()
        finally:
            self._retries.close()
            self.servers.stop()

    @contextmanager
    def agents(self, *sites: str, learner: Learners | None = None) -> Iterator[None]:
        """As ``start``; stopped in the end, and what they said before is forgotten."""
        self.events.clear()
        self.start(*sites, learner=learner)
        try:
            yield
        finally:
            self.stop_agents()

    def until(self, what: str, condition: Callable[[], bool], within_s: float = 3600.0) -> None:
        """Let them work until the condition holds; ``within_s`` is on their clock."""
        if not self.comes(condition, within_s):
            told = "\n".join(f"{e.site} {e.kind} {e.round} {e.text}" for e in self.events[-60:])
            raise AssertionError(f"not within {within_s} s: {what}\n{told}")

    def comes(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Return whether the condition held within that time, on their clock; nothing is looked at before somebody
        waits.
        """
        deadline = self.clock.monotonic() + within_s
        while not condition():
            assert not self._failed, self._failed
            seen = len(self.events)
            if self.clock.monotonic() >= deadline:
                return False
            with self._happened:
                self.clock.wait_for(self._happened, partial(self._more_than, seen), _LOOK_AGAIN_S)
        return True

    def _more_than(self, seen: int) -> bool:
        return len(self.events) != seen

    def texts(self, kind: EventKind, site: str) -> list[str]:
        return [event.text for event in self.events if event.kind is kind and event.site == site]

    def _emit(self, event: AgentEvent) -> None:
        with self._happened:
            self.events.append(event)
            self._happened.notify_all()

    def _run(self, site: str, stop: Stop, learner: Learners) -> None:
        settings = agent_settings(self.config(site))

        def connect(server: str, ledger: Ledger) -> httpx.BaseTransport:
            return self.servers.transport(partial(_write, ledger, server, self.clock), site)

        try:
            run_agent(
                settings,
                stop,
                self._emit,
                lambda study, seed: learner(settings, study, seed),
                connect,
                self.servers.clock_of(site),
                self.pace,
            )
        except BaseException as failure:
            self._died(site, failure)

    def _died(self, site: str, failure: BaseException) -> None:
        """An agent's daemon ended by an error, which ends a test too."""
        self._failed.append(failure)
        raise failure


def _write(ledger: Ledger, server: str, clock: VirtualClock, request: httpx.Request, answer: httpx.Response) -> None:
    """As the ledger of a real connection, on which bodies alone travel."""
    body = answer.stream
    sent, received = len(request.content), len(body.content if isinstance(body, Slowly) else answer.content)
    ledger.append(
        LedgerEntry(
            time_s=clock.now(),
            server=server,
            method=request.method,
            path=request.url.path,
            purpose=str(request.extensions.get("purpose", "request")),
            status=answer.status_code,
            body_sent_bytes=sent,
            body_received_bytes=received,
            socket_sent_bytes=sent,
            socket_received_bytes=received,
            tls_version=None,
            study=request.extensions.get("study"),
        )
    )
