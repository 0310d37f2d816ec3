"""Quantities opened about single sites, as factors of inner products between the servers (docs/protocol.md 8).

    opens            about whom              own factor of A      of B           share of the quantity
    distances        every contributor       d_A                  d_B            ||d_side||^2 + 2 z_side
    norms            every contributor       the same, with a zero query
    pairs            all pairs of sites      (x_i - x_j)_A        (x_i - x_j)_B  as above
    inner_products   every contributor       (q_A, x_A)           (x_B, q_B)     <q_side, x_side> + z_side

z is this side's share of the product. Pairs as differences take n (n - 1) / 2 products; the entries of the two
matrices' product, from which the same distances follow, would take n^2 (docs/adr/0011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from protocol.arithmetic.ring import MODULUS, Ring, dot, to_signed
from protocol.errors import ProtocolViolation
from protocol.mpc import distance
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.sharing import Side


@dataclass(frozen=True, eq=False)
class Factor:
    """One side's part of one product: the quantity's share is ``local + times * z``, z the product's share."""

    own: Ring = field(repr=False)
    local: int = field(repr=False)
    times: int

    def share(self, product_share: int) -> int:
        """This side's share of the quantity, an integer mod 2^64 with 2f fraction bits."""
        return (self.local + self.times * product_share) % MODULUS


def distance_factor(first_share: Ring, second_share: Ring) -> Factor:
    """The factor of ||x - y||^2, from this side's shares of x and y.

    Shapes:   uint64[k'] twice, ring 2^64
    Raises:   MalformedMessage
    """
    own = distance.difference(first_share, second_share)
    return Factor(own, distance.square_share(own), 2)


def inner_product_factor(side: Side, sketch_share: Ring, query_share: Ring) -> Factor:
    """The factor of <q, x>, from this side's shares: <q_A, x_B> + <x_A, q_B> is one product of twice the length.

    Shapes:   uint64[k'] twice, ring 2^64
    Raises:   MalformedMessage
    """
    distance.require_same_length(sketch_share, query_share)
    both = (query_share, sketch_share) if side is Side.A else (sketch_share, query_share)
    return Factor(np.concatenate(both), dot(query_share, sketch_share), 1)


def factors(
    side: Side, opens: Needs, sketch_share: Ring, query_share: Ring | None, earlier: Sequence[Ring]
) -> tuple[Factor, ...]:
    """One site's factors; ``earlier`` are the sketch shares of the agreed sites before it.

    ``query_share`` is None for the requester and where nothing is opened, all zeros for a norm.
    """
    if opens is Needs.PAIRS:
        return tuple(distance_factor(other, sketch_share) for other in earlier)
    if query_share is None:
        return ()
    if opens is Needs.INNER_PRODUCTS:
        return (inner_product_factor(side, sketch_share, query_share),)
    return (distance_factor(sketch_share, query_share),)


def value_count(opens: Needs, place: int, is_requester: bool) -> int:
    """Quantities opened about the site at ``place`` (from 0) of the agreed set."""
    if opens is Needs.PAIRS:
        return place
    return int(opens is not Needs.NOTHING and not is_requester)


def product_lengths(opens: Needs, place: int, is_requester: bool, parameters: StudyParameters) -> tuple[int, ...]:
    """Lengths of the products that the site at ``place`` consumes: its quantities', then one a projection."""
    length = parameters.sketched_length * (2 if opens is Needs.INNER_PRODUCTS else 1)
    return (length,) * value_count(opens, place, is_requester) + (1,) * RANGE_PROJECTIONS


def open_inner_product(share_a: int, share_b: int, numerator: int, parameters: StudyParameters) -> float:
    """<g_i, v>, or its sketched estimate, from both shares of <w_i g_i, v> in ring units.

    Requires: the range check passed, so the integer lies between -2^63 and 2^63 (docs/protocol.md 6)
    Reveals:  the inner product, to the requester that calls this
    Raises:   ProtocolViolation, when the weight is outside (0, 1]
    """
    if not 0 < numerator <= parameters.weight_grid:
        raise ProtocolViolation(f"a listed weight's numerator lies in 1..{parameters.weight_grid}, found {numerator}")
    opened = int(to_signed(np.array([(share_a + share_b) % MODULUS], dtype=np.uint64))[0])
    weight = numerator / parameters.weight_grid
    return math.ldexp(opened / parameters.sketch_blocks / weight, -2 * parameters.fraction_bits)
