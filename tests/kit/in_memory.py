"""A federation in one process: both servers' applications and the agents, on a clock of its own, without a socket.

Databases, files, journals, signatures, envelopes and seals are the real ones. The servers run in one event loop in a
thread of its own, every agent in its threads as in a process; no time passes while any of them works.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import anyio.to_thread
import httpx
from fastapi import FastAPI

from client_agent.daemon import run_agent
from client_agent.network.ledger import Ledger, LedgerEntry
from client_agent.settings import load_settings as agent_settings
from client_agent.site.events import AgentEvent, EventKind
from client_agent.site.outbox import create_study
from harness.engine.parties import Parties
from harness.federation.processes import FederationSpec, RunningFederation
from protocol.sharing import Side
from protocol.wire.messages import Study
from servers.app import create_app
from servers.correlations.transfer import OBLIVIOUS, Transfer
from servers.settings import load_settings as server_settings
from tests.kit.clocks import Stop, VirtualClock, VirtualLoop
from tests.kit.dealt import Dealt
from tests.kit.learners import Learners

_REAL_S: Final = 60.0
_LONG_POLL: Final = "view"
_MOMENT_S: Final = 0.01
_LOOK_AGAIN_S: Final = 5.0
_POLL_S: Final = 20.0
"""Every look for new studies is work, and waiting for one is none."""


class _ToApps(httpx.AsyncBaseTransport):
    """Carries a request to the application at its address.

    A long poll takes a moment, in which everything else goes on: of changes that follow one on another it brings the
    last, as over a network.
    """

    def __init__(self, apps: Mapping[str, FastAPI]) -> None:
        self._apps = apps

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = f"{request.url.scheme}://{request.url.netloc.decode()}"
        if host not in self._apps:
            raise httpx.ConnectError("nobody is there", request=request)
        if request.extensions.get("purpose") == _LONG_POLL:
            await asyncio.sleep(_MOMENT_S)
        return await _answer(self._apps[host], request)


async def _answer(app: FastAPI, request: httpx.Request) -> httpx.Response:
    """What an application answers to one request, as uvicorn would hand it over."""
    content = await request.aread()
    bodies: list[bytes] = []
    begun: dict[str, Any] = {}
    url = request.url
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme,
        "path": url.path,
        "raw_path": url.raw_path.split(b"?")[0],
        "query_string": url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (url.host, url.port),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            begun.update(message)
        else:
            bodies.append(message.get("body", b""))

    with suppress(Exception):  # after its own answer to an error the application raises it again, for a log
        await app(scope, receive, send)
    return httpx.Response(begun["status"], headers=begun["headers"], content=b"".join(bodies))


class AppsInMemory:
    """Both servers' applications on a virtual clock, from the settings that processes would read."""

    def __init__(self, configs: Mapping[Side, Path], *, transfer: Transfer | None = None) -> None:
        """``transfer``: where the correlations come from; dealt by the test unless said otherwise."""
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.apps: dict[Side, FastAPI] = {}
        self._by_url: dict[str, FastAPI] = {}
        self._over = asyncio.Event()
        transport = _ToApps(self._by_url)
        for side in Side:
            settings = server_settings(configs[side])
            self.apps[side] = create_app(
                settings, clock=self.clock.now, to_peer=transport, transfer=transfer or Dealt()
            )
            self._by_url[settings.public_url] = self.apps[side]
        self._transport = transport
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="servers")
        self._thread.start()
        self._ready.result(_REAL_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_REAL_S)

    def transport(self, record: Callable[[httpx.Request, httpx.Response], None] | None = None) -> InMemoryTransport:
        """A synchronous client's way to both servers; ``record`` sees every exchange."""
        return InMemoryTransport(self._transport, self.loop, self.clock, record)

    def _run(self) -> None:
        with self.clock.outside():
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._live())
            except BaseException as error:
                self._ready.set_exception(error)
            finally:
                self.loop.close()

    async def _live(self) -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        self.clock.count_work(lambda: limiter.borrowed_tokens > 0)
        async with AsyncExitStack() as stack:
            for side in (Side.B, Side.A):
                app = self.apps[side]
                await stack.enter_async_context(app.router.lifespan_context(app))
            self._ready.set_result(None)
            await self._over.wait()


