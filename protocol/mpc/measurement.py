"""One server's part of a measured round, step by step; the requester's opening at the end (docs/protocol.md 6 to 8).

1. :func:`prepare_all`, for every contributor: its range-check factors and those of what the round opens.
2. :func:`masked`: sent to the peer.
3. :func:`opening_share`: with the peer's masked vector, this side's refreshed shares, sealed to the requester.
4. :func:`open_all`: the requester adds both sides' shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from protocol.arithmetic.kernels import NUMBA, Kernels
from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import distance, product, range_check
from protocol.mpc.ot.half import CorrelationHalf
from protocol.mpc.quantity import Factor, factors, open_inner_product
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.sharing import Side


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
    """The requester's knowledge of one site: nothing but the failure unless the site is in range.

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
    kernels: Kernels = NUMBA,
    opens: Needs = Needs.DISTANCES,
) -> list[Operands]:
    """Step 1, local, for all sites of a round, in their order.

    Raises:   MalformedMessage
    """
    rows = range_check.projections(challenge, parameters)
    shares = [given.sketch_share for given in sketches]
    return [
        Operands(
            site=given.site,
            factors=factors(side, opens, given.sketch_share, given.query_share, shares[:place]),
            range_operand=range_check.range_operand(side, given.sketch_share, rows, parameters, kernels),
        )
        for place, given in enumerate(sketches)
    ]


def operand_vector(operands: Operands) -> Ring:
    """All factors one after the other, in the order of ``lengths``: the quantities' first."""
    return np.concatenate((*(factor.own for factor in operands.factors), operands.range_operand))


def masked(operands: Operands, half: CorrelationHalf) -> Ring:
    """Step 2: the masked factors, for the peer.

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
    """Step 3: this side's shares for the requester, refreshed with the servers' zero sharing.

    Requires: ``context`` names study, round and attempt, and is the same at both servers
    Reveals:  nothing until the requester adds the other side's
    Raises:   MalformedMessage, when the peer's vector has another length; ProtocolViolation as :func:`masked`
    """
    _require_lengths(operands, half)
    products = product.finish(operand_vector(operands), peer_masked, half, side)
    zero = product.zero_sharing(zero_key, f"{len(context)}:{context}:{operands.site}", products.size)
    if side is Side.B:
        zero = np.negative(zero)
    range_shares = range_check.range_check_shares(
        side, operands.range_operand, products[-RANGE_PROJECTIONS:], parameters
    )
    refreshed = range_check.cut(range_shares + zero[-RANGE_PROJECTIONS:], parameters)
    shares = [factor.share(int(z)) for factor, z in zip(operands.factors, products, strict=False)]
    values = np.array(shares, dtype=np.uint64) + zero[: len(shares)]
    return OpeningShare(operands.site, refreshed, values)


def open_site(share_a: OpeningShare, share_b: OpeningShare, numerator: int, parameters: StudyParameters) -> OpenedSite:
    """Step 4, at the requester, for a site alone: :func:`open_all` where pairs or inner products are opened."""
    return open_all([share_a], [share_b], {share_a.site: numerator}, parameters)[0]


def open_all(
    shares_a: Sequence[OpeningShare],
    shares_b: Sequence[OpeningShare],
    numerators: Mapping[str, int],
    parameters: StudyParameters,
    opens: Needs = Needs.DISTANCES,
) -> tuple[OpenedSite, ...]:
    """Step 4, at the requester: which sites pass, and what else is opened about those that do.

    Reveals:  to the requester, for an honest site, what ``opens`` says and nothing else
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
    return distance.open_distance(int(a.values[i]), int(b.values[i]), numerator, parameters)


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
    return range_check.passed_range_check(share_a.range_shares + share_b.range_shares, parameters)


def _require_lengths(operands: Operands, half: CorrelationHalf) -> None:
    if half.lengths != operands.lengths:
        raise ProtocolViolation(
            f"the correlation for {operands.site!r} has {len(half.lengths)} products of {sum(half.lengths)} elements "
            f"in all, needed are {len(operands.lengths)} of {sum(operands.lengths)}; make one for this round"
        )
