"""Correlations dealt in place of oblivious transfer: the same steps and messages, without the work.

For servers in one process only, which see each other's memory anyway; a deployed server knows no dealer.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

import anyio.to_thread
import httpx
import numpy as np
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive

from harness.federation.clocks import SteppedClock, VirtualClock, VirtualLoop, work_of
from harness.federation.learners import light_sites
from harness.federation.network import Carrier, Network, Slowly, Untroubled
from harness.federation.processes import FederationSpec, RunningFederation
from host.clock import Clock
from host.files import private_folder
from protocol.arithmetic.ring import derive
from protocol.messages.control import Roster
from protocol.mpc.product import dealer_pair
from protocol.ot.base import DEFAULT_EXTENSION, Extension
from protocol.ot.session import (
    CorrelationHalf,
    LengthsList,
    OtReceiver,
    OtSender,
    OtSenderOpening,
    ReceiverBatch,
    SenderBatch,
)
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side
from servers.app import create_app
from servers.correlations import Transfer
from servers.settings import ServerSettings
from servers.settings import load_settings as server_settings
from servers.store.migrate import upgrade

T = TypeVar("T")
_NOTHING = np.zeros(0, dtype=np.uint64)
_NO_BYTES = np.zeros(0, dtype=np.uint8)


def _halves(session_id: bytes, number: int, lengths_list: LengthsList, place: int) -> list[CorrelationHalf]:
    """Side A's for place 0, side B's for place 1."""
    return dealer_pair(lengths_list, derive(session_id, f"dealt batch {number}"))[place]


class _Receiver(OtReceiver):
    def __init__(self, session_id: bytes) -> None:
        super().__init__(_NO_BYTES, session_id, DEFAULT_EXTENSION)
        self._session_id = session_id

    @classmethod
    def open(
        cls, session_id: bytes, message: bytes, rand: bytes, extension: Extension = DEFAULT_EXTENSION
    ) -> tuple[OtReceiver, bytes]:
        return cls(session_id), b""

    def extend(self, lengths_list: LengthsList) -> tuple[ReceiverBatch, bytes]:
        batch = ReceiverBatch(list(lengths_list), self._number, 0, _NOTHING, _NO_BYTES, _NO_BYTES)
        self._number += 1
        return batch, b""

    def answer(self, batch: ReceiverBatch, challenge: bytes) -> bytes:
        return b""

    def finish(self, batch: ReceiverBatch, products: bytes) -> list[CorrelationHalf]:
        return _halves(self._session_id, batch.number, batch.lengths_list, 0)


class _Sender(OtSender):
    def __init__(self, session_id: bytes) -> None:
        super().__init__(_NO_BYTES, b"", session_id, DEFAULT_EXTENSION)
        self._session_id = session_id

    @staticmethod
    def open(session_id: bytes, rand: bytes, extension: Extension = DEFAULT_EXTENSION) -> tuple[OtSenderOpening, bytes]:
        return _Opening(session_id), b""

    def challenge(self, message: bytes, lengths_list: LengthsList, rand: bytes) -> tuple[SenderBatch, bytes]:
        batch = SenderBatch(list(lengths_list), self._number, 0, b"", _NO_BYTES)
        self._number += 1
        return batch, b""

    def respond(self, batch: SenderBatch, answer: bytes) -> tuple[list[CorrelationHalf], bytes]:
        return _halves(self._session_id, batch.number, batch.lengths_list, 1), b""


class _Opening(OtSenderOpening):
    def __init__(self, session_id: bytes) -> None:
        self._session_id = session_id

    def finish(self, reply: bytes) -> OtSender:
        return _Sender(self._session_id)


DEALT: Final = Transfer(_Receiver, _Sender)
"""Both servers' halves follow from the session's name."""

_REAL_S: Final = 60.0
_LONG_POLLS: Final = frozenset({"view", "list studies"})
_MOMENT_S: Final = 0.01


class _ToApps(httpx.AsyncBaseTransport):
    """Carries a request to the application at its address.

    A long poll takes a moment, in which everything else goes on: of changes that follow one on another it brings the
    last, as over a network.
    """

    def __init__(self, apps: AppsInMemory, sender: str) -> None:
        self._apps, self._sender = apps, sender

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        side = self._apps.addresses.get(f"{request.url.scheme}://{request.url.netloc.decode()}")
        if side is None:
            raise httpx.ConnectError("nobody is there", request=request)
        if request.extensions.get("purpose") in _LONG_POLLS:
            await asyncio.sleep(_MOMENT_S)
        return await self._apps.carrier.carry(request, self._sender, side, partial(self._apps.answer, side))


class ComingBody(Protocol):
    """A request's extension ``held_back``: says when which part of the body arrives."""

    async def next_message(self, content: bytes) -> dict[str, Any]: ...


