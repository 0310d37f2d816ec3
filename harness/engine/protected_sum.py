"""A round's sum and measurements under shares or ciphertexts, all parties in one process.

Real: encoding, shares, commitments, agreed set, coin toss, sketch, products from OT or a dealer, range check, what
the rule has opened, the requester's judgement, tags, masked sum and the sites' check of it. Left out, since nothing
leaves the process: sealing, signatures, files.

Class counts are summed as shares. SEAL draws its noise itself: two runs from one seed differ by it, within bounds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from harness.datasets.site_data import SiteData
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.updates import ClippedUpdate, Counted, Judge, RoundInputs, Summed, everybody_in_range
from host.files import MemoryFile
from protocol import release, sharing
from protocol.arithmetic import fixed_point, ring
from protocol.arithmetic.ring import Ring, Signed, derive
from protocol.channel.commitment import commitment_to
from protocol.ckks.ciphertext import CkksParameters, Kind, chunks_of
from protocol.ckks.scheme import Adder, Scheme, SecretKey
from protocol.ckks.update import body_header
from protocol.errors import ConfigurationError
from protocol.messages.control import AgreedSet, Announcement, CollectedContribution, Roster, Study
from protocol.mpc import measurement, sketch
from protocol.mpc.measurement import OpenedSite
from protocol.mpc.product import Halves, dealer_pair, open_ot_sessions, ot_batch
from protocol.ot.session import LengthsList
from protocol.parameters import TAG_COORDINATES, Needs, StudyParameters
from protocol.protection.ckks import Ciphertexts, open_sum
from protocol.protection.interface import AtSite, UnderKey
from protocol.rounds import agreement
from protocol.rounds.judgement import Judgement
from protocol.rules.fedavg import counts_vector
from protocol.sharing import ChunkSource, Share, Side
from protocol.tags import PAIR, TagSums, attempt_key, errors_of, kept_key, shown_seed

SourceName: TypeAlias = Literal["ot", "dealer"]
DrawCorrelations: TypeAlias = Callable[[LengthsList, str], Halves]
"""Fresh halves for A and B, one per contributor; the label names round and attempt and is used once."""


def correlations_from(source: SourceName, seed: bytes) -> DrawCorrelations:
    """Both sides of ``source``; an OT session is opened at once and serves every later batch."""
    if source == "dealer":
        return lambda lengths_list, label: dealer_pair(lengths_list, derive(seed, f"dealer {label}"))
    receiver, sender = open_ot_sessions(
        derive(seed, "ot session"), derive(seed, "ot session opened by a"), derive(seed, "ot session opened by b")
    )
    return lambda lengths_list, label: ot_batch(receiver, sender, lengths_list, derive(seed, f"ot b {label}"))


@dataclass(frozen=True)
class Measuring:
    """Facts about a measured round that both servers and the requester share; ``context`` tells its zero sharings from
    others.
    """

    parameters: StudyParameters
    numerators: Mapping[str, int]
    opens: Needs
    zero_key: bytes = field(repr=False)
    context: str

    def opened(
        self, operands: Mapping[Side, list[measurement.Operands]], halves: Halves
    ) -> tuple[measurement.OpenedSite, ...]:
        """Each server masks, multiplies and refreshes its shares; the requester opens them."""
        half_of = dict(zip(Side, halves, strict=True))
        masked = {
            side: [measurement.masked(one, half) for one, half in zip(operands[side], half_of[side], strict=True)]
            for side in Side
        }
        shares = {
            side: [
                measurement.opening_share(side, one, theirs, half, self.zero_key, self.context, self.parameters)
                for one, theirs, half in zip(operands[side], masked[side.other], half_of[side], strict=True)
            ]
            for side in Side
        }
        return measurement.open_all(shares[Side.A], shares[Side.B], self.numerators, self.parameters, self.opens)


@dataclass(frozen=True, eq=False)
class SiteInput:
    """A site's clipped vector before the list's weight, and that weight's numerator (the grid for the requester).

    Where sites weigh themselves, the vector is (w g, w C) already and the numerator is the grid.
    """

    site: str
    vector: NDArray[np.float64] = field(repr=False)
    numerator: int

    def encoded(self, parameters: StudyParameters, rounding_seed: bytes) -> Ring:
        """The weighted vector in fixed point, uint64[D]. Raises: UnusableUpdate"""
        scaled = self.vector * (self.numerator / parameters.weight_grid)
        return fixed_point.encode(scaled, parameters, rounding_seed)


@dataclass(frozen=True, eq=False)
class WholeNumbers:
    """Whole numbers that a site shares as they are, such as its examples of each class: uint64[D]."""

    site: str
    vector: Ring = field(repr=False)

    def encoded(self, parameters: StudyParameters, rounding_seed: bytes) -> Ring:
        return self.vector


Given: TypeAlias = SiteInput | WholeNumbers
"""Whatever a site shares in a round."""


_ATTEMPT = 1
_TAGS = "the sum's tags are wrong; nothing was opened"


Tamper: TypeAlias = Callable[[str, Ring], Ring]
"""A site's name and encoded vector -> the vector that it shares instead."""


