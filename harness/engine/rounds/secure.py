"""One secure round of all parties in one process, with the protocol's own functions (docs/protocol.md 3 to 9).

Real: encoding, shares, commitments, agreed set, coin toss, sketch, products from OT or a dealer, range check, what
the rule has opened, the requester's judgement, tags, masked sum and the sites' check of it. Left out, since nothing
leaves the process: sealing, signatures, files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from client_agent.requester.measuring.judging import Judgement
from harness.engine.rounds.correlations import DrawCorrelations, Measuring
from harness.engine.site_inputs import Given, SiteInput
from harness.engine.summing import Judge
from protocol import release, sharing
from protocol.arithmetic import fixed_point, ring
from protocol.arithmetic.kernels import NUMBA
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring, Signed
from protocol.mpc import distance, measurement, sketch
from protocol.parameters import TAG_COORDINATES, StudyParameters
from protocol.rounds import agree
from protocol.sharing import ChunkSource, Share, Side
from protocol.tags.keys import attempt_key, kept_key, shown_seed
from protocol.tags.sums import PAIR, TagSums, errors_of
from protocol.wire.commitment import commitment_to
from protocol.wire.messages import AgreedSet, Announcement, CollectedContribution, Roster

_ATTEMPT = 1
_TAGS = "the sum's tags are wrong; nothing was opened"


Tamper: TypeAlias = Callable[[str, Ring], Ring]
"""What a site does to its encoded vector before it shares it, by the site's name."""


def honest(site: str, encoded: Ring) -> Ring:
    """Nothing."""
    return encoded


