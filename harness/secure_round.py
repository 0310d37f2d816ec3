"""One secure round of all parties in one process, with the protocol's own functions (docs/protocol.md 3 to 9).

Real: encoding, shares, commitments, agreed set, coin toss, sketch, products from OT or a dealer, range check,
distances, release set, masked sum and the sites' check of it. Left out, since nothing leaves the process: sealing,
signatures, files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.correlations import DrawCorrelations
from protocol import lock, release, sharing
from protocol.arithmetic import fixed_point, ring
from protocol.arithmetic.kernels import NUMBA
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring
from protocol.mpc import distance, measurement, sketch
from protocol.mpc.correlation import CorrelationHalf
from protocol.parameters import StudyParameters
from protocol.sharing import ChunkSource, Share, Side
from protocol.wire.commitment import commitment_to
from protocol.wire.messages import AgreedSet, Announcement, CollectedContribution, Roster

_ATTEMPT = 1


@dataclass(frozen=True, eq=False)
class SiteInput:
    """A site's clipped update, not yet weighted, and its weight's numerator (the grid itself for the requester)."""

    site: str
    update: NDArray[np.float64] = field(repr=False)
    numerator: int


@dataclass(frozen=True, eq=False)
class SecureResult:
    """What the sites and the requester hold after a round; ``average`` is None when it was skipped.

    ``distances`` and ``failed_check`` are the requester's; ``skipped_because`` is None for a released round.
    """

    average: NDArray[np.float32] | None = field(repr=False)
    took_part: tuple[str, ...] = ()
    distances: tuple[tuple[str, float], ...] = ()
    failed_check: tuple[str, ...] = ()
    skipped_because: str | None = None


@dataclass(frozen=True, eq=False)
class _Contribution:
    """A site's encoded update, both shares, and what each server says it holds."""

    site: str
    encoded: Ring = field(repr=False)
    shares: dict[Side, Share] = field(repr=False)
    collected: CollectedContribution


