"""Clocks: one that is told the time, and one that goes on by itself whenever everybody waits."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from host.clock import Clock, SystemClock
from protocol.sharing import Side

T = TypeVar("T")
START_S: Final = 1_800_000_000.0
_ANYIO: Final = "AnyIO worker"
_LOOK_AGAIN_S: Final = 0.002
_STUCK_AFTER_S: Final = 60.0
SIDE: Final[ContextVar[Side | None]] = ContextVar("side", default=None)
"""The server whose work a task does: the task dies with it."""


def work_of(side: Side | None) -> Context:
    """Return a context for the work of a server, or of nobody who dies."""
    context = copy_context()
    context.run(SIDE.set, side)
    return context


class ToldClock(SystemClock):
    """Says what ``read`` says; whoever waits waits on the machine's clock."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    def now(self) -> float:
        return self._read()


@dataclass(eq=False)
class _Waiting:
    """A thread that goes on once ``holds``, or at its deadline; whoever changes something notifies ``changed``."""

    changed: threading.Condition
    holds: Callable[[], bool]
    until_s: float


class VirtualClock:
    """Time that stands still while anybody works, and jumps to the next deadline when everybody waits.

    Everybody: every thread of the process but those that were there before, the test's own included, and the one event
    loop. A thread waits while it is in ``wait``, ``wait_for`` or ``waiting``; any other one works, also one that joins
    others or sleeps.
    """

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._begun = 0
        self._woken = 0
        self._outside = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        self._work: list[Callable[[], bool]] = []
        self._call_loop: Callable[[], None] = lambda: None

    def now(self) -> float:
        return START_S + self._passed_s

    def monotonic(self) -> float:
        return self._passed_s

    def wait(self, event: threading.Event, at_most_s: float) -> bool:
        """Whoever sets the event wakes everybody: see ``Stop``."""
        changed = threading.Condition()
        with changed:
            return self.wait_for(changed, event.is_set, at_most_s)

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], at_most_s: float) -> bool:
        until_s = self._passed_s + at_most_s
        with self._entered(_Waiting(changed, holds, until_s)):
            while not holds() and self._passed_s < until_s:
                changed.wait()
        return holds()

    @contextmanager
    def waiting(self, holds: Callable[[], bool]) -> Iterator[None]:
        """This thread waits by its own means, until ``holds``."""
        with self._entered(_Waiting(threading.Condition(), holds, float("inf"))):
            yield

    def sleep(self, seconds: float) -> None:
        """As ``time.sleep``, on this clock; ends when everybody is woken: an agent that stops does not sleep on."""
        changed, woken = threading.Condition(), self._woken
        with changed:
            self.wait_for(changed, lambda: self._woken != woken, seconds)

    def jump(self, seconds: float) -> None:
        """So much time passes at once, as on a machine that slept: what was due meanwhile is done once."""
        with self._lock:
            self._passed_s += seconds
        self.wake_all()

    def wake_all(self) -> None:
        """Everybody looks again at what they wait for."""
        with self._lock:
            self._woken += 1
            waiting = tuple(self._waiting.values())
        for one in waiting:
            with one.changed:
                one.changed.notify_all()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """This thread does not count: it is the event loop, which makes the time pass."""
        own = threading.get_ident()
        self._outside.add(own)
        try:
            yield
        finally:
            self._outside.discard(own)

    @contextmanager
    def _entered(self, waiting: _Waiting) -> Iterator[None]:
        own = threading.get_ident()
        with self._lock:
            self._begun += 1
            self._waiting[own] = waiting
            last = len(_not_anyios()) <= len(self._waiting) + len(self._outside)
        if last:
            self._call_loop()
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[own]

    # --- for the event loop ---

    def count_work(self, working: Callable[[], bool]) -> None:
        """anyio keeps its threads while they have nothing to do: it says itself whether they work."""
        self._work.append(working)

    def when_quiet(self, call_loop: Callable[[], None]) -> None:
        """Call this when the last working thread may have begun to wait; the loop also looks again by itself."""
        self._call_loop = call_loop

    def nobody_else(self) -> bool:
        """Return whether no thread takes part but the event loop's."""
        return not {thread.ident for thread in threading.enumerate()} - self._outside

    def everybody_waits(self) -> bool:
        """Asked before the loop looks once more for what was handed to it: who waits has handed over all it had."""
        if not self._waiting and self.nobody_else():
            return True
        with self._lock:
            begun, waiting = self._begun, dict(self._waiting)
        if _not_anyios() - self._outside - waiting.keys() or any(working() for working in self._work):
            return False
        if any(one.holds() or one.until_s <= self._passed_s for one in waiting.values()):
            return False
        with self._lock:  # or somebody woke another one and went to wait, while this looked at them in turn
            return begun == self._begun and waiting.keys() == self._waiting.keys()

    def pass_time(self, at_most_s: float | None) -> bool:
        """To the next deadline, at most so far; False where there is none."""
        loops_s = float("inf") if at_most_s is None else self._passed_s + at_most_s
        with self._lock:
            waiting = tuple(self._waiting.values())
        next_s = min([loops_s, *(one.until_s for one in waiting)])
        if next_s == float("inf"):
            return False
        self._passed_s = max(self._passed_s, next_s)
        for one in waiting:
            if one.until_s <= self._passed_s:
                with one.changed:
                    one.changed.notify_all()
        return True


