"""A whole measured round in protocol/ and in the slow reference, bit for bit, whatever it opens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mpc import measurement
from protocol.mpc.product import dealer_corrections, dealer_half_a, dealer_half_b
from protocol.mpc.sketch import sketch_shares
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import Side, chunk_source, split
from tests.reference import measuring, product
from tests.reference import range_check as slow_range
from tests.reference import ring as slow
from tests.reference import sketch as slow_sketch

from .drawn import EXACTLY_AGAIN, elements, ring, seeds, study

pytestmark = pytest.mark.uncounted
K, GRID, CONTEXT = 2048, 32, "round 1"
SITES = ("requester", "site 1", "site 2")


@dataclass(frozen=True)
class Round:
    """A drawn round: every update in ring units, the requester's first."""

    opens: Needs
    challenge: bytes
    number: int
    updates: list[list[int]]
    numerator: int

    @property
    def parameters(self) -> StudyParameters:
        return study(len(self.updates[0]))

    @property
    def query_numerator(self) -> int:
        """The probe of an inner product goes unweighted, a norm is the distance from nothing."""
        return {Needs.DISTANCES: self.numerator, Needs.INNER_PRODUCTS: GRID}.get(self.opens, 0)

    def key(self, label: int) -> bytes:
        return self.number.to_bytes(31, "big") + bytes([label])

    def queries(self) -> measuring.Shares | None:
        """The requester's query for any of the other sites; None where nothing is asked about single sites."""
        if self.opens in (Needs.NOTHING, Needs.PAIRS):
            return None
        asked = product.query(slow_sketch.sketch(self.challenge, self.updates[0], K), self.query_numerator, GRID)
        at_a = slow.expand(self.key(50), "QUERY", len(asked))
        return at_a, slow.subtract(asked, at_a)

    def correlation_seeds(self, place: int) -> tuple[bytes, bytes]:
        return self.key(100 + place), self.key(150 + place)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Three sites, honest ones of all sizes, and one of them perhaps with some entries of its choice."""
    number, dimension = draw(st.integers(0, 2**60)), draw(st.sampled_from([3, 40, K + 1]))
    updates = []
    for place in range(len(SITES)):
        size = draw(st.sampled_from([0, 1, 2**10, 2**14, 2**20]))
        stream = slow.expand(number.to_bytes(31, "big") + bytes([200 + place]), "SEEDED", dimension)
        updates.append([word % (2 * size + 1) - size for word in stream])
    hostile = draw(st.integers(1, len(SITES) - 1))
    for place, value in draw(st.lists(st.tuples(st.integers(0, 2**20), elements), max_size=2)):
        updates[hostile][place % dimension] += value
    return Round(
        opens=draw(st.sampled_from(list(Needs))),
        challenge=draw(seeds),
        number=number,
        updates=[[v % 2**64 for v in x] for x in updates],
        numerator=draw(st.integers(1, GRID)),
    )


def by_the_reference(drawn: Round) -> list[tuple[measuring.Messages, bool]]:
    """Every site's messages, and whether it is in range."""
    identity = len(drawn.updates[0]) <= K
    h = slow_range.range_bits(21, identity)
    rows = slow_range.projections(drawn.challenge, min(len(drawn.updates[0]), K))
    done: list[tuple[measuring.Messages, bool]] = []
    earlier: list[measuring.Shares] = []
    for place, x in enumerate(drawn.updates):
        seed = drawn.key(place)
        both = (slow.expand(seed, "SHARE", len(x)), slow.split(x, seed))
        sketch = (slow_sketch.sketch(drawn.challenge, both[0], K), slow_sketch.sketch(drawn.challenge, both[1], K))
        query = drawn.queries() if place else None
        messages = measuring.measured_site(
            drawn.opens.value,
            sketch,
            query,
            earlier,
            rows,
            h,
            drawn.correlation_seeds(place),
            drawn.key(255),
            f"{len(CONTEXT)}:{CONTEXT}:{SITES[place]}",
        )
        in_range = slow_range.passed(slow_range.opened(*messages.range_shares, h))
        assert in_range is slow_range.verdict(*sketch, rows, h)
        done.append((messages, in_range))
        earlier.append(sketch)
    return done


