"""Records that are kept between changes: read again after every one, and never what a thread read before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Row, select

from protocol.messages.control import RoundState
from servers.store import tables as t
from servers.store.migrate import upgrade
from servers.store.reading.prepared import Prepared
from servers.store.reading.read_rows import ReadRows
from servers.store.sql import SqlStore
from tests.contract.records import KEY, RECORD, ROUND, contribution

STATEMENT = Prepared(select(t.boots))
VALUES = {"name": "x"}


def test_a_record_is_given_back_until_something_changes() -> None:
    rows = ReadRows(kept=True)
    found, seen = rows.look(STATEMENT, VALUES)
    assert found is None
    rows.keep(seen, STATEMENT, VALUES, "record")
    assert rows.look(STATEMENT, VALUES)[0] == "record"
    assert rows.look(STATEMENT, {"name": "y"})[0] is None
    rows.forget()
    assert rows.look(STATEMENT, VALUES)[0] is None


def test_what_was_read_before_a_change_is_not_kept_after_it() -> None:
    rows = ReadRows(kept=True)
    _, seen = rows.look(STATEMENT, VALUES)
    rows.forget()
    rows.keep(seen, STATEMENT, VALUES, "older record")
    assert rows.look(STATEMENT, VALUES)[0] is None


def test_nothing_is_kept_where_others_write() -> None:
    rows = ReadRows(kept=False)
    rows.keep(rows.look(STATEMENT, VALUES)[1], STATEMENT, VALUES, "record")
    assert rows.look(STATEMENT, VALUES)[0] is None


def test_no_more_is_kept_than_a_request_reads() -> None:
    rows = ReadRows(kept=True)
    for number in range(1000):
        values = {"name": str(number)}
        rows.keep(rows.look(STATEMENT, values)[1], STATEMENT, values, number)
    kept = [number for number in range(1000) if rows.look(STATEMENT, {"name": str(number)})[0] is not None]
    assert 0 < len(kept) <= 64


class Counted(SqlStore):
    """Counts looks at the database."""

    looks = 0

    def _first(self, statement: Prepared, values: object) -> Row[tuple[object]] | None:
        self.looks += 1
        return super()._first(statement, values)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Counted]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    upgrade(url)
    made = Counted(url, lambda _study: None)
    made.add_study(RECORD)
    made.add_round(ROUND)
    yield made
    made.close()


def test_a_contribution_leaves_what_was_read_as_it_was(store: Counted) -> None:
    store.add_contribution(contribution("site-a", "a"), RoundState.COLLECTING)
    study, round_ = store.study(RECORD.digest), store.current_round(RECORD.digest)
    looks = store.looks
    store.add_contribution(contribution("site-b", "b"), RoundState.COLLECTING)
    assert (store.study(RECORD.digest), store.current_round(RECORD.digest)) == (study, round_)
    assert store.looks == looks


def test_the_first_contribution_is_seen(store: Counted) -> None:
    before = store.current_round(RECORD.digest)
    cursor = store.study(RECORD.digest).cursor
    assert before is not None
    store.add_contribution(contribution("site-a", "a"), RoundState.COLLECTING)
    after = store.current_round(RECORD.digest)
    assert after is not None
    assert (before.state, after.state) == (ROUND.state, RoundState.COLLECTING)
    assert store.study(RECORD.digest).cursor == cursor + 1


def test_a_changed_round_and_a_changed_study_are_read_again(store: Counted) -> None:
    assert store.round(KEY) == store.current_round(RECORD.digest) == store.latest_attempt(RECORD.digest, 1)
    store.change_round(KEY, lambda r: replace(r, state=RoundState.SKIPPED))
    for found in (store.round(KEY), store.current_round(RECORD.digest), store.latest_attempt(RECORD.digest, 1)):
        assert found is not None
        assert found.state is RoundState.SKIPPED
    assert store.study(RECORD.digest).absent_in_a_row == 0
    store.change_study(RECORD.digest, lambda s: replace(s, absent_in_a_row=2))
    assert store.study(RECORD.digest).absent_in_a_row == 2
    found_by_name = store.study_named(RECORD.name)
    assert found_by_name is not None
    assert found_by_name.absent_in_a_row == 2


def test_what_fails_in_the_middle_is_read_again(store: Counted) -> None:
    before = store.round(KEY)

    def broken(_record: object) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        store.change_round(KEY, broken)  # type: ignore[arg-type]
    looks = store.looks
    assert store.round(KEY) == before
    assert store.looks == looks + 1
