"""A process that waits for its turn to drive: it begins once, and ends when the lease is another's or may be."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from protocol.errors import Unavailable
from protocol.sharing import Side
from servers.background import processes
from servers.background.duties import Duties as RealDuties

LEASE_S = 10.0


class Database:
    """The lease, as others leave it: answers to each question in turn, the last one for ever."""

    def __init__(self, taken: list[int | Exception | None], renewed: list[bool | Exception]) -> None:
        self.asked: list[str] = []
        self._taken = itertools.chain(taken, itertools.repeat(taken[-1]))
        self._renewed = itertools.chain(renewed, itertools.repeat(renewed[-1]))

    def take_lease(self, seconds: float) -> int | None:
        self.asked.append("take")
        found = next(self._taken)
        if isinstance(found, Exception):
            raise found
        return found

    def renew_lease(self, seconds: float) -> bool:
        self.asked.append("renew")
        found = next(self._renewed)
        if isinstance(found, Exception):
            raise found
        return found

    def let_go_of_lease(self) -> None:
        self.asked.append("let go")

    def files(self) -> set[str]:
        return set()


class Server:
    """The parts of a server that the lease needs; ``drove`` are the numbers of the starts that it drove as."""

    def __init__(self, store: Database, fails_at: str = "") -> None:
        self.store = store
        self.fails_at = fails_at
        self.side = Side.A
        self.settings = SimpleNamespace(limits=SimpleNamespace(lease_s=LEASE_S))
        self.audit = SimpleNamespace(add=lambda *_: self.reach("audit"))
        self.files = SimpleNamespace(written=dict, delete=lambda _names: None)
        self.shares = SimpleNamespace(strays=lambda _named: set())
        self.drives = False
        self.drove: list[int] = []

    def drive(self, boot: int) -> None:
        self.drives = True
        self.drove.append(boot)
        self.reach("drive")

    def reach(self, place: str) -> None:
        if place == self.fails_at:
            raise OSError(28, f"no space left at {place}")


class Duties:
    def __init__(self, server: Server) -> None:
        self.said: list[tuple[str, bool]] = []
        self._server = server

    def begin(self) -> None:
        self.said.append(("begin", self._server.drives))
        self._server.reach("begin")

    async def end(self) -> None:
        self.said.append(("end", self._server.drives))
        self._server.reach("end")


@pytest.fixture(autouse=True)
def time_of_a_test(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Whoever sleeps is there later at once, so that a busy machine loses no lease. -> its one entry is the time"""
    now_s = [0.0]

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds
        await asyncio.sleep(0)

    loop = SimpleNamespace(time=lambda: now_s[0])
    there = SimpleNamespace(sleep=sleep, get_running_loop=lambda: loop, create_task=asyncio.create_task)
    monkeypatch.setattr(processes, "asyncio", there)
    monkeypatch.setattr(processes, "_FILES_LOOKED_AT_EVERY_S", 0.0)  # who sweeps files moves no clock here
    return now_s


def run(
    store: Database, within: Callable[[asyncio.Task[None]], Any] | None = None, fails_at: str = ""
) -> tuple[Server, Duties, list[str]]:
    server, stopped = Server(store, fails_at), list[str]()
    duties = Duties(server)
    of_a_test: Any = server
    its: Any = duties

    async def all_of_it() -> None:
        task = asyncio.create_task(processes.drive_in_turn(of_a_test, its, lambda: stopped.append("stop")))
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
def test_it_ends_when_the_database_is_away_for_as_long_as_the_lease_lasts(renewed: list[bool | Exception]) -> None:
    store = Database([1], renewed)
    _, duties, stopped = run(store)
    assert [said for said, _ in duties.said] == ["begin", "end"]
    assert stopped == ["stop"]
    assert store.asked.count("renew") >= 3, "more than one sign may be lost"


def test_a_disk_that_is_slow_before_it_drives_makes_the_lease_no_longer(
    monkeypatch: pytest.MonkeyPatch, time_of_a_test: list[float]
) -> None:
    """The lease runs from when it was asked for: with a day gone, another one drives."""
    drive = Server.drive

    def slowly(self: Server, boot: int) -> None:
        drive(self, boot)
        time_of_a_test[0] += 86400.0

    monkeypatch.setattr(Server, "drive", slowly)
    store = Database([1], [True, False])
    _, duties, stopped = run(store)
    assert [said for said, _ in duties.said] == ["begin", "end"]
    assert stopped == ["stop"]
    assert store.asked == ["take", "let go"]


def test_a_database_that_is_away_for_a_moment_changes_nothing() -> None:
    store = Database([1], [Unavailable("away"), True, Unavailable("away"), True, False])
    run(store)
    assert store.asked.count("renew") == 5


@pytest.mark.parametrize("fails_at", ["", "end"])
def test_a_process_that_is_stopped_lets_go_so_that_the_other_need_not_wait(fails_at: str) -> None:
    store = Database([1], [True])

    async def stop_while_it_drives(task: asyncio.Task[None]) -> None:
        while "renew" not in store.asked:
            await asyncio.sleep(0)
        task.cancel()

    server, duties, stopped = run(store, stop_while_it_drives, fails_at=fails_at)
    assert store.asked[-1] == "let go"
    assert [said for said, _ in duties.said] == ["begin", "end"]
    assert not server.drives
    assert stopped == [] or fails_at


@pytest.mark.parametrize("fails_at", ["drive", "audit", "begin", "end"])
def test_whatever_fails_where_it_drives_another_can_and_the_process_ends(fails_at: str) -> None:
    """A disk that is full at the line of the audit log, a database that is gone just after the lease was taken."""
    store = Database([7], [True, False])
    with capture_logs() as logs:
        server, duties, stopped = run(store, fails_at=fails_at)
    assert not server.drives, "a proxy is sent to whoever drives now"
    assert stopped == ["stop"]
    assert store.asked[-1] == "let go", "the other need not wait"
    assert duties.said[-1] == ("end", False)
    (failed,) = (line for line in logs if line["event"] == "lease_failed")
    assert failed["start"] == 7


def test_an_error_that_nobody_expected_of_the_lease_ends_the_process() -> None:
    server, duties, stopped = run(Database([7], [True, RuntimeError("what is this?")]))
    assert not server.drives
    assert duties.said[-1] == ("end", False)
    assert stopped == ["stop"]


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("what is this?")])
def test_who_cannot_take_the_lease_now_stands_by_and_says_so(error: Exception) -> None:
    with capture_logs() as logs:
        server, _, stopped = run(Database([error, None, error, 7], [False]))
    assert server.drove == [7]
    assert stopped == ["stop"]
    assert [line["event"] for line in logs].count("lease_not_taken") == 2


def test_a_task_that_had_failed_keeps_none_of_the_others_from_ending() -> None:
    closed = list[str]()

    async def close() -> None:
        closed.append("client")

    async def fails() -> None:
        raise RuntimeError("what is this?")

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("task")

    async def scenario() -> None:
        none: Any = None
        duties = RealDuties(none, none, None, none)
        tasks: Any = [asyncio.create_task(one()) for one in (fails, goes_on)]
        client: Any = SimpleNamespace(close=close)
        duties._tasks, duties._client = tasks, client
        await asyncio.sleep(0)
        await duties.end()
        assert all(task.done() for task in tasks)
        await duties.end()

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert closed == ["task", "client"]
    assert [line["event"] for line in logs] == ["task_failed"]