def _not_anyios() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate() if not thread.name.startswith(_ANYIO)}


class SteppedClock:
    """Another clock that is off by ``off_s``, which may change at any moment; waiting takes as long as on that one."""

    def __init__(self, inner: Clock, off_s: Callable[[], float]) -> None:
        self._inner, self._off_s = inner, off_s
        self.monotonic, self.wait, self.wait_for = inner.monotonic, inner.wait, inner.wait_for

    def now(self) -> float:
        return self._inner.now() + self._off_s()


class Stop(threading.Event):
    """An event that ends waits on a virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def set(self) -> None:
        super().set()
        self._clock.wake_all()


class _Selector(selectors.DefaultSelector):
    """Lets time pass where the event loop would sleep."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._called, self._calls = os.pipe()
        self._closing, self._open = threading.Lock(), True
        os.set_blocking(self._called, False)
        os.set_blocking(self._calls, False)
        self.register(self._called, selectors.EVENT_READ)
        clock.when_quiet(self._call)

    def close(self) -> None:
        self._clock.when_quiet(lambda: None)
        super().close()
        os.close(self._called)
        with self._closing:
            self._open = False
            os.close(self._calls)

    def _call(self) -> None:
        """A thread may hold this function while the loop closes: the descriptor's number may be another file's then."""
        with self._closing, suppress(BlockingIOError, BrokenPipeError):  # full: the loop has calls enough
            if self._open:
                os.write(self._calls, b"0")

    def _look(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        found = [one for one in super().select(timeout) if one[0].fd != self._called]
        with suppress(BlockingIOError):
            os.read(self._called, 4096)
        return found

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []  # callbacks are ready, those of other threads too
        found = self._look(0)
        quiet_since_s = time.monotonic()
        while not found:
            quiet = self._clock.everybody_waits()
            found = self._look(0)
            if found or (quiet and self._clock.pass_time(timeout)):
                break
            if timeout is None and self._clock.nobody_else():
                raise RuntimeError("the event loop waits, and nothing will ever come")
            found = self._look(_LOOK_AGAIN_S)
            if time.monotonic() > quiet_since_s + _STUCK_AFTER_S:
                faulthandler.dump_traceback(2)  # to the file of standard error: pytest has taken sys.stderr
                quiet_since_s = time.monotonic()
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock; what it hands to threads is done at once.

    Where no other thread takes part, the order of events follows from what the tasks do alone.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_Selector(clock))
        self._virtual = clock
        self._of: dict[Side, set[asyncio.Task[Any]]] = {side: set() for side in Side}
        self.set_task_factory(self._made)

    def time(self) -> float:
        return self._virtual.monotonic()

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: object) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except BaseException as error:
            done.set_exception(error)
        return done

    def dies(self, side: Side) -> None:
        """Cancel every task begun in a context in which ``SIDE`` names this server."""
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
    """Call in the event loop what anyio would hand to a thread."""
    return func(*args)
