"""Whole rounds over two real server processes: the opened sum and distances are exact."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from protocol.arithmetic.ring import Ring
from protocol.sharing import Side
from protocol.wire.messages import RoundState
from tests.integration.fake_agents import FakeSites, make_study
from tests.integration.federation import Federation, start_servers

SITES = ["hospital-0", "hospital-1", "hospital-2", "hospital-3"]
D = 20
GRID = 4
NUMERATORS = {"hospital-1": 4, "hospital-2": 3, "hospital-3": 1}


def updates(seed: int, sites: list[str] = SITES, dimension: int = D) -> dict[str, Ring]:
    """Encoded, weighted updates well inside the range."""
    rng = np.random.default_rng(seed)
    return {site: rng.integers(-(2**17), 2**17, dimension).astype(np.int64).view(np.uint64) for site in sites}


def exact_distances(x: dict[str, Ring], requester: str, numerators: dict[str, int], scale: float) -> dict[str, float]:
    """||x_i - round(w_i x_0)|| / scale / w_i, in integers up to the root."""
    own = [int(v) for v in x[requester].view(np.int64)]
    result = {}
    for site, numerator in numerators.items():
        asked = [(2 * numerator * v + GRID) // (2 * GRID) for v in own]
        squared = sum((int(a) - b) ** 2 for a, b in zip(x[site].view(np.int64), asked, strict=True))
        result[site] = squared**0.5 / scale / (numerator / GRID)
    return result


def run_round(sites: FakeSites, number: int, x: dict[str, Ring], *, measured: bool = True) -> float:
    """One round to its release; -> seconds from the last receipt to the release."""
    announcement = sites.announcement(number, measured=measured)
    sites.announce(announcement)
    sealed = {site: sites.seal_contribution(site, x[site], announcement) for site in x}
    for site in x:
        sites.contribute(site, sealed[site], number)
    begun = time.perf_counter()
    current = sites.wait_transcript(Side.A, number)
    if measured:
        sites.send_queries(current, x[sites.requester], NUMERATORS)
    for side in Side:
        current = sites.wait_round(side, number, RoundState.MEASURED)
    opened = sites.openings(current, NUMERATORS)
    assert all(site.in_range for site in opened.values())
    if measured:
        found = {site: o.distance for site, o in opened.items() if o.distance is not None}
        expected = exact_distances(x, sites.requester, NUMERATORS, sites.study.parameters.scale)
        # Both are one square root and two divisions of the same integer: equal up to a few roundings of 2^-53.
        assert found == pytest.approx(expected, rel=1e-15)
    sites.release(current)
    for side in Side:
        sites.wait_round(side, number, RoundState.RELEASED)
    return time.perf_counter() - begun


def expected_sum(x: dict[str, Ring]) -> Ring:
    total = np.zeros(D, dtype=np.uint64)
    for vector in x.values():
        total += vector
    return total


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with start_servers(tmp_path_factory.mktemp("federation"), SITES) as running:
        yield running


@pytest.fixture(scope="module")
def sites(federation: Federation) -> Iterator[FakeSites]:
    made = FakeSites(federation, make_study(federation, D))
    made.create()
    made.ready()
    yield made
    made.close()


def test_rounds_release_the_exact_sum(sites: FakeSites) -> None:
    for number in (1, 2, 3, 4):
        x = updates(number)
        seconds = run_round(sites, number, x, measured=number != 3)
        print(f"round {number}: {seconds * 1000:.0f} ms from last receipt to release")
        for site in SITES:
            assert np.array_equal(sites.output(site, number), expected_sum(x))
