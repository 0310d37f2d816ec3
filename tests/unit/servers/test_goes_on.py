"""What a server does beside requests goes on after an error that nobody expected, which is in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from servers import app
from servers.background import duties, processes
from servers.background.processes import Hearing

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
