"""A server's view can be written by somebody who knows only what the servers may know (docs/protocol.md 1).

The view of one measured round, whatever it opens: its share of every update, the query shares, the peer's masked
vectors and masked sum, and commitments. The simulator gets the leakage alone: who took part, the vector length, the
agreed set. It draws everything that arrives at the server uniformly; the rest of a view, such as the server's shares of
the opening, is computed from that by the server's own code, with nothing new in it. Many rounds of both are compared by
chi-square tests of homogeneity over the bytes of each part, and over the bytes of the sums and differences of parts,
where a pad that serves twice would show. The correlations are a dealer's, with uniform halves: the oblivious transfer
that makes them has tests of its own.

False alarms: for a chi-square variable X of f degrees of freedom P(X >= f + 2 sqrt(f t) + 2 t) <= exp(-t) (Laurent and
Massart 2000). With t = ln(TESTS / 1e-7) all tests together raise a false alarm with a chance below 1e-7; the counts a
cell, 250 and more, keep the chi-square approximation's own error far from the factor of ten that is left to 1e-6.

A proof by simulation, not an attack: no classifier can be better than chance on what can be simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from harness.engine.protected_sum import correlations_from
from protocol.arithmetic.ring import Ring, Usage, derive, expand, expand_bytes, to_bytes
from protocol.channel.commitment import commitment_to
from protocol.mpc import measurement
from protocol.mpc.measurement import distance_query, product_lengths
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.release import masked_sum_chunk, sum_chunk
from protocol.sharing import Side, expand_share, split, vector_side
from tests.chunks import chunks_of

pytestmark = pytest.mark.uncounted
D, RUNS = 20, 2000
SITES = ("hospital-0", "hospital-1", "hospital-2")
PARAMETERS = StudyParameters(dimension=D, clip_norm=1.0, weight_grid=4, least_contributors=1, encoded_norm_log2=21)
CHALLENGE = bytes(range(32))
OPENS = [needs for needs in Needs if needs is not Needs.NOTHING]
COMPARISONS = len(OPENS) * len(Side) + 2
TESTS = 250
LIMIT_T = math.log(TESTS / 1e-7)
View = dict[str, bytes]
Shape = tuple[tuple[str, int], ...]
_LOUD = np.array([2**17, -(2**17)], dtype=np.int64)


def update(site: str) -> Ring:
    """The same update in every round, far from uniform: all its entries are one of two numbers."""
    pattern = np.frombuffer(derive(b"fixed", site)[:D], dtype=np.uint8) % 2
    return _LOUD[pattern].view(np.uint64)


def real_views(
    seed: bytes, opens: Needs = Needs.DISTANCES, *, reused_pad: bool = False, reused_correlation: bool = False
) -> dict[Side, View]:
    """Return both servers' views of a round, by the protocol's own functions; two flags break it on purpose."""
    shares: dict[Side, list[Ring]] = {s: [] for s in Side}
    views: dict[Side, View] = {side: {} for side in Side}
    for place, site in enumerate(SITES):
        pad = derive(seed, "share" if reused_pad else f"share {site}")
        seed_share, vector_share = split(update(site), pad)
        gets_vector = vector_side(place)
        shares[gets_vector].append(expand_share(vector_share, 0, D))
        shares[gets_vector.other].append(expand_share(seed_share, 0, D))
        sent = {gets_vector: to_bytes(vector_share.vector), gets_vector.other: seed_share.seed}
        for side, view in views.items():
            view[f"share of {site}"] = to_bytes(shares[side][-1])
            view[f"commitment of {site}"] = commitment_to(
                sent[side.other], derive(seed, f"salt {site}"), derive(seed, f"content key {site}")
            )
    queries = query_shares(seed) if opens.queried else {s: {} for s in Side}
    nothing = np.zeros(D, dtype=np.uint64) if opens.of_norms else None
    lengths = tuple(product_lengths(opens, place, place == 0, PARAMETERS) for place in range(len(SITES)))
    halves = correlations_from("dealer", derive(seed, "correlations"))(list(lengths), "round 1")
    for own, half in zip(Side, halves, strict=True):
        given = [
            measurement.SiteSketch(site, share, queries[own].get(site, nothing if place else None))
            for place, (site, share) in enumerate(zip(SITES, shares[own], strict=True))
        ]
        if reused_correlation:
            half[2].vector[D : 2 * D] = half[2].vector[:D]
        operands = measurement.prepare_all(own, CHALLENGE, given, PARAMETERS, opens=opens)
        masked = [measurement.masked(one, h) for one, h in zip(operands, half, strict=True)]
        views[own.other]["masked vectors"] = to_bytes(np.concatenate(masked))
        views[own]["correlation"] = b"".join(to_bytes(h.vector) + to_bytes(h.products) for h in half)
    for side, view in views.items():
        for site, asked in queries[side].items():
            view[f"query for {site}"] = to_bytes(asked)
        total = sum_chunk([chunks_of(s) for s in shares[side.other]], 0, D)
        view["masked sum"] = to_bytes(masked_sum_chunk(total, derive(seed, "mask"), 0))
    return views


def query_shares(seed: bytes) -> dict[Side, dict[str, Ring]]:
    asked = np.concatenate([distance_query(update(SITES[0]), 4, 4) for _ in SITES[1:]])
    stream = expand(derive(seed, "query"), Usage.QUERY, asked.size)
    both = {Side.A: stream, Side.B: asked - stream}
    return {s: {site: v[i * D : (i + 1) * D] for i, site in enumerate(SITES[1:])} for s, v in both.items()}


def simulated_view(shape: Shape, seed: bytes) -> View:
    """Draw a view from the leakage alone: names and lengths. Everything that arrives is uniform."""
    tape = expand_bytes(seed, Usage.SEEDED, sum(size for _, size in shape))
    view, at = {}, 0
    for name, size in shape:
        view[name] = tape[at : at + size]
        at += size
    return view


def joint(view: View, opens: Needs) -> View:
    """The parts, and sums and differences of parts that hold the same update, or could share a pad."""
    first, middle, last = (np.frombuffer(view[f"share of {site}"], dtype="<u8") for site in SITES)
    masked = np.frombuffer(view["masked vectors"], dtype="<u8")
    total = np.frombuffer(view["masked sum"], dtype="<u8")
    product = masked[RANGE_PROJECTIONS : RANGE_PROJECTIONS + D]
    correlation = np.frombuffer(view["correlation"], dtype="<u8")[2 * RANGE_PROJECTIONS :][:D]
    parts = {
        "two shares": (first - last).tobytes(),
        "share and masked vector": (first + product).tobytes(),
        "share and masked sum": (first + total).tobytes(),
        "correlation and masked vector": (correlation + product).tobytes(),
        "masked sum and masked vector": (total - product).tobytes(),
    }
    if opens.queried:
        asked = np.frombuffer(view[f"query for {SITES[1]}"], dtype="<u8")
        parts["share and query"] = (first - asked).tobytes()
    if opens is Needs.INNER_PRODUCTS:
        other_half = masked[RANGE_PROJECTIONS + D :][:D]
        parts["both halves of an inner product"] = (product - other_half).tobytes()
    if opens is Needs.PAIRS:
        pairs = masked[-RANGE_PROJECTIONS - 2 * D : -RANGE_PROJECTIONS]
        parts["two pairs of one site, and shares"] = (pairs[:D] - pairs[D:] + first - middle).tobytes()
    return view | parts


def statistic(left: np.ndarray, right: np.ndarray) -> float:
    """Chi-square of homogeneity between two histograms of bytes, 255 degrees of freedom."""
    both = left + right
    share = left.sum() / both.sum()
    parts = ((left, both * share), (right, both * (1 - share)))
    return float(sum(np.sum((found - expected) ** 2 / expected) for found, expected in parts))


def histograms(views: Callable[[int], dict[Side, View]], opens: Needs) -> dict[Side, dict[str, np.ndarray]]:
    counted: dict[Side, dict[str, np.ndarray]] = {}
    for run in range(RUNS):
        for side, view in views(run).items():
            cells = counted.setdefault(side, {})
            for name, part in joint(view, opens).items():
                cells.setdefault(name, np.zeros(256, dtype=np.int64))
                cells[name] += np.bincount(np.frombuffer(part, dtype=np.uint8), minlength=256)
    return counted


def different_parts(real: dict[str, np.ndarray], simulated: dict[str, np.ndarray]) -> list[str]:
    """The parts in which the two kinds of view can be told apart."""
    freedom = 255
    limit = freedom + 2 * math.sqrt(freedom * LIMIT_T) + 2 * LIMIT_T
    assert real.keys() == simulated.keys()
    assert COMPARISONS * len(real) <= TESTS
    return [name for name in real if statistic(real[name], simulated[name]) > limit]


def run_seed(kind: str, run: int) -> bytes:
    return derive(b"server view", f"{kind} {run}")


@cache
def real(opens: Needs, **broken: bool) -> dict[Side, dict[str, np.ndarray]]:
    return histograms(lambda run: real_views(run_seed("real", run), opens, **broken), opens)


def simulated(side: Side, opens: Needs) -> dict[str, np.ndarray]:
    view = real_views(bytes(32), opens)[side]
    return simulated_of(tuple(sorted((name, len(part)) for name, part in view.items())), opens)


@cache
def simulated_of(shape: Shape, opens: Needs) -> dict[str, np.ndarray]:
    """Drawn once for both servers' views of one shape: no bound above asks that the tests be independent."""
    return histograms(lambda run: {Side.A: simulated_view(shape, run_seed("simulated", run))}, opens)[Side.A]


@pytest.mark.parametrize("opens", OPENS)
@pytest.mark.parametrize("side", list(Side))
def test_a_simulator_writes_a_view_like_the_servers(side: Side, opens: Needs) -> None:
    seen = real(opens)[side]
    assert min(int(cells.min()) for cells in seen.values()) > 150
    assert different_parts(seen, simulated(side, opens)) == []


@pytest.mark.parametrize(
    ("opens", "broken", "found"),
    [
        pytest.param(Needs.DISTANCES, "reused_pad", "two shares", id="one seed for all sites' shares"),
        # The masked vectors of two pairs would differ by the difference of two updates.
        pytest.param(
            *(Needs.PAIRS, "reused_correlation", "two pairs of one site, and shares"),
            id="a correlation that serves two pairs",
        ),
    ],
)
def test_the_comparison_sees_a_protocol_that_is_broken_on_purpose(opens: Needs, broken: str, found: str) -> None:
    assert different_parts(real(opens, **{broken: True})[Side.A], simulated(Side.A, opens)) == [found]
