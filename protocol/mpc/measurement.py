"""Distances and other quantities of single sites, measured between the servers (docs/protocol.md 6 to 8).

With d = S x_i - w_i S g_0 shared as d_A + d_B, ||d||^2 = ||d_A||^2 + ||d_B||^2 + 2 <d_A, d_B>: local squares and one
product. Only the requester opens it.

    opens            about whom              own factor of A      of B           share of the quantity
    distances        every contributor       d_A                  d_B            ||d_side||^2 + 2 p_side
    norms            every contributor       the same, with a zero query
    pairs            all pairs of sites      (x_i - x_j)_A        (x_i - x_j)_B  as above
    inner_products   every contributor       (q_A, x_A)           (x_B, q_B)     <q_side, x_side> + p_side

p_side is this side's share of the product. Pairs as differences take n (n - 1) / 2 products; the entries of the two
matrices' product, from which the same distances follow, would take n^2 (docs/adr/0011).

A *quantity* is what a round opens about a site besides its range check: a distance, a norm, an inner product, or the
distances of pairs. Here "site" includes the requester, whose update is checked like any other.

In this order:

    prepare_all      for every site its range-check factors and those of its quantities
    masked           sent to the peer
    opening_share    with the peer's masked vector, this side's refreshed shares, sealed to the requester
    open_all         the requester adds both sides' shares
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from protocol.arithmetic.ring import MODULUS, Ring, dot, from_signed, to_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import product, sketch
from protocol.ot.session import CorrelationHalf
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.sharing import Side

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


@dataclass(frozen=True, eq=False)
class Factor:
    """One side's part of one product: the quantity's share is ``local + times * p``, p the product's share."""

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
    own = difference(first_share, second_share)
    return Factor(own, square_share(own), 2)


def inner_product_factor(side: Side, sketch_share: Ring, query_share: Ring) -> Factor:
    """The factor of <q, x>, from this side's shares: <q_A, x_B> + <x_A, q_B> is one product of twice the length.

    Shapes:   uint64[k'] twice, ring 2^64
    Raises:   MalformedMessage
    """
    require_same_length(sketch_share, query_share)
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


@dataclass(frozen=True, eq=False)
class SiteSketch:
    """One server's share of one site's sketch, before the products.

    ``query_share`` is None for the requester and where nothing is opened; all zeros where norms are.
    """

    site: str
    sketch_share: Ring = field(repr=False)
    query_share: Ring | None = field(repr=False)


@dataclass(frozen=True, eq=False)
class Operands:
    """One side's factors in the products of one site: the quantities' first, then the range check's."""

    site: str
    factors: tuple[Factor, ...] = field(repr=False)
    range_operand: Ring = field(repr=False)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the products, the quantities' first: those the correlation must have."""
        return tuple(factor.own.size for factor in self.factors) + (1,) * RANGE_PROJECTIONS


@dataclass(frozen=True, eq=False)
class OpeningShare:
    """One side's refreshed shares of what the requester opens about one site; one of ``values`` a quantity."""

    site: str
    range_shares: Ring = field(repr=False)
    values: Ring = field(repr=False)


@dataclass(frozen=True)
class OpenedSite:
    """The requester's knowledge of one site. For a site out of range nothing else is added up.

    ``distance`` is the norm where norms are opened; ``pairs`` holds the sites before it that are in range too.
    """

    site: str
    in_range: bool
    distance: float | None = None
    inner_product: float | None = None
    pairs: tuple[tuple[str, float], ...] = ()


def prepare_all(
    side: Side,
    challenge: bytes,
    sketches: Sequence[SiteSketch],
    parameters: StudyParameters,
    opens: Needs = Needs.DISTANCES,
) -> list[Operands]:
    """Compute this side's factors, locally, for all sites of a round, in their order.

    Raises:   MalformedMessage
    """
    rows = sketch.projections(challenge, parameters)
    shares = [given.sketch_share for given in sketches]
    return [
        Operands(
            site=given.site,
            factors=factors(side, opens, given.sketch_share, given.query_share, shares[:place]),
            range_operand=sketch.range_operand(side, given.sketch_share, rows, parameters),
        )
        for place, given in enumerate(sketches)
    ]


def operand_vector(operands: Operands) -> Ring:
    """All factors one after the other, in the order of ``lengths``: the quantities' first."""
    return np.concatenate((*(factor.own for factor in operands.factors), operands.range_operand))


