"""Small tables of a few sites, and the same protection and sums once more in slow, plain Python."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from protocol.summary.layout import Categories, Layout, Numeric
from protocol.summary.protection import Codes, Numbers, Protection

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


def slow_vector(layout: Layout, columns: Sequence[Numbers | Codes], by: Protection) -> list[int]:
    """The whole vector without numpy, of a layout without second moments."""
    found: list[int] = []
    for column, values in zip(layout.columns, columns, strict=True):
        rows = [float(value) for value in values]
        part = _slow_numbers(column, rows, layout, by) if isinstance(column, Numeric) else _slow_names(column, rows, by)
        found += part
    return found


def _slow_numbers(column: Numeric, rows: list[float], layout: Layout, by: Protection) -> list[int]:
    present = [not math.isnan(value) for value in rows]
    units = [-9.0 if math.isnan(one) else max(-1.0, min(1.0, (one - column.middle) / column.half)) for one in rows]
    if sum(present) < by.least_examples:
        return [0] * (4 + layout.bins)
    everybody = slow_count([True] * len(rows), by)
    places = [min(layout.bins - 1, math.floor((unit + 1) / 2 * layout.bins)) for unit in units]
    missing = [not there for there in present]
    if len({unit for unit in units if -1 < unit < 1}) >= by.least_examples:
        count, missed = slow_parts([present, missing], by, everybody)
        bins = slow_parts([[place == at for place in places] for at in range(layout.bins)], by, count)
        sums = []
        for power, grid in ((1, Fraction(layout.rounded_to, 2)), (2, Fraction(layout.rounded_to, 4))):
            mean = math.fsum(unit**power for unit in units if unit > -9) / sum(present)
            sums.append(float(slow_total(count * mean, present, by, grid)))
    else:
        values = sorted(unit for unit in set(units) if unit > -9 and units.count(unit) >= by.least_examples)
        *counts, missed = slow_parts([*([unit == value for unit in units] for value in values), missing], by, everybody)
        bins = [0] * layout.bins
        for value, each in zip(values, counts, strict=True):
            bins[min(layout.bins - 1, math.floor((value + 1) / 2 * layout.bins))] += each
        count = sum(counts)
        sums = [sum(each * value**power for value, each in zip(values, counts, strict=True)) for power in (1, 2)]
    return [count // 5, missed // 5, *(round(layout.resolution * one) for one in sums), *(one // 5 for one in bins)]


def _slow_names(column: Categories, codes: list[float], by: Protection) -> list[int]:
    if sum(code >= 0 for code in codes) < by.least_examples:
        return [0] * (2 + len(column.names))
    common = [
        name != column.other and codes.count(place) >= by.least_examples for place, name in enumerate(column.names)
    ]
    cells = [[common[place] and code == place for code in codes] for place in range(len(column.names))]
    others = [code >= 0 and not common[int(code)] for code in codes]
    cells += [[sum(others) >= by.least_examples and other for other in others], [code < 0 for code in codes]]
    *counts, missed = slow_parts(cells, by, slow_count([True] * len(codes), by))
    return [count // 5 for count in (missed, *counts)]


def slow_parts(cells: list[list[bool]], by: Protection, most: int) -> list[int]:
    """Each cell's part of the rounded counts of all cells up to it."""
    upto = [0]
    for last in range(len(cells)):
        below = [any(cell[at] for cell in cells[: last + 1]) for at in range(len(cells[0]))]
        upto.append(max(upto[-1], min(most, slow_count(below, by))))
    return [after - before for before, after in itertools.pairwise(upto)]


def slow_total(value: float, rows: list[bool], by: Protection, grid: Fraction) -> Fraction:
    """The keyed rounding of a sum, in fractions."""
    name = _slow_name(rows) + f" {round(value * 1048576)}".encode() + bytes(1)
    drawn = Fraction(int.from_bytes(hmac.new(by.key, name, hashlib.sha256).digest(), "big"), 1 << 256)
    below = Fraction(value) // grid
    return (below + 1 if drawn < Fraction(value) / grid - below else below) * grid


def slow_count(rows: list[bool], by: Protection) -> int:
    """The keyed rounding, bit by bit."""
    drawn = int.from_bytes(hmac.new(by.key, _slow_name(rows), hashlib.sha256).digest(), "big") % by.rounded_to
    low = sum(rows) - sum(rows) % by.rounded_to
    return low + by.rounded_to if drawn < sum(rows) - low else low


def _slow_name(rows: list[bool]) -> bytes:
    places = bytearray((len(rows) + 7) // 8)
    for at, counted in enumerate(rows):
        if counted:
            places[at // 8] |= 128 >> at % 8
    name = bytes(places)
    while name.endswith(b"\0"):
        name = name[:-1]
    return name
