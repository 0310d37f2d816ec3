"""The databases: SQLite, and one PostgreSQL for all of these tests; every test has a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.store.sql import SqlStore
from tests.contract.records import sqlite_url
from tests.kit.databases import new_database
from tests.kit.postgres import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with the newest schema."""
    if request.param == "sqlite":
        return new_database(tmp_path / "store.db")
    return str(request.getfixturevalue("on_postgresql"))


@pytest.fixture
def on_postgresql(cluster: Cluster) -> str:
    """The URL of such a database on PostgreSQL."""
    return cluster.migrated_database()


@pytest.fixture
def changed() -> list[str]:
    return []


@pytest.fixture
def store(url: str, changed: list[str]) -> Iterator[SqlStore]:
    opened = SqlStore(url, changed.append)
    yield opened
    opened.close()
