"""One server's part of a measured round, step by step; the requester's opening at the end (docs/protocol.md 6 to 8).

1. :func:`prepare_all`, for every contributor: its range-check factors and, in rounds that open distances, its
   difference.
2. :func:`masked`: sent to the peer.
3. :func:`opening_share`: with the peer's masked vector, this side's refreshed shares, sealed to the requester.
4. :func:`open_site`: the requester adds both sides' shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from protocol.arithmetic.kernels import NUMBA, Kernels
from protocol.arithmetic.ring import MODULUS, Ring
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import distance, product, range_check
from protocol.mpc.correlation import CorrelationHalf
from protocol.parameters import RANGE_PROJECTIONS, StudyParameters
from protocol.sharing import Side


@dataclass(frozen=True, eq=False)
class SiteSketch:
    """What a server holds of one site before the products. ``query_share`` is None where distances are not opened."""

    site: str
    sketch_share: Ring = field(repr=False)
    query_share: Ring | None = field(repr=False)


@dataclass(frozen=True, eq=False)
class Operands:
    """What one side puts into the products of one site. ``difference`` is None where distances are not opened."""

    site: str
    sketch_share: Ring = field(repr=False)
    range_operand: Ring = field(repr=False)
    difference: Ring | None = field(repr=False)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the products, the distance's first: those the correlation must have."""
        first = () if self.difference is None else (self.difference.size,)
        return first + (1,) * RANGE_PROJECTIONS


@dataclass(frozen=True, eq=False)
class OpeningShare:
    """One side's refreshed shares of what the requester opens about one site."""

    site: str
    range_shares: Ring = field(repr=False)
    distance_share: int | None = field(repr=False)


@dataclass(frozen=True)
class OpenedSite:
    """What the requester learns about one site; the distance is None unless opened and in range."""

    site: str
    in_range: bool
    distance: float | None


def prepare(
    side: Side,
    challenge: bytes,
    site: str,
    sketch_share: Ring,
    query_share: Ring | None,
    parameters: StudyParameters,
    kernels: Kernels = NUMBA,
) -> Operands:
    """Step 1, local, for one site; for several, :func:`prepare_all` draws the projections once.

    Shapes:   sketch_share and query_share uint64[k'], ring 2^64; no query where distances are not opened
    Raises:   MalformedMessage
    """
    return prepare_all(side, challenge, [SiteSketch(site, sketch_share, query_share)], parameters, kernels)[0]


def prepare_all(
    side: Side,
    challenge: bytes,
    sketches: Sequence[SiteSketch],
    parameters: StudyParameters,
    kernels: Kernels = NUMBA,
) -> list[Operands]:
    """Step 1, local, for all sites of a round, in their order.

    Raises:   MalformedMessage
    """
    rows = range_check.projections(challenge, parameters)
    return [
        Operands(
            site=given.site,
            sketch_share=given.sketch_share,
            range_operand=range_check.operand(side, given.sketch_share, rows, parameters, kernels),
            difference=(
                None if given.query_share is None else distance.difference(given.sketch_share, given.query_share)
            ),
        )
        for given in sketches
    ]


def operand_vector(operands: Operands) -> Ring:
    """All factors one after the other, in the order of ``lengths``: the distance's first."""
    if operands.difference is None:
        return operands.range_operand
    return np.concatenate((operands.difference, operands.range_operand))


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
    range_shares = range_check.check_shares(side, operands.range_operand, products[-RANGE_PROJECTIONS:], parameters)
    refreshed = range_check.cut(range_shares + zero[-RANGE_PROJECTIONS:], parameters)
    if operands.difference is None:
        return OpeningShare(operands.site, refreshed, None)
    share = distance.distance_share(operands.difference, int(products[0]))
    return OpeningShare(operands.site, refreshed, (share + int(zero[0])) % MODULUS)


def open_site(share_a: OpeningShare, share_b: OpeningShare, numerator: int, parameters: StudyParameters) -> OpenedSite:
    """Step 4, at the requester: does the site pass, and how far is it?

    Reveals:  to the requester, for an honest site, its distance and nothing else
    Raises:   MalformedMessage, when the two shares do not belong together; ProtocolViolation, when a distance is
              impossible
    """
    if share_a.site != share_b.site or (share_a.distance_share is None) != (share_b.distance_share is None):
        raise MalformedMessage(
            f"the servers' shares are of {share_a.site!r} and {share_b.site!r}, or only one opens a distance; "
            "match them by site"
        )
    shapes = (share_a.range_shares.shape, share_b.range_shares.shape)
    if shapes != ((RANGE_PROJECTIONS,),) * 2:
        raise MalformedMessage(f"a site has {RANGE_PROJECTIONS} range shares from each server, found {shapes}")
    if not range_check.passed(share_a.range_shares + share_b.range_shares, parameters):
        return OpenedSite(share_a.site, in_range=False, distance=None)
    if share_a.distance_share is None or share_b.distance_share is None:
        return OpenedSite(share_a.site, in_range=True, distance=None)
    opened = distance.open_distance(share_a.distance_share, share_b.distance_share, numerator, parameters)
    return OpenedSite(share_a.site, in_range=True, distance=opened)


def _require_lengths(operands: Operands, half: CorrelationHalf) -> None:
    if half.lengths != operands.lengths:
        raise ProtocolViolation(
            f"the correlation for {operands.site!r} has {len(half.lengths)} products of {sum(half.lengths)} elements "
            f"in all, needed are {len(operands.lengths)} of {sum(operands.lengths)}; make one for this round"
        )
