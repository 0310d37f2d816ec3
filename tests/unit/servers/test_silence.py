"""A study whose requester announces no round any more is paused by name; others are left alone, and it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.messages.control import PauseCause, RoundState, StudyState
from protocol.rounds.states import StudyEvent, study_step
from servers.background.duties import pause_silent
from servers.server import Server
from servers.studies import view
from tests.contract.records import KEY, RECORD, ROUND
from tests.kit.in_process import opened_server
from tests.kit.present import present
from tests.unit.parties import SITES


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(config: Path, clock: Clock) -> Iterator[Server]:
    with opened_server(config, clock) as opened:
        opened.store.add_study(RECORD)
        yield opened


def over(server: Server, state: RoundState = RoundState.SKIPPED) -> None:
    server.store.add_round(ROUND)
    server.store.change_round(KEY, lambda r: replace(r, state=state))


def test_a_requester_that_is_gone_leaves_its_study_paused(server: Server, clock: Clock) -> None:
    over(server)
    silent_s = server.settings.limits.requester_silent_s
    clock.now_s += silent_s - 1
    assert pause_silent(server) == []
    clock.now_s += 2
    assert pause_silent(server) == ["trial"]
    assert server.store.study(RECORD.digest).state is StudyState.PAUSED
    pause = present(view(server, server.store.study(RECORD.digest), SITES[0]).pause)
    assert pause.cause is PauseCause.REQUESTER_SILENT
    assert pause_silent(server) == []


def test_a_round_under_way_is_waited_for(server: Server, clock: Clock) -> None:
    server.store.add_round(ROUND)
    clock.now_s += 100 * server.settings.limits.requester_silent_s
    assert pause_silent(server) == []


def test_before_the_first_round_a_requester_that_asks_is_waited_for(server: Server, clock: Clock) -> None:
    """The requester may wait for sites as long as it likes; one that has vanished leaves its study paused."""
    silent_s = server.settings.limits.requester_silent_s
    for _ in range(5):
        clock.now_s += silent_s - 1
        assert pause_silent(server) == []
        server.recent.requester_at_s = clock.now_s
    clock.now_s += silent_s + 1
    assert pause_silent(server) == ["trial"]
    paused = server.store.study(RECORD.digest)
    assert (paused.state, paused.absent_in_a_row) == (StudyState.PAUSED, 0)
    assert study_step(paused.state, StudyEvent.ANNOUNCED) is StudyState.OPEN


def test_a_study_that_is_over_stays_as_it_ended(server: Server, clock: Clock) -> None:
    over(server, RoundState.RELEASED)
    server.store.change_study(RECORD.digest, lambda r: replace(r, state=StudyState.COMPLETED))
    clock.now_s += 2 * server.settings.limits.requester_silent_s
    assert pause_silent(server) == []
    assert server.store.study(RECORD.digest).state is StudyState.COMPLETED