@dataclass(frozen=True, eq=False)
class SecureResult:
    """What comes out of a round; ``total`` is None when it was skipped.

    ``total`` is the sum over ``released`` (the requester among them), int64[D] with every coordinate within the bound.
    ``judgement`` is the requester's, None when the round was skipped before anything was opened.
    """

    total: Signed | None = field(repr=False)
    released: tuple[str, ...] = ()
    judgement: Judgement | None = None
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
    """The parties of one round. ``seed`` (32 bytes) is where every random draw of the round comes from.

    ``bound`` is the largest size of an honest sum's coordinate over a released set, in ring units.
    """

    roster: Roster
    parameters: StudyParameters
    announcement: Announcement
    seed: bytes = field(repr=False)
    draw: DrawCorrelations = field(repr=False)
    bound: Callable[[tuple[str, ...]], int]
    tamper: Tamper = honest

    def run(self, inputs: Sequence[Given], judge: Judge, probe: NDArray[np.float64] | None = None) -> SecureResult:
        """Contribute, lock, toss the coin, measure, judge, release.

        Shapes:   vectors float64[D], already clipped; ``probe`` the requester's, where inner products are opened
        Raises:   UnusableUpdate, AggregateOutOfBounds
        """
        contributions = {given.site: self._contribute(given) for given in inputs}
        numerators = {given.site: _numerator(given, self.parameters) for given in inputs}
        held = [contribution.collected for contribution in contributions.values()]
        agreed = agree.agree(self.announcement, _ATTEMPT, self.roster, held, held)
        lacking = agree.shortfall(agreed, self.announcement, self.roster.requester)
        if lacking is not None:
            return SecureResult(None, skipped_because=lacking.reason)
        judgement = judge(self._measure(agreed, contributions, numerators, probe))
        if not self.announcement.purpose.plan.summed:
            return SecureResult(None, judgement=judgement)
        if not judgement.releases(self.announcement.least_contributors):
            return SecureResult(None, judgement=judgement, skipped_because="too few sites are left after the checks")
        kept = (self.roster.requester, *judgement.measured.took_part)
        released = tuple(site for site in agreed.sites if site in kept)
        wrong = self._wrong_tags(released, contributions)
        if wrong is not None:
            return SecureResult(None, judgement=wrong_tags_left_out(judgement, wrong), skipped_because=_TAGS)
        return SecureResult(self._release(released, contributions), released, judgement)

    def _contribute(self, given: Given) -> _Contribution:
        """The site: scale, encode, split, commit."""
        rand = derive(self.seed, f"contribution of {given.site}")
        encoded = self.tamper(given.site, given.encoded(self.parameters, derive(rand, "rounding")))
        seed_share, vector_share = sharing.split(self._tagged(encoded), derive(rand, "share"))
        vector_share = sharing.VectorShare(ring.lifted(vector_share.vector, self.parameters.ring_bits))
        vector_side = sharing.vector_side(self.roster.place(given.site))
        shares: dict[Side, Share] = {vector_side: vector_share, vector_side.other: seed_share}
        collected = CollectedContribution(
            site=given.site,
            announcement_digest=self.announcement.digest(),
            commitment_a=_commitment(shares[Side.A], rand, "a"),
            commitment_b=_commitment(shares[Side.B], rand, "b"),
        )
        return _Contribution(given.site, encoded, shares, collected)

    def _tagged(self, encoded: Ring) -> Ring:
        """With its tags behind it, in a round that has them."""
        if not self.announcement.tagged:
            return encoded
        found = [encoded]
        for key in (self._tag_key, kept_key(self.announcement, _ATTEMPT, self._tag_seed)):
            tags = TagSums(key)
            tags.add(encoded)
            found.append(tags.values()[0])
        return np.concatenate(found)

    @property
    def _tag_seed(self) -> bytes:
        return derive(self.seed, "tag seed")

    @property
    def _tag_key(self) -> bytes:
        return attempt_key(self.announcement, _ATTEMPT, shown_seed(self._tag_seed))

    def _wrong_tags(self, released: tuple[str, ...], contributions: dict[str, _Contribution]) -> tuple[str, ...] | None:
        """Before anything is served: None where the sum's tags are right, else whose are not, by both sides' shares."""
        if not self.announcement.tagged:
            return None
        length = self.parameters.dimension + TAG_COORDINATES
        errors = np.zeros((len(released), PAIR), dtype=np.uint64)
        for side in Side:
            errors += errors_of(self._tag_key, length, _sources(side, contributions, released))
        if not np.any(errors.sum(axis=0, dtype=np.uint64)):
            return None
        return tuple(site for site, error in zip(released, errors, strict=True) if np.any(error))

    def _measure(
        self,
        agreed: AgreedSet,
        contributions: dict[str, _Contribution],
        numerators: dict[str, int],
        probe: NDArray[np.float64] | None,
    ) -> tuple[measurement.OpenedSite, ...]:
        """Both servers measure every site of the agreed set; the requester opens."""
        number = self.announcement.round
        nonces = (derive(self.seed, "nonce a"), derive(self.seed, "nonce b"))
        stated = agree.transcript(number, agreed.digest(), *nonces)
        challenge = agree.check_transcript(number, agreed, stated)
        own = contributions[self.roster.requester].encoded
        if probe is not None:
            own = fixed_point.encode(probe, self.parameters, derive(self.seed, "probe rounding"))
            queries = self._queries(challenge, agreed, own, dict.fromkeys(numerators, self.parameters.weight_grid))
        else:
            queries = self._queries(challenge, agreed, own, numerators)
        operands = {side: self._operands(side, challenge, agreed, contributions, queries[side]) for side in Side}
        halves = self.draw([one.lengths for one in operands[Side.A]], f"round {number}")
        context = f"{self.announcement.study_digest} {number} {_ATTEMPT}"
        measuring = Measuring(
            self.parameters, numerators, self.announcement.opens, derive(self.seed, "zero sharing"), context
        )
        return measuring.opened(operands, halves)

    def _queries(
        self, challenge: bytes, agreed: AgreedSet, own: Ring, numerators: dict[str, int]
    ) -> dict[Side, dict[str, Ring]]:
        """The requester: shares of w_i S g_0, or of S v, for every contributor; for norms both servers take zeros."""
        queries: dict[Side, dict[str, Ring]] = {Side.A: {}, Side.B: {}}
        contributors = [site for site in agreed.sites if site != self.roster.requester]
        if self.announcement.opens.of_norms:
            zeros = np.zeros(self.parameters.sketched_length, dtype=np.uint64)
            return {side: dict.fromkeys(contributors, zeros) for side in Side}
        if not self.announcement.opens.queried:
            return queries
        own_sketch = sketch.sketch_vector(challenge, own, self.parameters)
        for site in contributors:
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

    def _release(self, released: tuple[str, ...], contributions: dict[str, _Contribution]) -> Signed:
        """Both servers add, A masks with a fresh seed; a site opens and checks every coordinate."""
        stop, t_seed = self.parameters.dimension, derive(self.seed, "output mask")
        sums = {side: release.sum_chunk(_sources(side, contributions, released), 0, stop) for side in Side}
        vector = release.combine_chunk(release.masked_sum_chunk(sums[Side.A], t_seed, 0), sums[Side.B])
        bits = self.parameters.ring_bits
        return release.open_aggregate_chunk(ring.lifted(vector, bits), t_seed, 0, self.bound(released), NUMBA, bits)


def wrong_tags_left_out(judgement: Judgement, wrong: tuple[str, ...]) -> Judgement:
    """The judgement of a round that ends without a sum, as its tags are wrong: who failed, and nobody took part."""
    return replace(judgement, failed=wrong, measured=judgement.measured.model_copy(update={"took_part": ()}))


def _numerator(given: Given, parameters: StudyParameters) -> int:
    return given.numerator if isinstance(given, SiteInput) else parameters.weight_grid


def _sources(side: Side, contributions: dict[str, _Contribution], sites: tuple[str, ...]) -> list[ChunkSource]:
    return [sharing.chunk_source(contributions[site].shares[side]) for site in sites]


def _share_bytes(share: Share) -> bytes:
    return share.seed if isinstance(share, sharing.SeedShare) else ring.to_bytes(share.vector)


def _commitment(share: Share, rand: bytes, side: str) -> str:
    return commitment_to(_share_bytes(share), derive(rand, f"salt {side}"), derive(rand, f"content key {side}")).hex()
