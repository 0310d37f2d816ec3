"""Tell whether a request was refused because two clocks disagree, and which one to look at.

Signatures live for a minute (docs/protocol.md 3), so a site whose clock is off is refused everywhere, and a server
whose clock is off refuses everybody. A server's answer carries its time in the Date header. Nobody signed that: it is
for a person to read, and changes nothing.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

from client_agent.quiet_hours import QuietNow
from protocol.channel.signing import MAX_AGE_S, MAX_SKEW_S
from protocol.errors import MoietyError, Unavailable

_PAUSE_S: Final = 10.0
_MOST_ASKED_S: Final = 60.0
_STEP_S: Final = 1
"""A Date header has whole seconds, and the request took some time."""


class WrongClock(Unavailable):
    """Nothing gets through until a clock is set; then the agent goes on by itself."""


def pause_after(error: MoietyError, usual_s: float) -> float:
    """Return how long to wait before the next try: a clock is set by a person, quiet hours end by themselves."""
    if isinstance(error, QuietNow):
        return min(error.wait_s, _MOST_ASKED_S)
    return _PAUSE_S if isinstance(error, WrongClock) else usual_s


def asked_pause_s(retry_after: str | None, now_s: float) -> float | None:
    """Read a Retry-After header, in seconds or as a date; None where it asks for nothing that can be read.

    Nobody signed it: it is kept to at most a minute, and to no more than the time that a request is tried for.
    """
    if retry_after is None:
        return None
    text = retry_after.strip()[:64]
    if text.isascii() and text.isdigit():
        return min(float(text), _MOST_ASKED_S)
    ahead_s = _ahead(text, now_s)
    return None if ahead_s is None else min(max(-ahead_s, 0.0), _MOST_ASKED_S)


def wrong_clock(date: str | None, now_s: float, server: str) -> WrongClock | None:
    """Return the remedy when server's and machine's clocks differ by more than a signature lives; else None."""
    ahead_s = None if date is None else _ahead(date, now_s)
    if ahead_s is None or -MAX_AGE_S + _STEP_S <= ahead_s <= MAX_SKEW_S:
        return None
    how = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
    return WrongClock(
        f"this machine's clock is {how} that of server {server!r}, which takes requests up to {MAX_AGE_S} s old and "
        f"{MAX_SKEW_S} s early: compare both with a third one (NTP) and set the one that is wrong; this agent waits, "
        "and goes on by itself"
    )


def _ahead(date: str, now_s: float) -> float | None:
    """Return by how much this machine's clock is ahead of a Date header; None without one."""
    try:
        return now_s - parsedate_to_datetime(date[:64]).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None
