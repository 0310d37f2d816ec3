"""Two operators and their requester; their folders are made without a port: on a busy machine another may take any."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.site import founding
from client_agent.site.enrolment_folder import Joined
from tests.unit.enrolment.enrolling import Operators, operators


@pytest.fixture(autouse=True)
def _any_port_is_free(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "port_in_use" not in request.node.name:
        monkeypatch.setattr("servers.enrolment.folder.require_free", lambda port: None)


@pytest.fixture
def both(tmp_path: Path) -> Operators:
    return operators(tmp_path)


@pytest.fixture
def founded(both: Operators) -> tuple[Operators, Joined]:
    """A founded federation, and its requester."""
    requester, _ = both.ready_to_found()
    founding.found(requester, both.send, (), both.clock)
    return both, requester
