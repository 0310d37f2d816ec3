"""A server that is drained takes nothing new, waits for rounds under way, and names those that it leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from host.folder_lock import one_process
from protocol.errors import ConfigurationError, MoietyError, Unavailable
from protocol.messages.control import RoundState
from servers.background import drain as drain_module
from servers.background.drain import Drain, Drained, ask, asked, begin, drained, say_drained, under_way
from servers.cli import app
from servers.server import Server
from tests.contract.records import KEY, RECORD, ROUND
from tests.kit.in_process import opened_server


@pytest.fixture
def server(config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(drain_module, "_LOOKED_AT_EVERY_S", 0.001)
    monkeypatch.setattr(drain_module, "_SETTLES_S", 0.0)
    with opened_server(config) as opened:
        opened.store.add_study(RECORD)
        opened.store.add_round(ROUND)
        yield opened


def command(config: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["drain", "--config", str(config), *options])


async def drained_after(server: Server, drain: Drain, round_ends: bool = False) -> list[str]:
    """-> whether it stopped by itself."""
    stopped: list[str] = []
    keeps = asyncio.create_task(drain_module.keep_draining(server, lambda: stopped.append("stopped")))
    await asyncio.sleep(0.01)
    ask(server.settings.data_dir, drain)
    while not server.drains:
        await asyncio.sleep(0.001)
    with pytest.raises(Unavailable, match="takes no new study or round"):
        server.require_taking()
    if round_ends:
        assert drained(server.settings.data_dir) is None
        server.store.change_round(KEY, lambda r: replace(r, state=RoundState.SKIPPED))
    await asyncio.wait_for(keeps, 30)
    return stopped


def test_it_waits_for_the_round_under_way(server: Server) -> None:
    server.require_taking()
    assert under_way(server) == ("trial",)
    assert asyncio.run(drained_after(server, Drain(60.0), round_ends=True)) == ["stopped"]
    assert drained(server.settings.data_dir) == Drained(())
    assert under_way(server) == ()


def test_what_is_left_is_named_and_staying_is_not_stopping(server: Server) -> None:
    data_dir = server.settings.data_dir
    assert asyncio.run(drained_after(server, Drain(0.0, stay=True))) == []
    assert drained(data_dir) == Drained(("trial",))
    begin(data_dir)
    assert (asked(data_dir), drained(data_dir)) == (None, None)


def test_the_command_waits_and_says_what_is_left(config: Path, server: Server) -> None:
    refused = command(config).exception
    assert isinstance(refused, ConfigurationError)
    assert "there is nothing to drain" in refused.detail
    said: list[Result] = []
    data_dir = server.settings.data_dir
    with one_process(data_dir, "data_dir", "the server"):
        asks = threading.Thread(target=lambda: said.append(command(config, "--stay", "--within", "5")))
        asks.start()
        while asked(data_dir) != Drain(5.0, stay=True):
            asks.join(0.01)
        say_drained(data_dir, Drained(("trial",)))
        asks.join(60)
    assert said[0].stdout == (
        "no new round or study is taken; under way still, and resumed at the start: trial; stop it, and start the new "
        "release\n"
    )


def test_a_server_whose_federation_is_not_founded_has_nothing_to_drain(config: Path, server: Server) -> None:
    """It hears no drain, and a pod that is to be stopped must not wait for its answer."""
    server.settings.roster.unlink()
    with one_process(server.settings.data_dir, "data_dir", "the server"):
        done = command(config, "--stay", "--within", "600")
    assert done.exit_code == 0
    assert "not founded yet" in done.stdout
    assert asked(server.settings.data_dir) is None


def test_a_server_that_does_not_drain_is_said(config: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.cli._DRAIN_STOPS_WITHIN_S", 0.0)
    with one_process(server.settings.data_dir, "data_dir", "the server"):
        refused = command(config, "--within", "0").exception
    assert isinstance(refused, MoietyError)
    assert "see its log" in refused.detail
