"""Hours in which this site's network is for others: large transfers wait, everything else goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from protocol.errors import ConfigurationError, Unavailable

LARGE_TRANSFER_BYTES: Final = 2**20
"""The length above which a transfer waits: sums and checkpoints of models with more than about 130,000 parameters."""
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_ENTRY: Final = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)(?: +([A-Za-z,-]+))?")
_WEEK_DAYS: Final = 7
_MIDNIGHT: Final = (24, 0)
_LONGEST_S: Final = 8 * 86400.0


class QuietNow(Unavailable):
    """A large transfer waits for the end of this site's own quiet hours; ``wait_s`` from now."""

    def __init__(self, detail: str, wait_s: float) -> None:
        super().__init__(detail)
        self.wait_s = wait_s


@dataclass(frozen=True)
class _Window:
    """On these days of the week, 0 being Monday, from ``begin`` to ``end``; past midnight where that comes first."""

    days: frozenset[int]
    begin: time
    end: time

    def on(self, day: datetime) -> tuple[float, float]:
        """The window that begins on the day (a midnight of its zone), as times since 1970."""
        last = day + timedelta(days=int(self.end <= self.begin))
        begin, end = datetime.combine(day, self.begin, day.tzinfo), datetime.combine(last, self.end, day.tzinfo)
        return begin.timestamp(), end.timestamp()


@dataclass(frozen=True)
class QuietHours:
    """One site's quiet hours; none where there is no window. ``zone`` None: this machine's time."""

    windows: tuple[_Window, ...] = ()
    zone: tzinfo | None = None

    @classmethod
    def parse(cls, entries: Sequence[str], zone: str | None = None) -> Self:
        """Parse entries such as ``08:00-18:00 Mon-Fri``. Raises: ConfigurationError"""
        try:
            where = None if zone is None else ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigurationError(f"variable TZ: {zone!r} is no time zone; as in 'Europe/Zurich'") from None
        made = cls(tuple(_window(entry) for entry in entries), where)
        if made.longest_s(0.0)[1] <= 0:
            raise ConfigurationError("key 'quiet_hours': they leave no time of the week for a large transfer")
        return made

    def remaining_s(self, now_s: float) -> float:
        """Seconds of real time until no window is open any more; 0 where none is open. Windows that meet are one."""
        return next((end - now_s for begin, end in self._stretches(now_s) if begin <= now_s < end), 0.0)

    def require_open(self, now_s: float, what: str, length: int) -> None:
        """Raises: QuietNow, for a large transfer in quiet hours"""
        wait_s = self.remaining_s(now_s) if length > LARGE_TRANSFER_BYTES else 0.0
        if wait_s > 0:
            raise QuietNow(f"quiet hours until {self.said(now_s + wait_s)}: {what} waits", wait_s)

    def said(self, at_s: float) -> str:
        """A time as the people at this site read it."""
        at = datetime.fromtimestamp(at_s, UTC).astimezone(self.zone)
        return f"{at:%Y-%m-%d %H:%M} ({self.zone or at.tzname()})"

    def longest_s(self, from_s: float) -> tuple[float, float]:
        """The longest quiet stretch and the longest one without, of the week to come and a day; seconds."""
        quiet_s, free_s, at_s, until_s = 0.0, 0.0, from_s, from_s + _LONGEST_S
        for begin_s, end_s in self._stretches(from_s) or [(until_s, until_s)]:
            if at_s < end_s and at_s < until_s:
                free_s = max(free_s, begin_s - at_s)
                quiet_s = max(quiet_s, end_s - max(begin_s, at_s)) if begin_s < until_s else quiet_s
                at_s = end_s
        return quiet_s, free_s

    def _stretches(self, at_s: float) -> list[tuple[float, float]]:
        """Windows that begin between yesterday and in two weeks, those that meet as one; times since 1970."""
        today = datetime.fromtimestamp(at_s, UTC).astimezone(self.zone).date()
        days = [datetime.combine(today + timedelta(days=n), time(), self.zone) for n in range(-1, 2 * _WEEK_DAYS + 3)]
        found: list[tuple[float, float]] = []
        for begin_s, end_s in sorted(one.on(day) for one in self.windows for day in days if day.weekday() in one.days):
            if found and begin_s <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], end_s)
            else:
                found.append((begin_s, end_s))
        return found


NO_QUIET_HOURS: Final = QuietHours()


def _window(entry: str) -> _Window:
    wrong = ConfigurationError(
        f"key 'quiet_hours': found {entry!r}; an entry is '08:00-18:00 Mon-Fri', '22:00-06:00 Sat,Sun', or without "
        "days for every day"
    )
    found = _ENTRY.fullmatch(entry.strip())
    if found is None:
        raise wrong
    hours = [int(found[place]) for place in range(1, 5)]
    end_hour = 0 if tuple(hours[2:]) == _MIDNIGHT else hours[2]
    try:
        begins, ends = time(hours[0], hours[1]), time(end_hour, hours[3])
    except ValueError:
        raise wrong from None
    days = frozenset(range(_WEEK_DAYS)) if found[5] is None else _days(found[5].lower())
    if days is None or (begins == ends and begins != time()):
        raise wrong
    return _Window(days, begins, ends)


def _days(text: str) -> frozenset[int] | None:
    """``mon-fri``, ``sat,sun``; None for what is neither."""
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in _DAYS or (last or first) not in _DAYS:
            return None
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        days |= {n % _WEEK_DAYS for n in range(begin, end + 1 + _WEEK_DAYS * (end < begin))}
    return frozenset(days)
