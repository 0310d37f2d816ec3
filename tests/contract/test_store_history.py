"""A store's history: when it changed and who asked, whether it went back, and what it told the other server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import PoolProxiedConnection, text
from sqlalchemy.exc import OperationalError

from protocol.errors import RolledBack, Unavailable
from protocol.messages.control import RoundState, sign
from protocol.messages.peer import History
from protocol.rounds.states import RoundKey
from servers.identity.history import OwnHistory
from servers.store.database import open_engine
from servers.store.records import Kept, RoundRecord, SeenRound
from servers.store.sql import SqlStore
from tests.contract.records import KEY, PARTIES, RECORD, ROUND, contribution


def test_an_operator_reads_when_and_who_without_what(url: str) -> None:
    """Times by the store's clock; a state's time moves with the state alone."""
    now = [100.0]
    store = SqlStore(url, lambda _: None, lambda: now[0])
    store.add_study(RECORD)
    store.add_ready(RECORD.digest, "site-b")
    store.add_round(ROUND)
    now[0] = 130.0
    store.add_contribution(contribution("site-b"), RoundState.COLLECTING)
    store.change_round(KEY, lambda r: replace(r, own_nonce=b"n"))
    assert store.rounds_seen(RECORD.digest, 9) == [SeenRound(1, 1, RoundState.COLLECTING, 100.0, 100.0, 1000.0)]
    again = RoundRecord(RoundKey(RECORD.digest, 1, 2), RoundState.ANNOUNCED, ROUND.announcement, 1500.0)
    store.change_round(KEY, lambda r: replace(r, state=RoundState.BURNT), then_add=again)
    second = SeenRound(1, 2, RoundState.ANNOUNCED, 130.0, 130.0, 1500.0)
    assert store.rounds_seen(RECORD.digest, 9) == [second, SeenRound(1, 1, RoundState.BURNT, 100.0, 130.0, 1000.0)]
    assert store.rounds_seen(RECORD.digest, 1) == [second]
    assert store.contributors_of(KEY) == ("site-b",)
    assert store.last_contributed(RECORD.digest) == {"site-b": 1}
    assert store.created_at_s(RECORD.digest) == 100.0
    assert store.ready_since(RECORD.digest) == {"site-b": 100.0}
    assert store.kept() == {Kept.SHARES: ("share-1",), Kept.QUERIES: (), Kept.OUTPUTS: (), Kept.LETTERS: ()}
    assert store.size_bytes() > 4096
    store.close()


def test_a_database_that_went_back_takes_no_change(store: SqlStore, url: str) -> None:
    """As when a replica that lags takes over while the server runs."""
    store.add_study(RECORD)
    store.change_study(RECORD.digest, lambda record: replace(record, reason="one"))
    assert store.changes() == 2
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE history SET changes = 1"))
    engine.dispose()
    with pytest.raises(RolledBack, match="moiety server accept-rollback"):
        store.change_study(RECORD.digest, lambda record: replace(record, reason="two"))
    with pytest.raises(RolledBack, match="has 1 changes and had 2"):
        store.changes()
    assert store.study(RECORD.digest).reason == "one"


def test_nothing_is_served_from_a_database_that_went_back_until_the_newest_is_there_again(
    store: SqlStore, url: str
) -> None:
    """Also where nobody changes anything meanwhile, and so nothing is refused where it would be stored."""
    store.add_study(RECORD)
    history = OwnHistory(store, "operator-a", 1)
    history.agreed()
    counted = history.count()
    for changes in (counted - 1, counted):
        engine = open_engine(url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE history SET changes = :changes"), {"changes": changes})
        engine.dispose()
        if changes < counted:
            with pytest.raises(RolledBack, match="moiety server accept-rollback"):
                history.count()
            assert not history.current
            with pytest.raises(RolledBack, match="a replica that lags"):
                history.require_compared()
    assert history.count() == counted
    history.require_compared()


def test_histories_and_what_an_older_database_strands(store: SqlStore) -> None:
    assert (store.changes(), store.begin_history(), store.history_of("operator-b")) == (0, 0, None)
    store.add_study(RECORD)
    assert store.begin_history() == 0  # the start before has compared nothing
    store.note_compared()
    assert store.begin_history() == 1
    keys = PARTIES.keys_of("operator-a")
    earlier = History(party="operator-a", run="ab" * 32, start=1, began=0, changes=5, restored_at_s=2000)
    for changes in (5, 6):
        signed = sign(earlier.model_copy(update={"changes": changes}), "operator-a", keys.signing)
        store.keep_history(signed)
        assert store.history_of("operator-a") == signed
    assert store.declare_restored("operator-a", 1000.0) == [RECORD.name]
    assert (store.restored_at_s(), store.history_of("operator-a")) == (2001, None)
    assert store.study(RECORD.digest).stranded_by == "operator-a"
    assert store.strand("operator-b") == []
    assert store.declare_restored("operator-a", 3000.9) == []
    assert store.restored_at_s() == 3000


def test_a_change_whose_commit_was_not_answered_is_told(store: SqlStore, changed: list[str]) -> None:
    """It is stored, and whoever waits for it would wait for ever."""
    store.add_study(RECORD)
    changed.clear()
    dialect = store._engine.dialect
    commit = dialect.do_commit

    def lost(connection: PoolProxiedConnection) -> None:
        commit(connection)
        raise OperationalError("COMMIT", {}, OSError("the connection is gone"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dialect, "do_commit", lost)
        with pytest.raises(Unavailable):
            store.change_study(RECORD.digest, lambda record: replace(record, reason="told"))
    assert store.study(RECORD.digest).reason == "told"
    assert changed == [RECORD.digest]
    store.change_study(RECORD.digest, lambda record: replace(record, reason="later"))
    assert store.changes() == 3
