"""How much one opened number tells a malicious requester: 64 bits, into which several coordinates fit.

Claimed as limits in docs/threat_model.md: one such number per contributor and round where the requester queries, and
one more for every contributor on its side where pairs are opened.
"""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.ring import MODULUS, Ring, from_signed
from protocol.mpc import measurement, range_check
from protocol.mpc.measurement import SiteSketch
from protocol.mpc.ot.half import CorrelationHalf, segment_sums
from protocol.mpc.quantity import value_count
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.sharing import Side

PARAMETERS = StudyParameters(dimension=12, clip_norm=1.0, least_contributors=3)
RNG = np.random.default_rng(73)
VICTIM = RNG.integers(-(2**19), 2**19, 12)
"""An update of at most E, every coordinate in 20 bits."""
PLACES = (4, 7, 9)
DIGIT = 21
CHALLENGE = bytes(range(32))


def packing() -> Ring:
    """1, 2^21 and 2^42 at three coordinates: their inner product with the victim holds all three as digits."""
    vector = np.zeros(12, dtype=np.int64)
    vector[list(PLACES)] = 1, 2**DIGIT, 2 ** (2 * DIGIT)
    return from_signed(vector)


def digits(opened: int) -> list[int]:
    """The signed digits of base 2^21, lowest first."""
    found = []
    for _ in PLACES:
        digit = (opened + 2 ** (DIGIT - 1)) % 2**DIGIT - 2 ** (DIGIT - 1)
        found.append(digit)
        opened = (opened - digit) >> DIGIT
    return found


def halves(lengths: tuple[int, ...]) -> tuple[CorrelationHalf, CorrelationHalf]:
    """A dealer's correlation."""
    total = sum(lengths)
    a, b = (RNG.integers(0, MODULUS, total, dtype=np.uint64) for _ in Side)
    products_a = RNG.integers(0, MODULUS, len(lengths), dtype=np.uint64)
    products_b = segment_sums([lengths], a * b) - products_a
    return CorrelationHalf(lengths, a, products_a), CorrelationHalf(lengths, b, products_b)


def opened_values(opens: Needs, vectors: list[Ring], queries: list[Ring | None]) -> tuple[list[list[int]], list[bool]]:
    """All that both servers send the requester about each site: the numbers mod 2^64, and whether it is in range."""
    shares = {Side.B: [RNG.integers(0, MODULUS, 12, dtype=np.uint64) for _ in vectors]}
    shares[Side.A] = [x - b for x, b in zip(vectors, shares[Side.B], strict=True)]
    asked = {Side.B: [None if q is None else RNG.integers(0, MODULUS, 12, dtype=np.uint64) for q in queries]}
    asked[Side.A] = [None if q is None or b is None else q - b for q, b in zip(queries, asked[Side.B], strict=True)]
    operands = {
        side: measurement.prepare_all(
            side,
            CHALLENGE,
            [SiteSketch(f"site-{i}", *pair) for i, pair in enumerate(zip(shares[side], asked[side], strict=True))],
            PARAMETERS,
            opens=opens,
        )
        for side in Side
    }
    values, in_range = [], []
    for a, b in zip(operands[Side.A], operands[Side.B], strict=True):
        half_a, half_b = halves(a.lengths)
        masked_a, masked_b = measurement.masked(a, half_a), measurement.masked(b, half_b)
        share_a = measurement.opening_share(Side.A, a, masked_b, half_a, bytes(32), "round", PARAMETERS)
        share_b = measurement.opening_share(Side.B, b, masked_a, half_b, bytes(32), "round", PARAMETERS)
        values.append([int(one) for one in share_a.values + share_b.values])
        in_range.append(_passes(share_a, share_b))
    return values, in_range


def _passes(a: measurement.OpeningShare, b: measurement.OpeningShare) -> bool:
    return range_check.passed(a.range_shares + b.range_shares, PARAMETERS)


def test_one_inner_product_tells_three_coordinates_of_a_small_model() -> None:
    values, in_range = opened_values(Needs.INNER_PRODUCTS, [from_signed(VICTIM)], [packing()])
    assert in_range == [True]
    assert digits(values[0][0]) == [VICTIM[place] for place in PLACES]


def test_a_pair_with_an_accomplice_out_of_range_tells_three_coordinates() -> None:
    """The requester's own vector is zero, so its pair with the victim is ||x||^2, which it takes out of the other."""
    own, accomplice = np.zeros(12, dtype=np.uint64), packing()
    values, in_range = opened_values(Needs.PAIRS, [own, accomplice, from_signed(VICTIM)], [None] * 3)
    assert in_range == [True, False, True]
    with_own, with_accomplice = values[2]
    square = sum(int(one) ** 2 for one in (1, 2**DIGIT, 2 ** (2 * DIGIT)))
    twice = (with_own + square - with_accomplice) % MODULUS
    assert digits((twice // 2 + 2**62) % 2**63 - 2**62) == [VICTIM[place] for place in PLACES]


@pytest.mark.parametrize(
    ("opens", "numbers"),
    [
        (Needs.NOTHING, 0),
        (Needs.NORMS, 1),
        (Needs.DISTANCES, 1),
        (Needs.INNER_PRODUCTS, 1),
        (Needs.PAIRS, 3),
    ],
)
def test_so_many_numbers_are_opened_about_a_site_and_no_more(opens: Needs, numbers: int) -> None:
    """The last of four agreed sites; a pair's number is about both its sites."""
    assert value_count(opens, place=3, is_requester=False) == numbers
    queries: list[Ring | None] = [None, *[None if opens in (Needs.NOTHING, Needs.PAIRS) else packing()] * 3]
    values, _ = opened_values(opens, [from_signed(VICTIM)] * 4, queries)
    assert len(values[3]) == numbers


def test_every_opened_share_is_refreshed_alone() -> None:
    """Shares of one site, of its range check and its values, are moved by different elements of the zero sharing."""
    zeros = [
        np.concatenate([opening.values, opening.range_shares])
        for opening in (
            measurement.opening_share(
                Side.A,
                operands,
                np.zeros(sum(operands.lengths), dtype=np.uint64),
                CorrelationHalf(
                    operands.lengths,
                    np.zeros(sum(operands.lengths), dtype=np.uint64),
                    np.zeros(len(operands.lengths), dtype=np.uint64),
                ),
                b"z" * 32,
                "round",
                PARAMETERS,
            )
            for operands in measurement.prepare_all(
                Side.A,
                CHALLENGE,
                [SiteSketch(f"site-{i}", np.zeros(12, dtype=np.uint64), None) for i in range(4)],
                PARAMETERS,
                opens=Needs.PAIRS,
            )
        )
    ]
    moved = np.concatenate(zeros)
    assert moved.size == 3 + 2 + 1 + 4 * RANGE_PROJECTIONS
    # With nothing shared at all, what is left is the zero sharing; 38 bits of a range share are what is kept of it.
    assert len(np.unique(moved)) == moved.size
