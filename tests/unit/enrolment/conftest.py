"""Two operators and their requester; their folders are made without a port: on a busy machine another may take any."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.enrolment.enrolling import Operators, operators


@pytest.fixture(autouse=True)
def _any_port_is_free(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "port_in_use" not in request.node.name:
        monkeypatch.setattr("servers.enrolment.folder.require_free", lambda port: None)


@pytest.fixture
def both(tmp_path: Path) -> Operators:
    return operators(tmp_path)


@pytest.fixture
def founded(both: Operators) -> Operators:
    """A founded federation of two operators, their requester and one site."""
    both.found(both.ready_to_found()[0])
    return both
