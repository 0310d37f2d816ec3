"""A PostgreSQL that takes no changes for a while, as a replica before it is promoted: it says so, and then goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url, text
from structlog.testing import capture_logs

from protocol.errors import RolledBack, Unavailable
from servers.background import duties, processes
from servers.background.processes import Hearing
from servers.event_loop import Changes
from servers.identity.history import OwnHistory
from servers.store.processes import Beside
from servers.store.records import RoundRecord
from servers.store.sql import SqlStore
from tests.contract.records import KEY, RECORD, ROUND
from tests.kit.postgres import Cluster, InPostgreSQL, running_cluster
from tests.kit.present import present

WITHIN_S = 30.0
LEASE_S = 30.0
EVERY_S = 0.02


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "_DATABASE_LOOKED_AT_EVERY_S", EVERY_S)
    monkeypatch.setattr(processes, "_NEWS_LOOKED_AT_EVERY_S", EVERY_S)


@pytest.fixture
def url(on_postgresql: str) -> str:
    return on_postgresql


@pytest.fixture
def driver(url: str) -> Iterator[SqlStore]:
    with closing(driving(url)) as store:
        yield store


def driving(url: str) -> SqlStore:
    store = SqlStore(url, lambda _: None, beside=Beside("driver", "one"))
    assert store.take_lease(LEASE_S) == 1
    store.add_study(RECORD)
    store.add_round(ROUND)
    return store


class Watched(OwnHistory):
    """Counts the looks that were answered and those that were refused."""

    answered = 0
    refused = 0

    def count(self) -> int:
        try:
            found = super().count()
        except Unavailable:
            self.refused += 1
            raise
        self.answered += 1
        return found


def test_nothing_is_stored_and_whoever_asks_is_told_to_try_again(cluster: Cluster, url: str, driver: SqlStore) -> None:
    cluster.take_changes(url, False)
    with suppress(Unavailable):
        driver.ready()  # the connection that was cut off
    for ask in (
        lambda: driver.change_round(KEY, lambda record: record),
        lambda: driver.remember_nonce("site-a", "n" * 16, 100.0),
        lambda: driver.renew_lease(LEASE_S),
        lambda: driver.purge_nonces(100.0),
        driver.let_go_of_lease,
    ):
        for _ in range(2):  # each part of the store has a connection of its own that was cut off
            with pytest.raises(Unavailable):
                ask()
    with pytest.raises(Unavailable, match="takes no changes, like a replica that was not promoted"):
        driver.change_round(KEY, lambda record: record)
    cluster.take_changes(url, True)
    with suppress(Unavailable):
        driver.ready()
    assert driver.renew_lease(LEASE_S)
    assert driver.round(KEY) == ROUND


def test_who_takes_over_waits_until_it_takes_changes(cluster: Cluster, url: str, driver: SqlStore) -> None:
    driver.let_go_of_lease()
    with closing(SqlStore(url, lambda _: None, beside=Beside("driver-2", "one"))) as next_one:
        cluster.take_changes(url, False)
        with pytest.raises(Unavailable, match="takes no changes"):
            next_one.take_lease(LEASE_S)
        cluster.take_changes(url, True)
        with suppress(Unavailable):
            next_one.ready()
        assert next_one.take_lease(LEASE_S) == 2


def test_what_stood_still_in_a_transaction_is_told_that_it_was_cut_off(
    cluster: Cluster, url: str, driver: SqlStore
) -> None:
    connected = "SELECT count(*) FROM pg_stat_activity WHERE datname = ?"

    def stand_still(record: RoundRecord) -> RoundRecord:
        """Stand still only from here on: earlier, a slow machine would be cut off too."""
        present(driver._connections._kept).execute(text("SET idle_in_transaction_session_timeout = '0.1s'"))
        deadline = time.monotonic() + WITHIN_S
        with InPostgreSQL(cluster.url("postgres")) as looking:
            while looking.execute(connected, (make_url(url).database,)).fetchone() != (0,):
                assert time.monotonic() < deadline, "it was not cut off"
                time.sleep(EVERY_S)
        return record

    with capture_logs() as logs, pytest.raises(Unavailable, match="does not answer"):
        driver.change_round(KEY, stand_still)
    assert [(line["event"], line["code"]) for line in logs] == [("database_failed", "25P03")]
    assert driver.round(KEY) == ROUND


def test_what_watches_the_database_goes_on_and_notices_that_an_older_one_took_its_place() -> None:
    with running_cluster() as cluster, ExitStack() as closed:
        url = cluster.migrated_database()
        store = closed.enter_context(closing(SqlStore(url, lambda _: None)))
        store.next_boot()
        store.add_study(RECORD)
        store.add_round(ROUND)
        history = Watched(store, "operator-a", 1)
        server: Any = SimpleNamespace(store=store, history=history)

        async def scenario() -> None:
            await until(lambda: history.answered > 0)
            cluster.fail_over_early(cluster.replica())
            refused = history.refused
            await until(lambda: history.refused > refused + 3)
            cluster.promote()
            answered = history.answered
            await until(lambda: history.answered > answered)
            assert history.current
            with InPostgreSQL(url) as older:
                older.execute("UPDATE history SET changes = changes - 1")
            await until(lambda: not history.current)

        beside(duties._watch_database(server), scenario)
        with pytest.raises(RolledBack):
            history.require_current()


def test_who_hears_of_other_processes_goes_on(
    cluster: Cluster, url: str, driver: SqlStore, request: pytest.FixtureRequest
) -> None:
    changes = Changes()
    upload = SqlStore(url, changes.notify, beside=Beside("upload", "one"))
    request.addfinalizer(upload.close)
    history = Watched(upload, "operator-a", 1, drives=False)
    server: Any = SimpleNamespace(store=upload, changes=changes, drives=False, history=history)

    async def scenario() -> None:
        await until(lambda: history.answered > 0)
        cluster.take_changes(url, False)
        await until(lambda: history.refused > 2)
        cluster.take_changes(url, True)
        seen = history.answered
        await until(lambda: history.answered > seen)
        told = changes.next(RECORD.digest)
        with suppress(Unavailable):
            driver.ready()
        driver.change_study(RECORD.digest, lambda study: study)
        await until(told.is_set)

    beside(Hearing(server).keep(), scenario)


def beside(watching: Coroutine[Any, Any, None], scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario, at whose end what goes on beside it still does."""

    async def both() -> None:
        tasks = [asyncio.create_task(one) for one in (watching, scenario())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        goes_on, over = not tasks[0].done(), tasks[1].done()
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert goes_on, f"it has come to an end: {found[0]!r}"
        assert over
        assert found[1] is None, repr(found[1])

    asyncio.run(both())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not true():
            await asyncio.sleep(EVERY_S)
