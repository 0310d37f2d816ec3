"""How much one opened number tells a malicious requester: 64 bits, into which several coordinates fit.

Claimed as limits in docs/threat_model.md, where attacks ``query-of-three-digits`` and ``pair-of-three-digits`` read
them: one such number per contributor and round where the requester queries, and one more for every contributor on its
side where pairs are opened.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.adversaries.opened_values import opened_values
from protocol.arithmetic.ring import Ring, from_signed
from protocol.mpc import measurement
from protocol.mpc.measurement import SiteSketch, value_count
from protocol.ot.session import CorrelationHalf
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
    opened = opened_values(opens, [from_signed(VICTIM)] * 4, queries, PARAMETERS)
    assert len(opened[3].values) == numbers


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