@dataclass(frozen=True, eq=False)
class SecureRound:
    """The parties of one round. ``seed`` (32 bytes) is where every random draw of the round comes from."""

    roster: Roster
    parameters: StudyParameters
    announcement: Announcement
    seed: bytes = field(repr=False)
    draw: DrawCorrelations = field(repr=False)

    def run(self, inputs: tuple[SiteInput, ...]) -> SecureResult:
        """Contribute, lock, toss the coin, measure, open, release.

        Shapes:   every update float64[D], already clipped -> average float32[D]
        Raises:   UnusableUpdate, AggregateOutOfBounds
        """
        contributions = {given.site: self._contribute(given) for given in inputs}
        numerators = {given.site: given.numerator for given in inputs}
        held = [contribution.collected for contribution in contributions.values()]
        agreed = lock.agree(self.announcement, _ATTEMPT, self.roster, held, held)
        reason = lock.shortfall(agreed, self.announcement, self.roster.requester)
        if reason is not None:
            return SecureResult(average=None, skipped_because=reason)
        opened = self._measure(agreed, contributions, numerators)
        failed = tuple(site.site for site in opened if not site.in_range)
        released = tuple(site.site for site in opened if site.in_range)
        others = tuple(site for site in released if site != self.roster.requester)
        if len(others) == len(released) or len(others) < self.announcement.least_contributors:
            return SecureResult(average=None, failed_check=failed, skipped_because="too few passed the range check")
        return SecureResult(
            average=self._release([contributions[site] for site in released], [numerators[site] for site in released]),
            took_part=others,
            distances=tuple((s.site, s.distance) for s in opened if s.distance is not None),
            failed_check=failed,
        )

    def _contribute(self, given: SiteInput) -> _Contribution:
        """The site: scale, encode, split, commit."""
        rand = derive(self.seed, f"contribution of {given.site}")
        scaled = given.update * (given.numerator / self.parameters.weight_grid)
        encoded = fixed_point.encode(scaled, self.parameters, derive(rand, "rounding"))
        seed_share, vector_share = sharing.split(encoded, derive(rand, "share"))
        vector_side = sharing.vector_side(self.roster.place(given.site))
        shares: dict[Side, Share] = {vector_side: vector_share, vector_side.other: seed_share}
        collected = CollectedContribution(
            site=given.site,
            announcement_digest=self.announcement.digest(),
            commitment_a=_commitment(shares[Side.A], rand, "a"),
            commitment_b=_commitment(shares[Side.B], rand, "b"),
        )
        return _Contribution(given.site, encoded, shares, collected)

    def _measure(
        self, agreed: AgreedSet, contributions: dict[str, _Contribution], numerators: dict[str, int]
    ) -> tuple[measurement.OpenedSite, ...]:
        """Both servers measure every site of the agreed set; the requester opens."""
        number = self.announcement.round
        nonces = (derive(self.seed, "nonce a"), derive(self.seed, "nonce b"))
        stated = lock.transcript(number, agreed.digest(), *nonces)
        challenge = lock.check_transcript(number, agreed, stated)
        queries = self._queries(challenge, agreed, contributions[self.roster.requester].encoded, numerators)
        operands = {side: self._operands(side, challenge, agreed, contributions, queries[side]) for side in Side}
        halves = dict(zip(Side, self.draw([o.lengths for o in operands[Side.A]], f"round {number}"), strict=True))
        masked = {side: _masked(operands[side], halves[side]) for side in Side}
        shares = {side: self._shares(side, operands[side], masked[side.other], halves[side]) for side in Side}
        return measurement.open_all(
            shares[Side.A], shares[Side.B], numerators, self.parameters, self.announcement.opens
        )

    def _queries(
        self, challenge: bytes, agreed: AgreedSet, own: Ring, numerators: dict[str, int]
    ) -> dict[Side, dict[str, Ring]]:
        """The requester: shares of w_i S g_0 for every contributor, none where distances are not opened."""
        queries: dict[Side, dict[str, Ring]] = {Side.A: {}, Side.B: {}}
        if not self.announcement.measured:
            return queries
        own_sketch = sketch.sketch_vector(challenge, own, self.parameters)
        for site in agreed.sites:
            if site == self.roster.requester:
                continue
            query = distance.query(own_sketch, numerators[site], self.parameters.weight_grid)
            seed_share, vector_share = sharing.split(query, derive(self.seed, f"query for {site}"))
            queries[Side.A][site] = sharing.expand_share(seed_share, 0, query.size)
            queries[Side.B][site] = vector_share.vector
        return queries

    def _operands(
        self,
        side: Side,
        challenge: bytes,
        agreed: AgreedSet,
        contributions: dict[str, _Contribution],
        queries: dict[str, Ring],
    ) -> list[measurement.Operands]:
        """One server: sketch every share in one pass, then prepare the products."""
        sketches = sketch.sketch_shares(challenge, _sources(side, contributions, agreed.sites), self.parameters)
        given = [
            measurement.SiteSketch(site, share, queries.get(site))
            for site, share in zip(agreed.sites, sketches, strict=True)
        ]
        return measurement.prepare_all(side, challenge, given, self.parameters, opens=self.announcement.opens)

    def _shares(
        self,
        side: Side,
        operands: list[measurement.Operands],
        peer_masked: list[Ring],
        halves: list[CorrelationHalf],
    ) -> list[measurement.OpeningShare]:
        """One server: the refreshed shares for the requester."""
        zero_key = derive(self.seed, "zero sharing")
        context = f"{self.announcement.study_digest} {self.announcement.round} {_ATTEMPT}"
        return [
            measurement.opening_share(side, one, theirs, half, zero_key, context, self.parameters)
            for one, theirs, half in zip(operands, peer_masked, halves, strict=True)
        ]

    def _release(self, contributions: list[_Contribution], numerators: list[int]) -> NDArray[np.float32]:
        """Both servers add, A masks with a fresh seed; a site opens, checks every coordinate, divides."""
        names = [contribution.site for contribution in contributions]
        by_name = {contribution.site: contribution for contribution in contributions}
        stop, t_seed = self.parameters.dimension, derive(self.seed, "output mask")
        sums = {side: release.sum_chunk(_sources(side, by_name, names), 0, stop) for side in Side}
        vector = release.combine_chunk(release.masked_sum_chunk(sums[Side.A], t_seed, 0), sums[Side.B])
        bound = release.coordinate_bound(
            self.parameters, sum(numerators), len(contributions), self.announcement.opens.bounds_norms
        )
        signed = release.open_aggregate_chunk(vector, t_seed, 0, bound, NUMBA)
        return release.average_chunk(signed, sum(numerators) / self.parameters.weight_grid, self.parameters)


def _masked(operands: list[measurement.Operands], halves: list[CorrelationHalf]) -> list[Ring]:
    return [measurement.masked(one, half) for one, half in zip(operands, halves, strict=True)]


def _sources(
    side: Side, contributions: dict[str, _Contribution], sites: list[str] | tuple[str, ...]
) -> list[ChunkSource]:
    return [sharing.chunk_source(contributions[site].shares[side]) for site in sites]


def _share_bytes(share: Share) -> bytes:
    return share.seed if isinstance(share, sharing.SeedShare) else ring.to_bytes(share.vector)


def _commitment(share: Share, rand: bytes, side: str) -> str:
    return commitment_to(_share_bytes(share), derive(rand, f"salt {side}"), derive(rand, f"content key {side}")).hex()
