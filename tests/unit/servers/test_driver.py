"""Side A's tasks go on after an error of the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from servers import app
from servers.background import duties, processes
from servers.background.processes import Hearing
from servers.event_loop import Changes
from servers.monitoring import Metrics
from servers.rounds import side_a as driver_module
from servers.rounds.side_a import Driver

# --- driver -----------------------------------------------------------------------------------------------------------

DIGEST = "d" * 64
REACHED_WITHIN_S = 30.0  # far above the few milliseconds it takes; only a task that is gone waits that long


class FailingOnce:
    """A store with one open study whose method ``fails`` raises at its first call."""

    def __init__(self, fails: str) -> None:
        self._fails = fails
        self.failed = False
        self.ended = False

    def _call(self, name: str) -> None:
        if name == self._fails and not self.failed:
            self.failed = True
            raise OSError("database is locked")

    def studies(self) -> list[Any]:
        self._call("studies")
        return [self._record]

    def study(self, digest: str) -> Any:
        self._call("study")
        return self._record

    def current_round(self, digest: str) -> None:
        self._call("current_round")

    @property
    def _record(self) -> Any:
        return SimpleNamespace(digest=DIGEST, name="study", goes_on=not self.ended)


@dataclass(eq=False)
class Reached(Driver):
    """Says when the study is driven, in place of the work."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def _demand(self, study: Any, last: Any) -> list[tuple[int, ...]]:
        self.reached.set()
        return []


class NoPool:
    session_open = True

    async def check_session(self) -> None:
        return None

    async def stock(self, wanted: list[tuple[int, ...]]) -> None:
        return None


class Peer:
    async def compare(self) -> None:
        return None


def idle_driver(store: FailingOnce, peer: Peer | None = None) -> Reached:
    history = SimpleNamespace(require_current=lambda: None)
    server = SimpleNamespace(
        store=store,
        changes=Changes(),
        metrics=Metrics(),
        clock=time.monotonic,
        history=history,
    )
    parts = [cast(Any, part) for part in (server, peer or Peer(), NoPool(), None, None)]
    return Reached(*parts)


async def drive_until_reached(store: FailingOnce) -> None:
    one = idle_driver(store)
    running = asyncio.create_task(one.run())
    await asyncio.wait_for(one.reached.wait(), REACHED_WITHIN_S)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("fails", ["studies", "study", "current_round"])
def test_a_database_error_does_not_end_a_studys_task(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_LAST_RETRY_S", 0.01)
    store = FailingOnce(fails)
    with capture_logs() as logged:
        asyncio.run(drive_until_reached(store))
    assert store.failed
    assert [entry["event"] for entry in logged] == ["driver_failed"]


def test_a_finished_task_is_started_again() -> None:
    async def revived() -> bool:
        one = idle_driver(FailingOnce("nothing"))
        finished = asyncio.create_task(asyncio.sleep(0))
        await finished
        one._tasks[DIGEST] = finished
        one._start_tasks()
        fresh = one._tasks[DIGEST]
        fresh.cancel()
        return fresh is not finished

    assert asyncio.run(revived())


def test_the_last_round_of_a_study_that_ends_while_the_peer_is_told_is_over_too() -> None:
    """Its marks would stay for as long as the server runs otherwise."""
    store = FailingOnce("nothing")

    class Ends(Peer):
        async def compare(self) -> None:
            store.ended = True

    one = idle_driver(store, Ends())
    one._phases.mark(DIGEST, "announced")
    asyncio.run(asyncio.wait_for(one._drive(DIGEST), REACHED_WITHIN_S))
    assert not one._phases._marks_s


# --- goes on ----------------------------------------------------------------------------------------------------------

Loop = Callable[[Any], Coroutine[Any, Any, None]]
WITHIN_S = 20.0


class Failing:
    """Whatever is asked of it fails twice, and then stops at the third time whoever waits for it."""

    def __init__(self) -> None:
        self.asked = 0
        self.third = asyncio.Event()

    def __call__(self, *_: object) -> Any:
        self.asked += 1
        if self.asked > 2:
            self.third.set()
        raise OSError(5, "Input/output error")


def of_a_test(fails: Failing, *, beside: object) -> Any:
    """A server of which every question fails."""
    store = SimpleNamespace(
        beside=beside, studies=fails, study_digests=fails, purge_nonces=fails, listen=lambda _heard, over: over.wait()
    )
    history = SimpleNamespace(count=fails, look=fails)
    limits = SimpleNamespace(requester_silent_s=0.0)
    return SimpleNamespace(
        store=store, history=history, drives=False, clock=lambda: 0.0, settings=SimpleNamespace(limits=limits)
    )


@pytest.mark.parametrize(
    ("loop", "said", "beside"),
    [
        (duties._watch_database, "database_not_watched", None),
        (duties._purge, "nonces_not_purged", None),
        (duties.watch_requesters, "silence_not_seen", None),
        (app._sweep_uploads, "uploads_not_swept", "one of several"),
        (lambda server: Hearing(server).keep(), "news_not_looked_for", "one of several"),
    ],
)
def test_it_goes_on(loop: Loop, said: str, beside: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (duties, "_DATABASE_LOOKED_AT_EVERY_S"),
        (duties, "NONCES_KEPT_S"),
        (processes, "_NEWS_LOOKED_AT_EVERY_S"),
        (app, "_UPLOADS_LOOKED_AT_EVERY_S"),
    ):
        monkeypatch.setattr(module, name, 0.001)

    async def scenario() -> None:
        fails = Failing()
        task = asyncio.create_task(loop(of_a_test(fails, beside=beside)))
        third = asyncio.create_task(fails.third.wait())
        await asyncio.wait((task, third), timeout=WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        assert third.done(), "it has come to an end"
        await duties.end_all([task])

    with capture_logs() as logs:
        asyncio.run(scenario())
    failed = [line for line in logs if line["event"] == said]
    assert len(failed) >= 2
    assert all(line["exc_info"] for line in failed)
    assert {line["event"] for line in logs} == {said}