def honest(site: str, encoded: Ring) -> Ring:
    """Nothing."""
    return encoded


@dataclass(frozen=True, eq=False)
class SecureResult:
    """The result of a round; ``total`` is None when it was skipped.

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
        grid = self.parameters.weight_grid
        numerators = {one.site: one.numerator if isinstance(one, SiteInput) else grid for one in inputs}
        held = [contribution.collected for contribution in contributions.values()]
        agreed = agreement.agree(self.announcement, _ATTEMPT, self.roster, held, held)
        lacking = agreement.shortfall(agreed, self.announcement, self.roster.requester)
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
        number = self.announcement.round
        nonces = (derive(self.seed, "nonce a"), derive(self.seed, "nonce b"))
        stated = agreement.transcript(number, agreed.digest(), *nonces)
        challenge = agreement.check_transcript(number, agreed, stated)
        own = contributions[self.roster.requester].encoded
        weights = numerators
        if probe is not None:
            own = fixed_point.encode(probe, self.parameters, derive(self.seed, "probe rounding"))
            weights = dict.fromkeys(numerators, self.parameters.weight_grid)
        queries = self._queries(challenge, agreed, own, weights)
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
            query = measurement.distance_query(own_sketch, numerators[site], self.parameters.weight_grid)
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
        sketches = sketch.sketch_shares(challenge, _sources(side, contributions, agreed.sites), self.parameters)
        given = [
            measurement.SiteSketch(site, share, queries.get(site))
            for site, share in zip(agreed.sites, sketches, strict=True)
        ]
        return measurement.prepare_all(side, challenge, given, self.parameters, opens=self.announcement.opens)

    def _release(self, released: tuple[str, ...], contributions: dict[str, _Contribution]) -> Signed:
        stop, t_seed = self.parameters.dimension, derive(self.seed, "output mask")
        sums = {side: release.sum_chunk(_sources(side, contributions, released), 0, stop) for side in Side}
        vector = release.combine_chunk(release.masked_sum_chunk(sums[Side.A], t_seed, 0), sums[Side.B])
        bits = self.parameters.ring_bits
        return release.open_aggregate_chunk(ring.lifted(vector, bits), t_seed, 0, self.bound(released), bits)


def wrong_tags_left_out(judgement: Judgement, wrong: tuple[str, ...]) -> Judgement:
    """The judgement of a round that ends without a sum, as its tags are wrong: who failed, and nobody took part."""
    return replace(judgement, failed=wrong, measured=judgement.measured.model_copy(update={"took_part": ()}))


def _sources(side: Side, contributions: dict[str, _Contribution], sites: tuple[str, ...]) -> list[ChunkSource]:
    return [sharing.chunk_source(contributions[site].shares[side]) for site in sites]


def _commitment(share: Share, rand: bytes, side: str) -> str:
    content = share.seed if isinstance(share, sharing.SeedShare) else ring.to_bytes(share.vector)
    return commitment_to(content, derive(rand, f"salt {side}"), derive(rand, f"content key {side}")).hex()


TamperInRound: TypeAlias = Callable[[int, str, Ring], Ring]
"""A round, a site and its encoded vector -> the vector that it shares instead."""


def seed_of(study: Study) -> int:
    """Raises: ConfigurationError"""
    if study.seed is None:
        raise ConfigurationError("a run in one process needs study.seed, so that it can be repeated")
    return study.seed


def secure_sum(
    study: Study,
    sites: Sequence[SiteData],
    correlation_source: SourceName | None = None,
    tamper: TamperInRound | None = None,
) -> SecureSum:
    """The share path of a run in one process, every draw from the study's seed. Raises: ConfigurationError"""
    seed = hashlib.sha256(f"moiety/2 in one process {seed_of(study)} {study.digest()}".encode()).digest()
    entries = [SiteEntry(site.name, len(site.train)) for site in sites]
    roster = make_parties("in-one-process", sites[0].name, entries, derive(seed, "parties")).roster.message
    draw = correlations_from(correlation_source or study.correlation_source, derive(seed, "correlations"))
    return SecureSum(study, roster, seed, draw, tamper)


