"""Servers over PostgreSQL: connections that break, a database that dies, and a replica that lags and takes over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from protocol.errors import BadSignature, RolledBack, Unavailable
from protocol.rounds.states import RoundKey
from servers.store.records import RoundRecord
from servers.store.sql import SqlStore
from tests.contract.records import RECORD, ROUND
from tests.kit.postgres import Cluster, running_cluster

LATER = RoundRecord(RoundKey(RECORD.digest, 1, 2), ROUND.state, ROUND.announcement, 1500.0)


@pytest.fixture
def url(on_postgresql: str) -> str:
    return on_postgresql


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    opened = SqlStore(url, lambda _: None)
    yield opened
    opened.close()


def test_a_connection_that_breaks_in_a_transaction_stores_nothing_and_the_next_one_works(
    cluster: Cluster, url: str, store: SqlStore
) -> None:
    store.add_study(RECORD)
    store.add_round(ROUND)
    before = store.changes()

    def break_off(record: RoundRecord) -> RoundRecord:
        cluster.break_connections(url)
        return replace(record, own_nonce=b"n" * 32)

    with pytest.raises(Unavailable, match="does not answer"):
        store.change_round(ROUND.key, break_off, then_add=LATER)
    assert store.round(ROUND.key) == ROUND
    assert store.round(LATER.key) is None
    assert store.changes() == before
    store.change_round(ROUND.key, lambda record: replace(record, own_nonce=b"m" * 32), then_add=LATER)
    assert store.round(LATER.key) == LATER


def test_a_connection_that_breaks_between_transactions_costs_one_refusal(
    cluster: Cluster, url: str, store: SqlStore
) -> None:
    store.add_study(RECORD)
    store.remember_nonce("site-a", "n" * 16, 100.0)
    cluster.break_connections(url)
    for ask in (store.studies, lambda: store.remember_nonce("site-a", "m" * 16, 100.0)):
        with pytest.raises(Unavailable):
            ask()
        ask()
    with pytest.raises(BadSignature):
        store.remember_nonce("site-a", "n" * 16, 100.0)


def test_what_was_stored_survives_a_database_that_dies(cluster: Cluster, store: SqlStore) -> None:
    store.add_study(RECORD)
    store.add_round(ROUND)
    cluster.stop()
    with pytest.raises(Unavailable):
        store.ready()
    cluster.start()
    store.ready()
    assert (store.study(RECORD.digest), store.round(ROUND.key)) == (replace(RECORD, cursor=RECORD.cursor + 1), ROUND)


def test_a_replica_that_lagged_takes_no_change_once_it_has_taken_over() -> None:
    """While the server runs: nothing starts anew, and the other server need not be asked."""
    with running_cluster() as cluster:
        url = cluster.migrated_database()
        store = SqlStore(url, lambda _: None)
        store.add_study(RECORD)
        lagging = cluster.replica()
        store.add_round(ROUND)
        cluster.fail_over(lagging)
        with pytest.raises(Unavailable):
            store.add_ready(RECORD.digest, "site-b")
        with pytest.raises(RolledBack, match="a replica that lags"):
            store.add_ready(RECORD.digest, "site-b")
        assert store.ready_sites(RECORD.digest) == ()
        store.close()
