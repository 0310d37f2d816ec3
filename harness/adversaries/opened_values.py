"""All that a round opens to the requester about chosen vectors: both servers' functions, with dealt correlations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from harness.engine.protected_sum import correlations_from
from protocol.arithmetic.ring import MODULUS, Ring
from protocol.mpc import measurement, sketch
from protocol.mpc.measurement import SiteSketch
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import Side

_LABEL: Final = "opened values"
_CHALLENGE: Final = bytes(range(32))


@dataclass(frozen=True)
class Opened:
    """The numbers about one site, mod 2^64, and whether it is in range."""

    values: tuple[int, ...]
    in_range: bool


def opened_values(
    opens: Needs, vectors: Sequence[Ring], queries: Sequence[Ring | None], parameters: StudyParameters
) -> list[Opened]:
    """Return what both servers send the requester about each vector, with a query for it where the round takes queries.

    Shapes: uint64[dimension] each; models no longer than the sketch, so that nothing is estimated
    """
    draw = np.random.default_rng(73)

    def halved(x: Ring) -> dict[Side, Ring]:
        at_b = draw.integers(0, MODULUS, x.size, dtype=np.uint64)
        return {Side.A: x - at_b, Side.B: at_b}

    shares = [halved(x) for x in vectors]
    asked = [None if query is None else halved(query) for query in queries]
    operands = {
        side: measurement.prepare_all(
            side,
            _CHALLENGE,
            [
                SiteSketch(f"site-{i}", share[side], None if query is None else query[side])
                for i, (share, query) in enumerate(zip(shares, asked, strict=True))
            ],
            parameters,
            opens=opens,
        )
        for side in Side
    }
    halves = correlations_from("dealer", bytes(32))([one.lengths for one in operands[Side.A]], _LABEL)
    found = []
    for a, b, (half_a, half_b) in zip(operands[Side.A], operands[Side.B], zip(*halves, strict=True), strict=True):
        masked_a, masked_b = measurement.masked(a, half_a), measurement.masked(b, half_b)
        of_a = measurement.opening_share(Side.A, a, masked_b, half_a, bytes(32), _LABEL, parameters)
        of_b = measurement.opening_share(Side.B, b, masked_a, half_b, bytes(32), _LABEL, parameters)
        passed = sketch.passed_range_check(of_a.range_shares + of_b.range_shares, parameters)
        found.append(Opened(tuple(int(one) for one in of_a.values + of_b.values), passed))
    return found