@dataclass(frozen=True, eq=False)
class SecureSum:
    """Sum and measurements under the protocol, both servers in this process."""

    study: Study
    roster: Roster
    seed: bytes = field(repr=False)
    draw: DrawCorrelations = field(repr=False)
    tamper: TamperInRound | None = None

    def updates(self, inputs: RoundInputs) -> Summed:
        parameters, grid = self.study.parameters, inputs.weight_list.grid
        own = inputs.weight_list.own_numerator
        given = [SiteInput(inputs.requester, inputs.own.shared(parameters.clip_norm), own)]
        given += [
            SiteInput(weight.site, update.shared(parameters.clip_norm), weight.numerator)
            for weight, update in inputs.contributed
        ]
        numerators = {one.site: one.numerator for one in given}
        self_weighted = self.study.rule.name.self_weighted

        def bound(released: tuple[str, ...]) -> int:
            if self_weighted:
                return release.self_weighted_bound(parameters, len(released))
            total = sum(numerators[site] for site in released)
            return math.ceil(release.longest_sum(parameters, total, len(released)))

        result = self._round(inputs.announcement, bound).run(given, inputs.judge, inputs.probe)
        if result.total is None:
            return Summed(None, result.judgement)
        if self_weighted:
            last = int(result.total[-1])
            sum_of_weights = release.own_weights_sum(last, parameters, len(result.released))
            release.require_clipped_sum(result.total[:-1], last, len(result.released))
            averaged = release.average_chunk(result.total[:-1], sum_of_weights, parameters)
        else:
            sum_of_weights = sum(numerators[site] for site in result.released) / grid
            averaged = release.average_chunk(result.total, sum_of_weights, parameters)
        return Summed(averaged, result.judgement, sum_of_weights)

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        parameters = self.study.parameters

        def bound(released: tuple[str, ...]) -> int:
            return release.self_weighted_bound(parameters, len(released))

        given = [WholeNumbers(site, counts_vector(numbers, parameters)) for site, numbers in counts.items()]
        result = self._round(announcement, bound).run(given, everybody_in_range(announcement, self.roster.requester))
        failed = () if result.judgement is None else result.judgement.failed
        if result.total is None:
            return Counted(None, failed=failed)
        totals = release.class_totals(result.total, self.study.model.classes, len(result.released))
        took_part = tuple(site for site in result.released if site != self.roster.requester)
        return Counted(totals, took_part, failed)

    def _round(self, announcement: Announcement, bound: Callable[[tuple[str, ...]], int]) -> SecureRound:
        number, tamper = announcement.round, self.tamper
        return SecureRound(
            self.roster,
            self.study.parameters,
            announcement,
            derive(self.seed, f"round {number}"),
            self.draw,
            bound,
            honest if tamper is None else lambda site, encoded: tamper(number, site, encoded),
        )


def ckks_sum(study: Study, sites: int, shares: SecureSum) -> CkksSum:
    """Raises: ConfigurationError without TenSEAL, or for too many sites"""
    parameters = CkksParameters()
    parameters.require_sites(sites)
    return CkksSum(study, Scheme(parameters).secret_key(derive(shares.seed, "ckks key"), study.digest()), shares)


@dataclass(frozen=True, eq=False)
class CkksSum:
    """``shares`` sums the class counts."""

    study: Study
    key: SecretKey = field(repr=False)
    shares: SecureSum = field(repr=False)

    def updates(self, inputs: RoundInputs) -> Summed:
        present = (inputs.requester, *(weight.site for weight, _ in inputs.contributed))
        judgement = inputs.judge([OpenedSite(site, True) for site in present])
        if not judgement.releases(inputs.announcement.least_contributors):
            return Summed(None, judgement)
        grid, took_part = inputs.weight_list.grid, judgement.measured.took_part
        weighed = [(inputs.requester, inputs.own, inputs.own.weight(1.0))]
        weighed += [(w.site, u, u.weight(w.numerator / grid)) for w, u in inputs.contributed if w.site in took_part]
        summed, sites = inputs.announcement.digest(), [site for site, _, _ in weighed]
        with closing(MemoryFile()) as adds, closing(MemoryFile()) as opens:
            pieces = self._sum(weighed, inputs.announcement, Adder(self.key.scheme, adds))
            averaged = open_sum(pieces, self.study, summed, sites, self.key, opens)
        return Summed(averaged, judgement, sum(weight for _, _, weight in weighed))

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        return self.shares.counts(announcement, counts)

    def _sum(
        self, weighed: Sequence[tuple[str, ClippedUpdate, float]], announcement: Announcement, adder: Adder
    ) -> Iterator[bytes]:
        """The body of the sum, as server A makes it: one ciphertext of every site at a time."""
        header, of = (body_header(kind, self.key, self.study.model_dimension) for kind in (Kind.SUM, Kind.CONTRIBUTION))
        under, sources = UnderKey(self.key, lambda: closing(MemoryFile()), BytesIO), []
        for site, update, weight in weighed:
            at = AtSite(self.study, site, self.shares.roster, under)
            encoded = Ciphertexts().encode(at, announcement, update.values, weight, b"")
            sources.append(chunks_of(encoded.pieces, self.key.scheme.parameters, of))
        return chain([header.to_bytes()], map(adder.sum, zip(*sources, strict=True)))
