"""A server's settings and folder, as tests of one server need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.sharing import Side
from tests.kit.processes import Federation, prepare_servers
from tests.unit.parties import SITES


@pytest.fixture
def prepared(tmp_path: Path) -> Federation:
    return prepare_servers(tmp_path, SITES)


@pytest.fixture
def config(prepared: Federation) -> Path:
    """Side A's settings."""
    return prepared.servers[Side.A].config