def masked(operands: Operands, half: CorrelationHalf) -> Ring:
    """The masked factors, for the peer.

    Shapes:   -> uint64[sum(lengths)], ring 2^64
    Consumes: one correlation of the operands' lengths
    Reveals:  a uniform vector to the peer
    Raises:   ProtocolViolation, when the correlation does not fit
    """
    _require_lengths(operands, half)
    return product.mask(operand_vector(operands), half)


def opening_share(
    side: Side,
    operands: Operands,
    peer_masked: Ring,
    half: CorrelationHalf,
    zero_key: bytes,
    context: str,
    parameters: StudyParameters,
) -> OpeningShare:
    """This side's shares for the requester, refreshed with the servers' zero sharing.

    Requires: ``context`` names study, round and attempt, and is the same at both servers
    Reveals:  nothing until the requester adds the other side's
    Raises:   MalformedMessage, when the peer's vector has another length; ProtocolViolation as :func:`masked`
    """
    _require_lengths(operands, half)
    products = product.finish(operand_vector(operands), peer_masked, half, side)
    zero = product.zero_sharing(zero_key, f"{len(context)}:{context}:{operands.site}", products.size)
    if side is Side.B:
        zero = np.negative(zero)
    range_shares = sketch.range_check_shares(side, operands.range_operand, products[-RANGE_PROJECTIONS:], parameters)
    refreshed = sketch.cut(range_shares + zero[-RANGE_PROJECTIONS:], parameters)
    shares = [factor.share(int(p)) for factor, p in zip(operands.factors, products, strict=False)]
    values = np.array(shares, dtype=np.uint64) + zero[: len(shares)]
    return OpeningShare(operands.site, refreshed, values)


def open_all(
    shares_a: Sequence[OpeningShare],
    shares_b: Sequence[OpeningShare],
    numerators: Mapping[str, int],
    parameters: StudyParameters,
    opens: Needs = Needs.DISTANCES,
) -> tuple[OpenedSite, ...]:
    """Add both sides' shares, at the requester: which sites pass, and what else is opened about those that do.

    Reveals:  to the requester of every site the range check's result, which says how large its projections are if it
              fails; of an honest site besides what ``opens`` says and nothing else
    Raises:   MalformedMessage, when the shares do not belong together; ProtocolViolation, when a distance is
              impossible
    """
    pairs = list(zip(shares_a, shares_b, strict=True))
    passed = [_passes(a, b, parameters) for a, b in pairs]
    opened = []
    for place, ((a, b), in_range) in enumerate(zip(pairs, passed, strict=True)):
        site = OpenedSite(a.site, in_range)
        if in_range and opens is Needs.PAIRS:
            before = [(other.site, i) for i, (other, _) in enumerate(pairs[:place]) if passed[i]]
            near = tuple((name, _distance(a, b, i, parameters.weight_grid, parameters)) for name, i in before)
            site = replace(site, pairs=near)
        elif in_range and a.values.size and opens is Needs.INNER_PRODUCTS:
            product_ = open_inner_product(int(a.values[0]), int(b.values[0]), numerators[a.site], parameters)
            site = replace(site, inner_product=product_)
        elif in_range and a.values.size:
            site = replace(site, distance=_distance(a, b, 0, numerators[a.site], parameters))
        opened.append(site)
    return tuple(opened)


def _distance(a: OpeningShare, b: OpeningShare, i: int, numerator: int, parameters: StudyParameters) -> float:
    return open_distance(int(a.values[i]), int(b.values[i]), numerator, parameters)


def _passes(share_a: OpeningShare, share_b: OpeningShare, parameters: StudyParameters) -> bool:
    """Return whether a site passes its range check. Raises: MalformedMessage, when the shares do not belong together"""
    if share_a.site != share_b.site or share_a.values.shape != share_b.values.shape:
        raise MalformedMessage(
            f"the servers' shares are of {share_a.site!r} with {share_a.values.size} values and {share_b.site!r} with "
            f"{share_b.values.size}; match them by site"
        )
    shapes = (share_a.range_shares.shape, share_b.range_shares.shape)
    if shapes != ((RANGE_PROJECTIONS,),) * 2:
        raise MalformedMessage(f"a site has {RANGE_PROJECTIONS} range shares from each server, found {shapes}")
    return sketch.passed_range_check(share_a.range_shares + share_b.range_shares, parameters)


def _require_lengths(operands: Operands, half: CorrelationHalf) -> None:
    if half.lengths != operands.lengths:
        raise ProtocolViolation(
            f"the correlation for {operands.site!r} has {len(half.lengths)} products of {sum(half.lengths)} elements "
            f"in all, but {len(operands.lengths)} of {sum(operands.lengths)} are needed; make one for this round"
        )
