"""The address that the command prints can be opened at once."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client_agent.page import app


def test_who_opens_the_address_at_once_is_not_turned_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The page itself may take a moment: it is not serving yet when its address stands in the terminal."""
    connected: list[bool] = []

    def begins_late(config: object) -> Any:
        printed = re.search(r"http://127\.0\.0\.1:(\d+)/login", capsys.readouterr().out)
        assert printed is not None
        with socket.create_connection(("127.0.0.1", int(printed[1])), timeout=5.0):
            connected.append(True)
        return SimpleNamespace(run=lambda sockets: [one.close() for one in sockets])

    monkeypatch.setattr(app, "make_page", lambda settings, door, look: None)
    monkeypatch.setattr("uvicorn.Server", begins_late)
    settings: Any = SimpleNamespace(state_dir=tmp_path)
    app.serve_page(settings, 0, lambda: pytest.fail("nobody looks"))
    assert connected == [True]