async def _answer(app: FastAPI, request: httpx.Request) -> httpx.Response:
    """Return an application's answer to one request, as uvicorn would hand it over.

    Raises: httpx.RemoteProtocolError, when it answers nothing, as to one whose sender has gone
    """
    content = await request.aread()
    breaks_off = bool(request.extensions.get("breaks_off"))
    held_back: ComingBody | None = request.extensions.get("held_back")
    coming = [{"type": "http.request", "body": content, "more_body": breaks_off}]

    async def receive() -> dict[str, Any]:
        if held_back is not None:
            return await held_back.next_message(content)
        if not coming and not breaks_off:
            await asyncio.Event().wait()
        return coming.pop() if coming else {"type": "http.disconnect"}

    left: list[httpx.Response] = []
    with suppress(Exception):  # after its own answer to an error the application raises it again, for a log
        await answer_to(app, scope_of(request), receive, left)
    if not left:
        raise httpx.RemoteProtocolError("no answer", request=request)
    return left[0]


async def answer_to(app: ASGIApp, scope: dict[str, Any], receive: Receive, left: list[httpx.Response]) -> None:
    """Have an application answer one request; ``left`` gets the answer once all of it has left."""
    bodies: list[bytes] = []
    begun: dict[str, Any] = {}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            begun.update(message)
        else:
            bodies.append(message.get("body", b""))
            if not message.get("more_body", False):
                left.append(httpx.Response(begun["status"], headers=begun["headers"], content=b"".join(bodies)))

    await app(scope, receive, send)


