"""``moiety agent accept-rollback``: it says what is lost, and does without only when told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from client_agent.cli import memories as memory_cli
from client_agent.settings import AgentSettings
from client_agent.site.remembered_sums import sum_memory
from protocol.sharing import Side
from tests.unit.client_agent.benches import SITE, FakeServer
from tests.unit.client_agent.federation import ROSTER, keys
from tests.unit.client_agent.test_reconciling import HELD


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[Side, FakeServer]:
    made = {side: FakeServer(side) for side in Side}

    @contextmanager
    def site(_: AgentSettings) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(came_with=keys(SITE).party().signing_key, clients=made, roster=ROSTER)

    monkeypatch.setattr(memory_cli, "Site", site)
    return made


def forgotten(folder: Path) -> frozenset[tuple[str, int]]:
    return sum_memory(folder, keys(SITE).party().signing_key, lambda: bytes(32)).rounds()


def test_it_asks_first(servers: dict[Side, FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = SimpleNamespace(state_dir=tmp_path, site=SITE)
    memory_cli.forget_memory(settings, yes=False)  # type: ignore[arg-type]
    assert "nothing is lost" in capsys.readouterr().out
    servers[Side.B].receipts = HELD[:2]
    memory_cli.forget_memory(settings, yes=False)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "earlier round 1\nearlier round 2\n" in said
    assert "can show single updates of this site" in said
    assert "nothing was changed" in said
    assert not forgotten(tmp_path)
    memory_cli.forget_memory(settings, yes=True)  # type: ignore[arg-type]
    assert "2 rounds are forgotten" in capsys.readouterr().out
    assert forgotten(tmp_path) == {("ab" * 32, 1), ("ab" * 32, 2)}
    memory_cli.forget_memory(settings, yes=True)  # type: ignore[arg-type]
    assert "nothing is lost" in capsys.readouterr().out
