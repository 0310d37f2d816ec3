"""An event loop in which nothing runs at the same time: its clock jumps to the next deadline, threads' work is done
at once. So the order of events follows from what was drawn alone."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from harness.federation.memory.clocks import START_S
from protocol.sharing import Side

T = TypeVar("T")
SIDE: Final[ContextVar[Side | None]] = ContextVar("side", default=None)
"""Whose work a task does: it dies with that server."""


class StillClock:
    """See ``host.clock.Clock``."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> float:
        return START_S + self.passed_s

    def monotonic(self) -> float:
        return self.passed_s

    def wait(self, event: threading.Event, at_most_s: float) -> bool:
        raise AssertionError("one event loop has no threads that wait")

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], at_most_s: float) -> bool:
        raise AssertionError("one event loop has no threads that wait")


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: StillClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits, and for nothing that will come")
        self._clock.passed_s += max(0.0, timeout)
        return []


class StillLoop(asyncio.SelectorEventLoop):
    """``dies`` cancels what a server was doing."""

    def __init__(self, clock: StillClock) -> None:
        super().__init__(_Selector(clock))
        self._still = clock
        self._of: dict[Side, set[asyncio.Task[Any]]] = {side: set() for side in Side}
        self.set_task_factory(self._made)

    def time(self) -> float:
        return self._still.monotonic()

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: object) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def dies(self, side: Side) -> None:
        for task in sorted(self._of[side], key=lambda one: one.get_name()):
            task.cancel()

    def _made(self, loop: asyncio.AbstractEventLoop, coro: Any, context: Any = None) -> asyncio.Task[Any]:  # noqa: ANN401
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
        side = SIDE.get() if context is None else context.get(SIDE)
        if side is not None:
            self._of[side].add(task)
            task.add_done_callback(self._of[side].discard)
        return task


async def at_once(func: Callable[..., T], *args: object, **_: object) -> T:
    """In place of anyio's threads."""
    return func(*args)