def scope_of(request: httpx.Request) -> dict[str, Any]:
    """A request as ASGI hands it to an application."""
    url = request.url
    return {
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


class ServerPair(ABC):
    """Both servers' applications in one event loop, on a virtual clock; each dies, and starts again over its files."""

    def __init__(self, settings: Mapping[Side, ServerSettings], network: Network | None = None) -> None:
        self.settings = settings
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.off_s: Counter[str] = Counter()
        """Seconds by which a party's own clock is off: a site's, or "server a"."""
        self.carrier = Carrier(network or Untroubled(), self.clock)
        self.apps: dict[Side, FastAPI] = {}
        self.living: set[Side] = set()
        self._lives: dict[Side, asyncio.Task[None]] = {}

    def clock_of(self, party: str) -> Clock:
        """Return the time as this party takes it."""
        return SteppedClock(self.clock, lambda: self.off_s[party])

    @abstractmethod
    def made(self, side: Side) -> FastAPI:
        """Return a new application over the server's database and files. Raises: MoietyError, OSError"""

    @abstractmethod
    async def respond(self, side: Side, request: httpx.Request, left: list[httpx.Response]) -> None:
        """Have a server answer; ``left`` gets the answer once all of it has left, whatever the server does then."""

    def start(self, side: Side) -> None:
        """Begin a server's life. Raises: MoietyError, OSError"""
        self.apps[side] = self.made(side)
        self.living.add(side)
        self._lives[side] = self.task(_live(self.apps[side]), side)

    def die(self, side: Side) -> None:
        """Cancel all that a server does: whoever waits for its answer hears that the connection broke."""
        self.living.discard(side)
        self.loop.dies(side)

    async def answer(self, side: Side, request: httpx.Request) -> httpx.Response:
        """Raises: httpx.TransportError, when nobody lives there, or dies meanwhile"""
        if side not in self.living:
            raise httpx.ConnectError("nobody listens", request=request)
        left: list[httpx.Response] = []
        answering = self.task(self.respond(side, request, left), side)
        await asyncio.wait([answering])
        failure = None if answering.cancelled() else answering.exception()
        if left:
            return left[0]
        raise failure if isinstance(failure, httpx.TransportError) else httpx.ReadError("the server died")

    def task(self, doing: Coroutine[Any, Any, T], side: Side | None) -> asyncio.Task[T]:
        """Work that dies with this server, or with none."""
        return self.loop.create_task(doing, context=work_of(side))

    async def close(self) -> None:
        """Cancel what is on its way, and both servers."""
        await self.carrier.close()
        for side in self._lives:
            self.die(side)
        await asyncio.gather(*self._lives.values(), return_exceptions=True)


async def _live(app: FastAPI) -> None:
    async with app.router.lifespan_context(app):
        with suppress(asyncio.CancelledError):  # a server that dies in one process with others closes its files
            await asyncio.Event().wait()


def _begin_migrated(settings: ServerSettings) -> None:
    """To apply every migration takes a new server twice as long as all else of its start."""
    file = settings.data_dir / "server.db"
    if settings.database_url is None and not file.exists():
        private_folder(settings.data_dir)
        file.write_bytes(_migrated())


@cache
def _migrated() -> bytes:
    """A database of the newest schema with nothing in it."""
    with tempfile.TemporaryDirectory(prefix="moiety-schema-") as folder:
        path = Path(folder) / "server.db"
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()


class AppsInMemory(ServerPair):
    """Both servers in a thread of their own, from the settings that processes would read."""

    def __init__(
        self, configs: Mapping[Side, Path], *, transfer: Transfer = DEALT, network: Network | None = None
    ) -> None:
        """``transfer``: where the correlations come from; dealt by the test unless said otherwise."""
        super().__init__({side: server_settings(configs[side]) for side in Side}, network)
        for of_side in self.settings.values():
            _begin_migrated(of_side)
        self.addresses = {settings.public_url: side for side, settings in self.settings.items()}
        self._transfer = transfer
        self._over = asyncio.Event()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="servers")
        self._thread.start()
        self._ready.result(_REAL_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_REAL_S)

    def kill(self, side: Side) -> None:
        """Return once a server is dead."""

        async def dead() -> None:
            self.die(side)
            await asyncio.wait([self._lives[side]])

        self._in_loop(dead())

    def bring_back(self, side: Side) -> None:
        """A new application over the same database and files. Raises: MoietyError, OSError"""
        self._in_loop(self._begin(side))

    def transport(
        self, record: Callable[[httpx.Request, httpx.Response], None] | None = None, sender: str = "somebody"
    ) -> InMemoryTransport:
        """A synchronous client's way to both servers; ``record`` sees every exchange."""
        return InMemoryTransport(_ToApps(self, sender), self.loop, self.clock, record)

    def made(self, side: Side) -> FastAPI:
        return create_app(
            self.settings[side],
            clock=self.clock_of(f"server {side.value}").now,
            to_peer=_ToApps(self, f"server {side.value}"),
            transfer=self._transfer,
        )

    async def respond(self, side: Side, request: httpx.Request, left: list[httpx.Response]) -> None:
        left.append(await _answer(self.apps[side], request))

    async def _begin(self, side: Side) -> None:
        self.start(side)
        await asyncio.sleep(0)  # one step, in which its lifespan begins or fails
        if self._lives[side].done():
            self.living.discard(side)
            self._lives[side].result()

    def _in_loop(self, doing: Coroutine[Any, Any, None]) -> None:
        done = asyncio.run_coroutine_threadsafe(doing, self.loop)
        with self.clock.waiting(done.done):
            done.result(_REAL_S)

    def _run(self) -> None:
        with self.clock.outside():
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._serve())
            except BaseException as error:
                self._ready.set_exception(error)
            finally:
                self.loop.close()

    async def _serve(self) -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        self.clock.count_work(lambda: limiter.borrowed_tokens > 0)
        try:
            for side in (Side.B, Side.A):
                await self._begin(side)
            self._ready.set_result(None)
            await self._over.wait()
        finally:
            await self.close()


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
        self._coming: set[Slowly] = set()

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
        if isinstance(answer.stream, Slowly):
            self._coming.add(answer.stream)
        if self._record is not None:
            self._record(request, answer)
        return answer

    def close(self) -> None:
        for done in tuple(self._under_way):
            done.cancel()
        for coming in self._coming:
            coming.given_up.set()
        self._clock.wake_all()


class ServersInMemory(RunningFederation):
    """Two applications with their databases and files in ``folder``, on a clock of their own; the first site asks.

    A context manager. ``apps`` are the applications, whose functions can be replaced in this process.
    """

    def __init__(self, folder: Path, sites: Sequence[str], network: Network | None = None) -> None:
        super().__init__(FederationSpec("attacked", sites[0], light_sites(sites)), folder)
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
