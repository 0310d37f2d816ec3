"""A process that waits for its turn to drive: it begins once, and ends when the lease is another's or may be."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.sharing import Side
from servers.driving import lease

LEASE_S = 10.0


class Database:
    """The lease, as others leave it: answers to each question in turn, the last one for ever."""

    def __init__(self, taken: list[int | None], renewed: list[bool | Unavailable]) -> None:
        self.asked: list[str] = []
        self._taken = itertools.chain(taken, itertools.repeat(taken[-1]))
        self._renewed = itertools.chain(renewed, itertools.repeat(renewed[-1]))

    def take_lease(self, seconds: float) -> int | None:
        self.asked.append("take")
        return next(self._taken)

    def renew_lease(self, seconds: float) -> bool:
        self.asked.append("renew")
        found = next(self._renewed)
        if isinstance(found, Unavailable):
            raise found
        return found

    def let_go_of_lease(self) -> None:
        self.asked.append("let go")

    def files(self) -> set[str]:
        return set()


class Server:
    """What the lease needs of one; ``drove`` are the numbers of the starts that it drove as."""

    def __init__(self, store: Database) -> None:
        self.store = store
        self.side = Side.A
        self.settings = SimpleNamespace(limits=SimpleNamespace(lease_s=LEASE_S))
        self.audit = SimpleNamespace(add=lambda *_: None)
        self.files = SimpleNamespace(written=dict, delete=lambda _names: None)
        self.shards = None
        self.drives = False
        self.drove: list[int] = []

    def drive(self, boot: int) -> None:
        self.drives = True
        self.drove.append(boot)


class Duties:
    def __init__(self, server: Server) -> None:
        self.said: list[tuple[str, bool]] = []
        self._server = server

    def begin(self) -> None:
        self.said.append(("begin", self._server.drives))

    async def end(self) -> None:
        self.said.append(("end", self._server.drives))


@pytest.fixture(autouse=True)
def time_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sleeps is there later at once, so that a busy machine loses no lease."""
    now_s = [0.0]

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds
        await asyncio.sleep(0)

    loop = SimpleNamespace(time=lambda: now_s[0])
    there = SimpleNamespace(sleep=sleep, get_running_loop=lambda: loop, create_task=asyncio.create_task)
    monkeypatch.setattr(lease, "asyncio", there)


def run(store: Database, within: Callable[[asyncio.Task[None]], Any] | None = None) -> tuple[Server, Duties, list[str]]:
    server, stopped = Server(store), list[str]()
    duties = Duties(server)
    of_a_test: Any = server
    its: Any = duties

    async def all_of_it() -> None:
        task = asyncio.create_task(lease.drive_in_turn(of_a_test, its, lambda: stopped.append("stop")))
        if within is not None:
            await within(task)
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 20.0)

    asyncio.run(all_of_it())
    return server, duties, stopped


def test_it_waits_drives_and_ends_when_another_has_taken_the_lease() -> None:
    store = Database([None, None, 7], [True, True, False])
    server, duties, stopped = run(store)
    assert server.drove == [7]
    assert duties.said == [("begin", True), ("end", False)], "it does not drive while it ends"
    assert stopped == ["stop"]
    assert store.asked == ["take"] * 3 + ["renew"] * 3 + ["let go"]


@pytest.mark.parametrize("renewed", [[Unavailable("away")], [True, Unavailable("away")]])
def test_it_ends_when_the_database_is_away_for_as_long_as_the_lease_lasts(renewed: list[bool | Unavailable]) -> None:
    store = Database([1], renewed)
    _, duties, stopped = run(store)
    assert [said for said, _ in duties.said] == ["begin", "end"]
    assert stopped == ["stop"]
    assert store.asked.count("renew") >= 3, "more than one sign may be lost"


def test_a_database_that_is_away_for_a_moment_changes_nothing() -> None:
    store = Database([1], [Unavailable("away"), True, Unavailable("away"), True, False])
    run(store)
    assert store.asked.count("renew") == 5


def test_a_process_that_is_stopped_lets_go_so_that_the_other_need_not_wait() -> None:
    store = Database([1], [True])

    async def stop_while_it_drives(task: asyncio.Task[None]) -> None:
        while "renew" not in store.asked:
            await asyncio.sleep(0)
        task.cancel()

    _, duties, stopped = run(store, stop_while_it_drives)
    assert store.asked[-1] == "let go"
    assert [said for said, _ in duties.said] == ["begin", "end"]
    assert stopped == []
