"""Failpoints fire once, at their turn, and no deployment can have one."""

from __future__ import annotations

import errno
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import client_agent.site.failpoints
import servers.failpoints
from client_agent.site.journal import StudyJournal
from host.failpoints import Failpoints, parse_failpoint
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from servers.settings import ServerSettings


class Place(StrEnum):
    HERE = "here"
    THERE = "there"


def test_unarmed_nothing_happens() -> None:
    acted: list[Place] = []
    for place in Place:
        Failpoints(act=lambda: acted.append(place)).reach(place)  # noqa: B023 - called at once or never
    assert acted == []


@pytest.mark.parametrize("turn", [1, 2, 5])
def test_the_armed_point_acts_at_its_turn_only(turn: int) -> None:
    acted: list[int] = []
    times: list[int] = []
    points = Failpoints("here", turn, lambda: acted.append(len(times)))
    for number in range(1, 8):
        times.append(number)
        points.reach(Place.THERE)
        points.reach(Place.HERE)
    assert acted == [turn]


def test_armed_without_an_act_nothing_happens() -> None:
    armed = Failpoints("here")
    armed.reach(Place.HERE)
    armed.act()


def test_parsing() -> None:
    assert parse_failpoint("here", Place) == (Place.HERE, 1)
    assert parse_failpoint("there:12", Place) == (Place.THERE, 12)


@pytest.mark.parametrize("setting", ["", "nowhere", "Here", ":1"])
def test_an_unknown_point_is_refused_with_the_list(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=r"allowed: here, there"):
        parse_failpoint(setting, Place)


@pytest.mark.parametrize("turn", ["0", "-1", "x", "1.5", "²", "1:2"])
def test_a_wrong_count_is_refused(turn: str) -> None:
    with pytest.raises(ConfigurationError, match="a number from 1 on"):
        parse_failpoint(f"here:{turn}", Place)


def server_settings(**changes: Any) -> ServerSettings:
    nowhere = Path("nowhere")
    values: dict[str, Any] = {
        "side": Side.A,
        "port": 8441,
        "public_url": "https://a.example",
        "peer_url": "https://127.0.0.1:8442",
        **dict.fromkeys(("roster", "keys", "data_dir", "tls_certificate", "tls_key"), nowhere),
    }
    return ServerSettings(**(values | changes))


def test_a_server_takes_a_failpoint_only_beside_a_seed_and_a_seed_only_on_loopback() -> None:
    assert server_settings(seed=1, failpoint="after_lock_signed").failpoint == "after_lock_signed"
    with pytest.raises(ValidationError, match="only beside a seed"):
        server_settings(failpoint="after_lock_signed")
    with pytest.raises(ValidationError, match="must be loopback"):
        server_settings(seed=1, failpoint="after_lock_signed", peer_url="https://b.example")


def test_an_agent_takes_a_failpoint_only_beside_a_seed() -> None:
    armed = client_agent.site.failpoints.failpoints_of("after_settled:2", seeded=True)
    assert (armed.point, armed.turn) == ("after_settled", 2)
    assert client_agent.site.failpoints.failpoints_of(None, seeded=False).point is None
    with pytest.raises(ConfigurationError, match="only beside 'seed'"):
        client_agent.site.failpoints.failpoints_of("after_settled", seeded=False)
    with pytest.raises(ConfigurationError, match="no failpoint 'lunch'"):
        client_agent.site.failpoints.failpoints_of("lunch", seeded=True)


def test_a_full_disk_is_an_error_of_the_system() -> None:
    armed = servers.failpoints.failpoints_of("disk_full")
    with pytest.raises(OSError, match="No space left") as full:
        armed.reach(servers.failpoints.Point.DISK_FULL)
    assert full.value.errno == errno.ENOSPC
    assert servers.failpoints.failpoints_of(None).point is None


def test_a_journal_reaches_its_agents_failpoints(tmp_path: Path) -> None:
    acted: list[str] = []
    point = client_agent.site.failpoints.Point.AFTER_SETTLED
    StudyJournal(tmp_path, "quiet").reach(point)
    StudyJournal(tmp_path, "armed", Failpoints(point.value, 1, lambda: acted.append("now"))).reach(point)
    assert acted == ["now"]
