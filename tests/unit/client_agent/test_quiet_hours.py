"""Quiet hours: large transfers wait for their end, small ones go on, and what will not fit is said before."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from client_agent.net.envelopes import Body
from client_agent.net.exchange import pause_after
from client_agent.net.quiet_hours import LARGE_TRANSFER_BYTES, NO_QUIET_HOURS, QuietHours, QuietNow
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.settings import AgentSettings
from client_agent.study.contribution import contribution_bytes, transfer_remarks
from protocol.errors import ConfigurationError, Unavailable
from protocol.messages.bodies import content_bytes
from protocol.messages.control import LayerShape, ShareKind, Study
from protocol.messages.purpose import StudyProtection
from protocol.sharing import Side
from tests.unit.client_agent.federation import ROSTER, keys, study
from tests.unit.client_agent.test_daemon import settings

ZONE = "Europe/Zurich"
CLINICS = QuietHours.parse(["08:00-18:00 Mon-Fri"], ZONE)
HOUR_S = 3600.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(ZONE)).timestamp()


def hours(quiet: QuietHours, text: str) -> float:
    return quiet.remaining_s(at(text)) / HOUR_S


def test_how_long_large_transfers_wait() -> None:
    assert hours(CLINICS, "2026-11-23 07:59:59") == 0  # a Monday
    assert hours(CLINICS, "2026-11-23 08:00") == 10
    assert hours(CLINICS, "2026-11-23 17:30") == 0.5
    assert hours(CLINICS, "2026-11-23 18:00") == 0
    assert hours(CLINICS, "2026-11-21 12:00") == 0  # a Saturday
    assert NO_QUIET_HOURS.remaining_s(at("2026-11-23 12:00")) == 0


def test_windows_pass_midnight_and_those_that_meet_are_one() -> None:
    nights = QuietHours.parse(["22:00-06:00 Fri,Sun", "06:00-07:00"], ZONE)
    assert hours(nights, "2026-11-20 23:00") == 8  # Friday night, and the hour of every day after it
    assert hours(nights, "2026-11-21 05:00") == 2
    assert hours(nights, "2026-11-21 23:00") == 0
    assert hours(nights, "2026-11-22 22:00") == 9
    assert hours(QuietHours.parse(["00:00-24:00 Sat-Sun"], ZONE), "2026-11-21 00:00") == 48
    assert hours(QuietHours.parse(["12:00-13:00 fri-mon"], ZONE), "2026-11-22 12:00") == 1


def test_the_clock_of_the_zone_decides_on_the_day_it_changes() -> None:
    """On 29 March 2026 Zurich has no hour from two to three."""
    night = QuietHours.parse(["00:00-06:00"], ZONE)
    assert hours(night, "2026-03-29 00:00") == 5
    assert hours(night, "2026-10-25 00:00") == 7


def test_entries_that_are_none_are_refused() -> None:
    for wrong in ("always", "8-18", "08:00-18:00 Mon-Fry", "08:00-25:00", "09:00-09:00", "08:00-18:00 ,"):
        with pytest.raises(ConfigurationError, match="key 'quiet_hours': found"):
            QuietHours.parse([wrong], ZONE)
    with pytest.raises(ConfigurationError, match="leave no time of the week"):
        QuietHours.parse(["00:00-24:00"], ZONE)
    for zone in ("Zurich", "../etc/passwd"):
        with pytest.raises(ConfigurationError, match="variable TZ"):
            QuietHours.parse([], zone)


class Clock:
    def __init__(self, text: str) -> None:
        self.now_s = at(text)

    def __call__(self) -> float:
        return self.now_s


class Counting(httpx.BaseTransport):
    """A server that is away; counts who asks."""

    asked = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        raise httpx.ConnectError("away", request=request)


def test_a_client_begins_no_large_transfer_and_lets_small_ones_through(tmp_path: Path) -> None:
    clock, away = Clock("2026-11-23 12:00"), Counting()
    client = ServerClient(Side.A, ROSTER.operator_a, keys("c1"), away, retry=RetryPolicy(attempts=1), clock=clock)
    client.keep_quiet(CLINICS)
    large, small = Body.of(bytes(LARGE_TRANSFER_BYTES + 1)), Body.of(bytes(LARGE_TRANSFER_BYTES))
    transfers = (
        lambda: client.contribute("trial", 1, 1, large),
        lambda: client.fetch_output("trial", 1, lambda pieces: None, LARGE_TRANSFER_BYTES + 1),
        lambda: client.fetch_mail("trial", "checkpoint-1", "c1", "r0", tmp_path / "c", LARGE_TRANSFER_BYTES + 1),
    )
    for transfer in transfers:
        with pytest.raises(QuietNow, match=r"quiet hours until 2026-11-23 18:00 \(Europe/Zurich\): .* waits") as waits:
            transfer()
        assert waits.value.wait_s == 6 * HOUR_S
        assert pause_after(waits.value, 0.5) == 60
    assert away.asked == 0
    with pytest.raises(Unavailable):
        client.contribute("trial", 1, 1, small)
    with pytest.raises(Unavailable):
        client.view("trial")
    clock.now_s += 6 * HOUR_S
    for transfer in transfers:
        with pytest.raises(Unavailable) as not_quiet:
            transfer()
        assert not isinstance(not_quiet.value, QuietNow)
    assert away.asked == 2 + len(transfers)


def wide(dimension: int, deadline_s: float) -> Study:
    made = study()
    parameters = made.parameters.model_copy(update={"dimension": dimension})
    model = made.model.model_copy(update={"layers": (LayerShape(name="w", shape=(dimension,)),)})
    return made.model_copy(update={"parameters": parameters, "model": model, "round_deadline_s": deadline_s})


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", ZONE)


@pytest.mark.parametrize(
    ("variable", "zone"), [(ZONE, ZONE), (f":{ZONE}", ZONE), (":/etc/localtime", "None"), ("", "None")]
)
def test_quiet_hours_are_in_the_time_of_the_variable_or_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, zone: str
) -> None:
    monkeypatch.setenv("TZ", variable)
    assert str(own(tmp_path, quiet_hours=("08:00-18:00",)).quiet.zone) == zone
    monkeypatch.setenv("TZ", "Zurich")
    assert own(tmp_path).quiet.zone is None
    with pytest.raises(ConfigurationError, match="variable TZ: 'Zurich' is no time zone"):
        _ = own(tmp_path, quiet_hours=("08:00-18:00",)).quiet


def own(folder: Path, **changes: Any) -> AgentSettings:
    return settings(folder, "c1", **changes)


def test_what_does_not_fit_is_said_before_the_study_begins(tmp_path: Path) -> None:
    now_s = at("2026-11-23 12:00")
    of = wide(1_000_000, HOUR_S)
    assert contribution_bytes(of) == 8_000_000
    assert transfer_remarks(of, own(tmp_path), now_s) == ()
    assert transfer_remarks(of, own(tmp_path, bandwidth_up_bytes_per_s=100_000), now_s) == ()
    (slow,) = transfer_remarks(wide(1_000_000, 600.0), own(tmp_path, bandwidth_up_bytes_per_s=10_000), now_s)
    assert "8.0 MB: at bandwidth_up_bytes_per_s = 10000 it takes 800 s, and a round ends after 600 s" in slow
    quiet = own(tmp_path, quiet_hours=("08:00-18:00 Mon-Fri",))
    assert CLINICS.longest_s(now_s) == (10 * HOUR_S, 62 * HOUR_S)
    (waits,) = transfer_remarks(of, quiet, now_s)
    assert "waits in quiet hours, of up to 10.0 h; a round ends after 1.0 h" in waits
    assert transfer_remarks(wide(1_000_000, 11 * HOUR_S), quiet, now_s) == ()
    assert transfer_remarks(wide(100, HOUR_S), quiet, now_s) == ()
    narrow = own(tmp_path, quiet_hours=("00:10-24:00",), bandwidth_up_bytes_per_s=10_000)
    (never,) = transfer_remarks(wide(1_000_000, 30 * HOUR_S), narrow, now_s)
    assert "no time between quiet hours is long enough" in never


def test_under_ckks_a_contribution_is_as_long_as_its_ciphertexts() -> None:
    encrypted = wide(1_000_000, HOUR_S).model_copy(update={"protection": StudyProtection.CKKS})
    assert contribution_bytes(encrypted) == content_bytes(ShareKind.CIPHERTEXT, 1_000_001) > 8_000_000
