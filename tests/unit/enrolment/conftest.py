"""Folders of servers are made without a port to listen on: on a busy machine another process may take any."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _any_port_is_free(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "port_in_use" not in request.node.name:
        monkeypatch.setattr("servers.enrolment.folder.require_free", lambda port: None)
