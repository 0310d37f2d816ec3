"""Share of the squared distance between one contributor and the requester (docs/protocol.md 8).

With d = S x_i - w_i S g_0 shared as d_A + d_B, ||d||^2 = ||d_A||^2 + ||d_B||^2 + 2 <d_A, d_B>: local squares and one
product. Only the requester opens it.
"""

from __future__ import annotations

import math

import numpy as np

from protocol.arithmetic.ring import MODULUS, Ring, dot, from_signed, to_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.parameters import StudyParameters

_LIMIT = 1 << 63


def distance_query(sketch_own: Ring, numerator: int, grid: int) -> Ring:
    """w S g_0 for w = numerator / grid, from the requester's own sketch; a half rounds up.

    Computed in integers, so that it is the same everywhere. The rounding moves no entry by more than half a ring
    unit, so ||d|| by at most sqrt(k') / 2. A numerator of 0 makes the distance a norm.

    Shapes:   uint64[k'] -> uint64[k'], ring 2^64
    Raises:   ProtocolViolation, when the weight is outside [0, 1]
    """
    if not 0 <= numerator <= grid:
        raise ProtocolViolation(f"a weight's numerator lies in 0..{grid}, found {numerator}; check the weight list")
    whole, rest = np.divmod(to_signed(sketch_own), np.int64(grid))
    rounded = (2 * numerator * rest + grid) // (2 * grid)
    return from_signed(numerator * whole + rounded)


def difference(sketch_share: Ring, query_share: Ring) -> Ring:
    """This side's share of d.

    Shapes:   uint64[k'] twice -> uint64[k'], ring 2^64
    Raises:   MalformedMessage
    """
    require_same_length(sketch_share, query_share)
    return sketch_share - query_share


def require_same_length(sketch_share: Ring, query_share: Ring) -> None:
    """MalformedMessage unless both have one shape."""
    if sketch_share.shape != query_share.shape:
        raise MalformedMessage(
            f"a query share has as many elements as a sketch share, {sketch_share.shape}, found {query_share.shape}; "
            "check the study parameters"
        )


def square_share(own_difference: Ring) -> int:
    """||d_side||^2 mod 2^64."""
    return dot(own_difference, own_difference)


def open_distance(share_a: int, share_b: int, numerator: int, parameters: StudyParameters) -> float:
    """||g_i - g_0||, or its sketched estimate, from both shares of ||d||^2.

    Requires: the range check passed, so the integer stays below 2^63 (docs/protocol.md 6)
    Reveals:  the distance, to the requester that calls this
    Raises:   ProtocolViolation, when the integer is 2^63 or more, or the weight outside (0, 1]
    """
    if not 0 < numerator <= parameters.weight_grid:
        raise ProtocolViolation(
            f"a listed weight's numerator lies in 1..{parameters.weight_grid}, found {numerator}; check the weight list"
        )
    squared = (share_a + share_b) % MODULUS
    if squared >= _LIMIT:
        raise ProtocolViolation(
            "an opened squared distance is 2^63 or more although the range check passed: "
            "a server deviated; stop the round and compare the servers' records"
        )
    return math.sqrt(squared / parameters.sketch_blocks) / parameters.scale / (numerator / parameters.weight_grid)