class InMemoryTransport(httpx.BaseTransport):
    """Requests of other threads go into the event loop; closing it breaks those under way."""

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport,
        loop: VirtualLoop,
        clock: VirtualClock,
        record: Callable[[httpx.Request, httpx.Response], None] | None,
    ) -> None:
        self._inner = inner
        self._record = record
        self._loop = loop
        self._clock = clock
        self._under_way: set[Future[httpx.Response]] = set()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        copy = httpx.Request(
            request.method, request.url, headers=request.headers, content=request.content, extensions=request.extensions
        )
        done = asyncio.run_coroutine_threadsafe(self._inner.handle_async_request(copy), self._loop)
        self._under_way.add(done)
        try:
            with self._clock.waiting(done.done):
                answer = done.result()
        except CancelledError:
            raise httpx.ReadError("closed", request=request) from None
        finally:
            self._under_way.discard(done)
        if self._record is not None:
            self._record(request, answer)
        return answer

    def close(self) -> None:
        for done in tuple(self._under_way):
            done.cancel()


class InMemoryFederation:
    """Servers and agents; a context manager. ``learner`` makes what a site learns with."""

    def __init__(self, spec: FederationSpec, folder: Path, learner: Learners, *, real_transfer: bool = False) -> None:
        self.spec = spec
        self.files = RunningFederation(spec, folder)
        self.events: list[AgentEvent] = []
        self._learner = learner
        self._happened = threading.Condition()
        self._agents: dict[str, tuple[Stop, threading.Thread]] = {}
        self._failed: list[BaseException] = []
        configs = {side: self.files.config(self.parties.roster.message.operator(side).name) for side in Side}
        self.servers = AppsInMemory(configs, transfer=OBLIVIOUS if real_transfer else None)
        self.clock = self.servers.clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def parties(self) -> Parties:
        return self.files.parties

    def state(self, site: str) -> Path:
        return self.files.state(site)

    def config(self, name: str) -> Path:
        return self.files.config(name)

    def hand_in(self, study: Study) -> None:
        create_study(self.state(self.spec.requester), study)

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
        deadline = self.clock.monotonic() + within_s
        while not condition():
            assert not self._failed, self._failed
            seen = len(self.events)
            told = "\n".join(f"{e.site} {e.kind} {e.round} {e.text}" for e in self.events[-60:])
            assert self.clock.monotonic() < deadline, f"not within {within_s} s: {what}\n{told}"
            with self._happened:
                self.clock.wait_for(self._happened, partial(self._more_than, seen), _LOOK_AGAIN_S)

    def _more_than(self, seen: int) -> bool:
        return len(self.events) != seen

    def texts(self, kind: EventKind, site: str) -> list[str]:
        return [event.text for event in self.events if event.kind is kind and event.site == site]

    def _emit(self, event: AgentEvent) -> None:
        with self._happened:
            self.events.append(event)
            self._happened.notify_all()

    def _run(self, site: str, stop: Stop, learner: Learners) -> None:
        settings = agent_settings(self.config(site)).model_copy(update={"poll_s": _POLL_S})

        def connect(server: str, ledger: Ledger) -> httpx.BaseTransport:
            return self.servers.transport(partial(_write, ledger, server, self.clock))

        try:
            run_agent(
                settings,
                stop,
                self._emit,
                lambda study, seed: learner(settings, study, seed),
                connect,
                self.clock,
            )
        except BaseException as failure:
            self._failed.append(failure)
            raise


def _write(ledger: Ledger, server: str, clock: VirtualClock, request: httpx.Request, answer: httpx.Response) -> None:
    """As the ledger of a real connection, on which bodies alone travel."""
    sent, received = len(request.content), len(answer.content)
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
        )
    )
