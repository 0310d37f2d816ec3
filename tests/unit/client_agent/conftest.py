"""Fixtures of several tests of an agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from client_agent.cli import agent_work
from client_agent.settings import AgentSettings
from protocol.sharing import Side
from tests.unit.client_agent.announced_rounds import MODEL, STUDY
from tests.unit.client_agent.benches import SITE, Bench, FakeServer, contributor_bench
from tests.unit.client_agent.federation import ROSTER, keys


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A contributor in the study of ``announced_rounds``, which has its model."""
    with contributor_bench(tmp_path, STUDY, MODEL) as made:
        yield made


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[Side, FakeServer]:
    """The servers that the commands on memory and budget ask for receipts."""
    made = {side: FakeServer(side) for side in Side}

    @contextmanager
    def site(_: AgentSettings) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(came_with=keys(SITE).party().signing_key, clients=made, roster=ROSTER)

    monkeypatch.setattr(agent_work, "Site", site)
    return made
