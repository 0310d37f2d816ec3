"""Small tables of a few sites, and the same protection and sums once more in slow, plain Python."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

from protocol.summary.layout import Categories, Layout, Numeric
from protocol.summary.protect import Codes, Numbers, Protection

AGE, FLAG, STAGE = Numeric("age", 0.0, 100.0), Numeric("flag", 0.0, 1.0), Categories("stage", ("I", "II", "III"), "III")
LAYOUT = Layout((AGE, FLAG, STAGE), bins=10, most_rows=1000)


def protection(site: int = 0, least: int = 10) -> Protection:
    return Protection(hashlib.sha256(f"site {site}".encode()).digest(), least, 5)


def table(site: int, rows: int = 120) -> tuple[Numbers, Numbers, Codes]:
    """Age, a flag of zeros and ones, a stage; some of each are missing."""
    rng = np.random.default_rng(site)
    age = rng.normal(50 + 5 * site, 12, rows)
    age[rng.random(rows) < 0.15] = np.nan
    flag = (rng.random(rows) < 0.3).astype(np.float64)
    return age, flag, rng.integers(-1, 3, rows)


def slow_count(rows: list[bool], by: Protection) -> int:
    """The keyed rounding, bit by bit."""
    places = bytearray((len(rows) + 7) // 8)
    for at, counted in enumerate(rows):
        if counted:
            places[at // 8] |= 128 >> at % 8
    name = bytes(places)
    while name.endswith(b"\0"):
        name = name[:-1]
    drawn = int.from_bytes(hmac.new(by.key, name, hashlib.sha256).digest(), "big") % by.rounded_to
    low = sum(rows) - sum(rows) % by.rounded_to
    return low + by.rounded_to if drawn < sum(rows) - low else low