def by_the_protocol(
    drawn: Round, expected: list[tuple[measuring.Messages, bool]]
) -> tuple[measurement.OpenedSite, ...]:
    """The servers' steps one after the other, each against the reference; -> what the requester opens."""
    parameters, queries = drawn.parameters, drawn.queries()
    operands: dict[Side, list[measurement.Operands]] = {}
    for i, side in enumerate(Side):
        sources = [chunk_source(split(ring(x), drawn.key(n))[i]) for n, x in enumerate(drawn.updates)]
        shares = sketch_shares(drawn.challenge, sources, parameters, chunk=1024)
        query = None if queries is None else ring(queries[i])
        given_ = [
            measurement.SiteSketch(site, share, query if place else None)
            for place, (site, share) in enumerate(zip(SITES, shares, strict=True))
        ]
        operands[side] = measurement.prepare_all(side, drawn.challenge, given_, parameters, drawn.opens)
    opening: dict[Side, list[measurement.OpeningShare]] = {side: [] for side in Side}
    for place, (messages, _) in enumerate(expected):
        own = [operands[side][place] for side in Side]
        assert [measurement.operand_vector(o).tolist() for o in own] == list(messages.operands)
        first, second = drawn.correlation_seeds(place)
        lengths = own[0].lengths
        halves = [
            dealer_half_a(first, lengths),
            dealer_half_b(second, dealer_corrections(first, second, lengths), lengths),
        ]
        sent = [measurement.masked(o, half) for o, half in zip(own, halves, strict=True)]
        assert [x.tolist() for x in sent] == list(messages.masked)
        for i, side in enumerate(Side):
            share = measurement.opening_share(side, own[i], sent[1 - i], halves[i], drawn.key(255), CONTEXT, parameters)
            assert share.range_shares.tolist() == messages.range_shares[i]
            assert share.values.tolist() == messages.values[i]
            opening[side].append(share)
    numerators = dict.fromkeys(SITES, drawn.numerator)
    return measurement.open_all(opening[Side.A], opening[Side.B], numerators, parameters, drawn.opens)


@given(drawn=rounds())
@EXACTLY_AGAIN
def test_a_measured_round(drawn):
    """Every message of both servers about every site, honest or not, and what the requester opens."""
    expected = by_the_reference(drawn)
    opened = by_the_protocol(drawn, expected)
    blocks = 1 if drawn.parameters.exact_distances else 4
    in_range = [passed for _, passed in expected]
    assert [site.in_range for site in opened] == in_range
    for place, (site, (messages, passed)) in enumerate(zip(opened, expected, strict=True)):
        pairs, single = drawn.opens is Needs.PAIRS, drawn.opens not in (Needs.NOTHING, Needs.PAIRS)
        values = list(zip(*messages.values, strict=True))
        near = [i for i in range(place) if in_range[i]] if pairs and passed else []
        assert [name for name, _ in site.pairs] == [SITES[i] for i in near]
        # Five correctly rounded float64 steps (integer, root, scale, weight, quotient); the expected value has one.
        for (_, found), i in zip(site.pairs, near, strict=True):
            exact = product.open_distance(*values[i], GRID, GRID, blocks, 20)
            assert math.isclose(found, exact, rel_tol=6 * 2.0**-53, abs_tol=0)
        measured = {Needs.INNER_PRODUCTS: site.inner_product}.get(drawn.opens, site.distance)
        assert (measured is not None) is (single and passed and place > 0)
        if measured is not None:
            of = product.open_inner_product if drawn.opens is Needs.INNER_PRODUCTS else product.open_distance
            exact = of(*values[0], drawn.numerator, GRID, blocks, 20)
            assert math.isclose(measured, exact, rel_tol=6 * 2.0**-53, abs_tol=0)
        assert site.distance is None or site.inner_product is None
