"""One PostgreSQL for all of these tests; every test has a database of its own in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.postgres import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running
