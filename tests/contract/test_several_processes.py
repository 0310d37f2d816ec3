"""Several processes of one server on one PostgreSQL: one drives, one decides at a time, all hear of what each does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.messages.control import RoundState
from servers.background.processes import Hearing
from servers.event_loop import Changes
from servers.identity.history import OwnHistory
from servers.store.processes import EVERYTHING, Beside, News, parse_news
from servers.store.records import RoundRecord
from servers.store.sql import SqlStore
from tests.contract.records import KEY, RECORD, ROUND, contribution

WITHIN_S = 20.0
LEASE_S = 30.0
STUDY = RECORD.digest


@pytest.fixture
def url(on_postgresql: str) -> str:
    return on_postgresql


@contextmanager
def opened(url: str, name: str, folder: str = "one", changes: Changes | None = None) -> Iterator[SqlStore]:
    told = changes or Changes()
    store = SqlStore(url, told.notify, on_held=told.notify_held, beside=Beside(name, folder))
    try:
        yield store
    finally:
        store.close()


@contextmanager
def driving(url: str, name: str = "driver") -> Iterator[SqlStore]:
    """The process that drives, with a study and its first round."""
    with opened(url, name) as store:
        assert store.take_lease(LEASE_S) == 1
        store.add_study(RECORD)
        store.add_round(ROUND)
        yield store


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_one_drives_until_its_lease_is_over_and_changes_nothing_after_it(url: str) -> None:
    with driving(url, "driver-1") as first, opened(url, "driver-2") as second:
        assert second.take_lease(LEASE_S) is None
        assert first.renew_lease(LEASE_S)
        first.let_go_of_lease()
        assert second.take_lease(LEASE_S) == 2
        for late in (
            lambda: first.change_round(KEY, lambda r: replace(r, state=RoundState.LOCKED)),
            lambda: first.mark_used([]),
            lambda: first.change_study(STUDY, lambda s: replace(s, absent_in_a_row=1)),
            first.changes,
        ):
            with pytest.raises(Unavailable):
                late()
        assert not first.renew_lease(LEASE_S)
        assert second.renew_lease(LEASE_S)
        assert second.round(KEY) == ROUND


def test_whoever_takes_the_place_of_a_driver_that_stands_still_in_a_transaction_waits_for_nobody(url: str) -> None:
    with opened(url, "driver-1") as first, opened(url, "driver-2") as second:
        first.take_lease(0.0)
        first.add_study(RECORD)
        first.add_round(ROUND)

        def stand_still(record: RoundRecord) -> RoundRecord:
            with ThreadPoolExecutor(1) as other:
                assert other.submit(second.take_lease, LEASE_S).result(WITHIN_S) == 2
            return replace(record, state=RoundState.LOCKED)

        with pytest.raises(Unavailable):
            first.change_round(KEY, stand_still)
        assert second.round(KEY) == ROUND
        assert second.study(STUDY).cursor == 2  # the round's; what stood still is gone


def test_one_process_at_a_time_decides_about_a_study(url: str) -> None:
    with opened(url, "upload-1") as first, opened(url, "upload-2") as second:
        inside = list[str]()
        with first.alone(STUDY):
            pass  # this thread's connection is the one that is kept

        def decide() -> None:
            with second.alone(STUDY), second.alone(STUDY):
                inside.append("second")

        with ThreadPoolExecutor(1) as other:
            with first.alone(STUDY):
                waiting = other.submit(decide)
                with first.alone("another study"):
                    time.sleep(0.3)
                inside.append("first")
            waiting.result(WITHIN_S)
        assert inside == ["first", "second"]


def test_a_process_that_stands_still_while_it_decides_is_cut_off_and_writes_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servers.store.sql._LOCK_WITHIN_S", 0.2)
    with driving(url), opened(url, "upload-1") as first, opened(url, "upload-2") as second:

        def decide() -> None:
            for _ in range(20):
                try:
                    with second.alone(STUDY):
                        second.add_contribution(contribution("site-b"), RoundState.COLLECTING)
                except Unavailable:
                    continue
                return

        with first.alone(STUDY):
            with ThreadPoolExecutor(1) as other:
                other.submit(decide).result(WITHIN_S)
            for _ in range(3):  # on a connection made anew it would write without the lock
                with pytest.raises(Unavailable):
                    first.add_contribution(contribution("site-c"), RoundState.COLLECTING)
        assert second.contributors_of(KEY) == ("site-b",)
        with first.alone(STUDY):  # connected again
            assert first.contributors_of(KEY) == ("site-b",)


def test_uploads_go_where_the_driver_finds_them(url: str) -> None:
    with (
        opened(url, "driver") as driver,
        opened(url, "upload") as upload,
        opened(url, "lost", folder="another") as lost,
    ):
        with pytest.raises(Unavailable, match="data_dir"):
            upload.require_driver()
        driver.take_lease(LEASE_S)
        driver.add_study(RECORD)
        driver.add_round(ROUND)
        upload.require_driver()
        upload.add_contribution(contribution("site-b"), RoundState.COLLECTING)
        for asked in (
            lost.require_driver,
            lambda: lost.add_contribution(contribution("site-a"), RoundState.COLLECTING),
        ):
            with pytest.raises(Unavailable, match="data_dir"):
                asked()
        driver.let_go_of_lease()
        with pytest.raises(Unavailable, match="no process drives"):
            upload.require_driver()


def test_a_server_of_one_process_that_starts_ends_all_of_several(url: str) -> None:
    with driving(url) as driver, opened(url, "upload") as upload:
        alone = SqlStore(url, lambda _: None)
        alone.next_boot()
        for late in (
            lambda: driver.change_round(KEY, lambda r: r),
            lambda: upload.add_contribution(contribution("site-b"), RoundState.COLLECTING),
        ):
            with pytest.raises(Unavailable):
                late()
        assert not driver.renew_lease(LEASE_S)
        alone.close()


def test_the_driver_knows_when_a_party_asked_another_process(url: str) -> None:
    with opened(url, "driver") as driver, opened(url, "upload") as upload:
        assert driver.last_heard_of_s("key") is None
        upload.remember_nonce("key", "one", 10.0)
        upload.remember_nonce("key", "two", 12.0)
        upload.remember_nonce("another", "one", 15.0)
        assert driver.last_heard_of_s("key") == 12.0


# --- news -------------------------------------------------------------------------------------------------------------


class Listening:
    """A process that waits for news; ``deaf`` as long as its connection is not there."""

    def __init__(self, store: SqlStore, changes: Changes) -> None:
        self.changes = changes
        self.hearing = Hearing(_server(store, changes))
        self.heard = list[int]()
        """Numbers of changes, in the order of their commits; what follows from hearing of them has happened."""
        self.over = threading.Event()
        self._store = store
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.over.set()
        if self._thread.is_alive():
            self._thread.join(WITHIN_S)

    def _listen(self) -> None:
        self._store.listen(self._hear, self.over)

    def _hear(self, news: News) -> None:
        self.hearing.hear(news)
        self.heard.append(news.change)


def _server(store: SqlStore, changes: Changes) -> Any:
    history = OwnHistory(store, "operator-a", 1, drives=False)
    return SimpleNamespace(store=store, changes=changes, drives=True, history=history)


def test_what_one_commits_the_others_hear_and_what_was_missed_is_noticed(url: str) -> None:
    changes = Changes()
    with opened(url, "driver") as driver, opened(url, "upload", changes=changes) as upload:
        listening = Listening(upload, changes)
        driver.take_lease(LEASE_S)
        driver.add_study(RECORD)  # before anybody listens
        assert listening.hearing.look(), "everybody looks once"
        assert not listening.hearing.look()
        driver.add_round(ROUND)  # while it is deaf
        missed = changes.next(STUDY)
        assert not listening.hearing.look(), "it may be on its way"
        assert listening.hearing.look()
        assert missed.is_set()
        listening.begin()
        try:
            heard = changes.next_shown(STUDY)
            until(lambda: _told(driver, heard), "a change is heard of")
            last = driver.changes()
            until(lambda: last in listening.heard, "and the last one: none is on its way any more")
            listening.hearing.look()
            held, shown = changes.next(STUDY), changes.next_shown(STUDY)
            upload.add_contribution(contribution("site-b"), RoundState.ANNOUNCED)
            until(held.is_set, "its own contribution")
            others = changes.next(STUDY)
            driver.add_contribution(contribution("site-a"), RoundState.ANNOUNCED)
            until(others.is_set, "the other's contribution")
            assert not shown.is_set(), "of which no view shows anything"
            listening.hearing.look()
            until(lambda: not listening.hearing.look(), "all of it was heard of")
            assert not listening.hearing.look()
        finally:
            listening.end()


def _told(driver: SqlStore, heard: Any) -> bool:
    driver.change_study(STUDY, lambda s: s)
    time.sleep(0.05)
    return bool(heard.is_set())


def test_news_say_who_and_what_or_that_everything_may_have_changed() -> None:
    news = News("upload-1", 7, ("ab", "cd"), ("ef",))
    assert parse_news(news.text()) == news
    assert parse_news(News("driver", 8, ("ab",)).text()) == News("driver", 8, ("ab",))
    many = News("driver", 9, tuple("ab" * 32 for _ in range(200)))
    assert parse_news(many.text()) == News("driver", 9, (EVERYTHING,))
    with pytest.raises(ValueError, match="'else'"):
        parse_news("something else")


def test_news_of_everything_wake_everybody() -> None:
    changes = Changes()
    waiting = changes.next("one"), changes.next_shown("two"), changes.next_for("three", "c1")
    store: Any = SimpleNamespace(beside=Beside("here", "one"), history_of=lambda party: None)
    hearing = Hearing(_server(store, changes))
    hearing.hear(News("here", 1, (EVERYTHING,)))
    assert not any(event.is_set() for event in waiting), "its own are known"
    hearing.hear(News("there", 2, (EVERYTHING,)))
    assert all(event.is_set() for event in waiting)
