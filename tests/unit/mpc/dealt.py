"""Correlations and shares dealt by the test itself, from numpy's generator and Python's integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from protocol.arithmetic.ring import Ring
from protocol.mpc import measurement
from protocol.ot.session import CorrelationHalf
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import Side


def uniform(rng: np.random.Generator, n: int) -> Ring:
    return rng.integers(0, 2**64, n, dtype=np.uint64)


def ring(values) -> Ring:
    """Python integers of any size and sign -> ring elements."""
    return np.array([int(value) % 2**64 for value in values], dtype=np.uint64)


def share(rng: np.random.Generator, x: Ring) -> tuple[Ring, Ring]:
    a = uniform(rng, x.size)
    return a, x - a


def correlation(rng: np.random.Generator, lengths: tuple[int, ...]) -> tuple[CorrelationHalf, CorrelationHalf]:
    a, b, c_a = uniform(rng, sum(lengths)), uniform(rng, sum(lengths)), uniform(rng, len(lengths))
    ends = np.cumsum(lengths)
    products = [
        sum(int(x) * int(y) for x, y in zip(a[end - n : end], b[end - n : end], strict=True))
        for n, end in zip(lengths, ends, strict=True)
    ]
    return CorrelationHalf(lengths, a, c_a), CorrelationHalf(lengths, b, ring(products) - c_a)


def measure(
    rng: np.random.Generator, challenge: bytes, sketch: Ring, query: Ring | None, parameters: StudyParameters
) -> tuple[measurement.OpeningShare, measurement.OpeningShare]:
    """Both servers' part of a measured round for one site, on fresh shares of its sketch."""
    opening = measure_all(rng, challenge, {"site-1": sketch}, {"site-1": query}, parameters, Needs.DISTANCES)
    return opening[Side.A][0], opening[Side.B][0]


def measure_all(
    rng: np.random.Generator,
    challenge: bytes,
    sketches: Mapping[str, Ring],
    queries: Mapping[str, Ring | None],
    parameters: StudyParameters,
    opens: Needs,
) -> dict[Side, list[measurement.OpeningShare]]:
    """Both servers' part of a whole measured round, on fresh shares of every sketch and query."""
    given: dict[Side, list[measurement.SiteSketch]] = {side: [] for side in Side}
    for site, sketch in sketches.items():
        query = queries.get(site)
        asked = (None, None) if query is None else share(rng, query)
        for side, own, of_query in zip(Side, share(rng, sketch), asked, strict=True):
            given[side].append(measurement.SiteSketch(site, own, of_query))
    operands = {side: measurement.prepare_all(side, challenge, given[side], parameters, opens=opens) for side in Side}
    zero_key = rng.bytes(32)
    opening: dict[Side, list[measurement.OpeningShare]] = {side: [] for side in Side}
    for place in range(len(sketches)):
        mine = {side: operands[side][place] for side in Side}
        halves = dict(zip(Side, correlation(rng, mine[Side.A].lengths), strict=True))
        sent = {side: measurement.masked(mine[side], halves[side]) for side in Side}
        for side in Side:
            opening[side].append(
                measurement.opening_share(
                    side, mine[side], sent[side.other], halves[side], zero_key, "study/round 1/attempt 1", parameters
                )
            )
    return opening


def open_site(
    a: measurement.OpeningShare, b: measurement.OpeningShare, numerator: int, parameters: StudyParameters
) -> measurement.OpenedSite:
    return measurement.open_all([a], [b], {a.site: numerator}, parameters)[0]
