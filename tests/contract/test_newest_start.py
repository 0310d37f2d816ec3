"""Two processes of one server on one PostgreSQL database: the newest start writes, however both are interleaved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import Unavailable
from protocol.messages.control import RoundState
from servers.store.records import CorrelationUse
from servers.store.sql import SqlStore
from tests.contract.records import KEY, RECORD, ROUND
from tests.kit.databases import new_database
from tests.kit.present import present

_LOST_S = 0.5


@pytest.fixture
def url(on_postgresql: str) -> str:
    return on_postgresql


def opened(url: str) -> SqlStore:
    return SqlStore(url, lambda _study: None)


def test_who_started_before_changes_nothing_any_more(url: str) -> None:
    first, second = opened(url), opened(url)
    first.next_boot()
    first.add_study(RECORD)
    first.add_round(ROUND)
    first.ready()
    second.next_boot()
    use = CorrelationUse(KEY, "site-b", "00" * 32, 0, 0)
    for change in (
        lambda: first.change_round(KEY, lambda r: replace(r, state=RoundState.LOCKED)),
        lambda: first.change_study(KEY.study, lambda s: replace(s, absent_in_a_row=1)),
        lambda: first.mark_used([use]),
        lambda: first.forget_share_files(KEY.study, before_round=9),
        lambda: first.forget_attempt_files(KEY),
        lambda: first.forget_outputs(KEY.study, before_round=9),
        first.ready,
    ):
        with pytest.raises(Unavailable, match="another process of this server has started"):
            change()
    kept = present(second.round(KEY))
    assert kept.state is RoundState.ANNOUNCED
    second.mark_used([use])
    assert second.correlations_used(KEY) == 1
    first.close()
    second.close()


def test_a_start_waits_for_a_change_that_is_under_way(url: str) -> None:
    first, second = opened(url), opened(url)
    first.next_boot()
    first.add_study(RECORD)
    first.add_round(ROUND)
    with ThreadPoolExecutor(1) as other:
        with first._begin() as connection:
            first._require_newest(connection)
            starting = other.submit(second.next_boot)
            with pytest.raises(TimeoutError):
                starting.result(_LOST_S)
            first._touch(connection, KEY.study)
        assert starting.result(30.0) == 2
    with pytest.raises(Unavailable):
        first.change_round(KEY, lambda r: r)
    first.close()
    second.close()


def test_sqlite_is_held_by_the_lock_on_its_folder_alone(tmp_path: Path) -> None:
    url = new_database(tmp_path / "store.db")
    first, second = opened(url), opened(url)
    first.next_boot()
    second.next_boot()
    first.add_study(RECORD)
    first.ready()
    assert second.study(RECORD.digest) == RECORD
    first.close()
    second.close()
