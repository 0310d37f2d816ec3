"""A network between agents and servers in one process: what becomes of every request and of the answer to it.

It knows what a network knows: who asks whom, and how many requests that pair has exchanged before.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import httpx

from harness.federation.clocks import work_of
from host.clock import Clock
from protocol.channel.signing import MAX_AGE_S
from protocol.sharing import Side

T = TypeVar("T")
_OK: Final = 200
_PIECES: Final = 16
Deliver = Callable[[httpx.Request], Awaitable[httpx.Response]]


@dataclass(frozen=True)
class Passing:
    """One request: the ``number``-th, from 0, that ``sender`` (a site, or "server a") sends to server ``to``.

    ``alike``: how many of the same length came before; a request that is sent again is as long as it was.
    ``kind``: what it is for, as its sender names it, and ``of_kind`` how many of that kind came before: how often a
    site asks for news depends on the threads of the day, which contribution is its first does not.
    """

    sender: str
    to: Side
    number: int
    length_bytes: int
    alike: int
    kind: str = ""
    of_kind: int = 0


@dataclass(frozen=True)
class Fate:
    """The fate of a request and of its answer; none, unless said otherwise. Times are on the clock of both.

    ``held_s``: it is on its way so long, also when whoever sent it has given up. ``arrives``: else the sender hears
    at once that the connection failed. ``again_after_s``: a copy arrives so much later. ``cut_to``: so much of its
    body arrives (share of its length), stated as all of it. ``breaks_off``: it is stated as it is, and the
    sender's half of the connection ends there.
    ``answer_held_s``, ``answer_arrives`` and ``answer_cut_to`` are the same of the answer, whose head arrives whole.
    ``silent``: the connection stays open and nothing ever comes. ``pause_s``: the answer comes in pieces, so long
    apart.
    """

    held_s: float = 0.0
    arrives: bool = True
    again_after_s: float | None = None
    cut_to: float = 1.0
    breaks_off: bool = False
    answer_held_s: float = 0.0
    answer_arrives: bool = True
    answer_cut_to: float = 1.0
    silent: bool = False
    pause_s: float = 0.0


class Network(Protocol):
    """Decides, and is told what a server answers, whether anybody waits for it or not.

    ``after_s``: how long the request, or its copy, was on its way.
    """

    def fate(self, passing: Passing) -> Fate: ...

    def arrived(self, passing: Passing, after_s: float, answer: httpx.Response) -> None: ...


class Judge:
    """Counts requests that a server carried out more than once, or long after they were sent.

    A server that opens a request answers in an envelope, with status 200 whatever the envelope says.
    """

    def __init__(self) -> None:
        self.late_taken = 0
        self._taken: Counter[Passing] = Counter()

    def arrived(self, passing: Passing, after_s: float, answer: httpx.Response) -> None:
        if answer.status_code == _OK:
            self._taken[passing] += 1
            # Signatures count whole seconds: a request sent at 0.9 s is still 60 s old when it arrives at 60.99 s.
            self.late_taken += after_s >= MAX_AGE_S + 1

    @property
    def taken_twice(self) -> int:
        return sum(times > 1 for times in self._taken.values())


class Untroubled:
    """Everything arrives, once, at once."""

    def fate(self, passing: Passing) -> Fate:
        return Fate()

    def arrived(self, passing: Passing, after_s: float, answer: httpx.Response) -> None:
        """Nothing to remember."""


class Slowly(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in pieces with pauses between; whoever has waited longer than ``patience_s`` gives up."""

    def __init__(self, content: bytes, pause_s: float, patience_s: float, clock: Clock) -> None:
        self.content = content
        self.given_up = threading.Event()
        self._pause_s, self._patience_s, self._clock = pause_s, patience_s, clock

    def _pieces(self) -> list[bytes]:
        size = -(-len(self.content) // _PIECES) or 1
        return [self.content[start : start + size] for start in range(0, len(self.content), size)]

    def _waits_s(self) -> float:
        if self._pause_s > self._patience_s:
            raise httpx.ReadTimeout("the rest of the answer did not come")
        return self._pause_s

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces():
            if self._clock.wait(self.given_up, self._waits_s()):
                raise httpx.ReadError("closed")
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces():
            await asyncio.sleep(self._waits_s())
            yield piece


class Carrier:
    """Carries requests as the network decides. All in the servers' event loop, whose time is ``clock``'s."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self._network, self._clock = network, clock
        self._under_way: set[asyncio.Task[Any]] = set()
        self._sent: dict[tuple[str, Side], list[int]] = {}
        self._kinds: Counter[tuple[str, Side, str]] = Counter()

    async def carry(self, request: httpx.Request, sender: str, to: Side, deliver: Deliver) -> httpx.Response:
        """Raises: httpx.TransportError, what the sender would see of it"""
        sent, length = self._sent.setdefault((sender, to), []), len(await request.aread())
        kind = str(request.extensions.get("purpose", ""))
        of_kind = self._kinds[sender, to, kind]
        passing = Passing(sender, to, len(sent), length, sent.count(length), kind, of_kind)
        sent.append(length)
        self._kinds[sender, to, kind] += 1
        fate = self._network.fate(passing)
        patience_s = request.extensions.get("timeout", {}).get("read") or float("inf")
        try:
            async with asyncio.timeout(None if patience_s == float("inf") else patience_s):
                answer = await self._answered(request, passing, fate, deliver)
        except TimeoutError:
            raise httpx.ReadTimeout("no answer came", request=request) from None
        return self._as_it_arrives(answer, fate, patience_s)

    async def close(self) -> None:
        tasks = tuple(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answered(self, request: httpx.Request, passing: Passing, fate: Fate, deliver: Deliver) -> httpx.Response:
        if not fate.arrives:
            raise httpx.ConnectError("the request was lost", request=request)
        if fate.again_after_s is not None:
            self._started(self._copy(request, passing, fate.again_after_s, deliver))
        delivered: asyncio.Task[httpx.Response] = self._started(self._delivered(request, passing, fate, deliver))
        answer = await asyncio.shield(delivered)  # a server does not stop because its caller has gone
        if fate.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(fate.answer_held_s)
        if not fate.answer_arrives:
            raise httpx.ReadError("the answer was lost", request=request)
        return answer

    async def _delivered(
        self, request: httpx.Request, passing: Passing, fate: Fate, deliver: Deliver
    ) -> httpx.Response:
        answer = await _delivered(request, fate, deliver)
        self._network.arrived(passing, fate.held_s, answer)
        return answer

    async def _copy(self, request: httpx.Request, passing: Passing, after_s: float, deliver: Deliver) -> None:
        await asyncio.sleep(after_s)
        self._network.arrived(passing, after_s, await deliver(request))

    def _started(self, coming: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coming, context=work_of(None))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # of what came when nobody waited for it any more, nobody hears

    def _as_it_arrives(self, answer: httpx.Response, fate: Fate, patience_s: float) -> httpx.Response:
        if fate.answer_cut_to == 1 and not fate.pause_s:
            return answer
        content = answer.content[: int(len(answer.content) * fate.answer_cut_to)]
        headers = [*_but_length(answer.headers), ("content-length", str(len(content)))]
        if not fate.pause_s:
            return httpx.Response(answer.status_code, headers=headers, content=content)
        return httpx.Response(
            answer.status_code, headers=headers, stream=Slowly(content, fate.pause_s, patience_s, self._clock)
        )


async def _delivered(request: httpx.Request, fate: Fate, deliver: Deliver) -> httpx.Response:
    await asyncio.sleep(fate.held_s)
    if fate.cut_to == 1 and not fate.breaks_off:
        return await deliver(request)
    content = await request.aread()
    arrives = content[: int(len(content) * fate.cut_to)]
    stated = len(content if fate.breaks_off else arrives)
    cut = httpx.Request(
        request.method,
        request.url,
        headers=[*_but_length(request.headers), ("content-length", str(stated))],
        content=arrives,
        extensions={**request.extensions, "breaks_off": fate.breaks_off},
    )
    return await deliver(cut)


def _but_length(headers: httpx.Headers) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.multi_items() if name.lower() != "content-length"]
