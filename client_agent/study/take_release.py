"""A released sum at a site: both halves fetched, the evidence checked, the average opened (docs/protocol.md 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from client_agent.network.server_client import ServerClient
from client_agent.site.letter import PastRelease
from protocol.arithmetic.ring import Ring, Signed
from protocol.bodies import output
from protocol.errors import AnnouncementMismatch, BadSignature, ProtocolViolation, TranscriptMismatch
from protocol.parameters import StudyParameters
from protocol.protection.plan import RoundStep
from protocol.release import (
    AverageOpener,
    average_chunk,
    class_totals,
    coordinate_bound,
    longest_sum,
    masking_side,
    open_aggregate_chunk,
    own_weights_sum,
    require_clipped_sum,
    self_weighted_bound,
)
from protocol.sharing import Side
from protocol.wire.authentic import require_signatures
from protocol.wire.keys import SealingKey
from protocol.wire.messages import OutputHeader, Roster, Study, SumRelease

T = TypeVar("T")
_AVERAGED_AT_ONCE: Final = 2**16


def check_release(past: PastRelease, roster: Roster, study_digest: str) -> None:
    """The evidence of a release of this study hangs together and carries everybody's signature.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation
    """
    agreed = require_signatures(past.agreed_set, roster, (roster.operator_a.name, roster.operator_b.name))
    release = require_signatures(past.release_set, roster, (roster.requester,))
    announcement = past.announcement
    if not announcement.purpose.plan.summed:
        raise ProtocolViolation(f"round {announcement.round} ranks the sites; its vectors are never summed")
    if {announcement.study_digest, agreed.study_digest, release.study_digest} != {study_digest}:
        raise AnnouncementMismatch(f"round {announcement.round}: the release is of another study")
    if agreed.announcement_digest != announcement.digest():
        raise AnnouncementMismatch(f"round {announcement.round}: the agreed set is bound to another announcement")
    if past.weight_list.digest() != announcement.weight_list_digest:
        raise AnnouncementMismatch(f"round {announcement.round}: the weight list is not the announced one")
    if release.agreed_set_digest != agreed.digest() or (release.round, release.attempt) != (
        agreed.round,
        agreed.attempt,
    ):
        raise TranscriptMismatch(f"round {announcement.round}: the release set is for another agreed set")
    strangers = sorted(set(release.sites) - set(agreed.sites))
    if strangers or len(set(release.sites)) != len(release.sites):
        raise ProtocolViolation(f"round {announcement.round}: the release set names {strangers} or a site twice")
    left_out = [site for site in agreed.sites if site not in release.sites]
    if [site for site in left_out if site in release.failed_check] != list(release.failed_check):
        raise ProtocolViolation(
            f"round {announcement.round}: failed_check names {list(release.failed_check)}, left out were {left_out}"
        )
    if RoundStep.COUNTERSIGN in announcement.protection.plan.steps:
        require_sum_release(past, roster)
    if roster.requester not in release.sites or len(release.sites) - 1 < announcement.least_contributors:
        raise ProtocolViolation(
            f"round {announcement.round}: {len(release.sites)} sites were released, needed are the requester and "
            f"{announcement.least_contributors} contributors"
        )


def require_sum_release(past: PastRelease, roster: Roster) -> SumRelease:
    """What both servers signed as the end of a round of ciphertexts: this release set, and the sum's digest.

    Raises: BadSignature, AnnouncementMismatch
    """
    number, release = past.announcement.round, past.release_set.message
    if past.sum_release is None:
        raise BadSignature(f"round {number}: its sum comes without both servers' signatures under it; it is not opened")
    ended = require_signatures(past.sum_release, roster, (roster.operator_a.name, roster.operator_b.name))
    named = (ended.study_digest, ended.round, ended.attempt, ended.release_digest)
    if named != (release.study_digest, release.round, release.attempt, release.digest()):
        raise AnnouncementMismatch(f"round {number}: what both servers signed is the sum of another round or release")
    return ended


def sum_of_numerators(past: PastRelease, roster: Roster) -> int:
    """The released sites' weights times the grid; the requester's is the grid itself."""
    total = past.weight_list.grid
    for site in past.release_set.message.sites:
        if site == roster.requester:
            continue
        numerator = past.weight_list.numerator_of(site)
        if numerator is None:
            raise ProtocolViolation(f"site {site!r} was released without a weight on the list")
        total += numerator
    return total


def own_key_id(roster: Roster, site: str) -> str:
    """How a header names this site."""
    return next(party.key_id for party in roster.sites if party.name == site)


@dataclass(frozen=True)
class Outputs:
    """What a site needs to fetch outputs sealed to it."""

    study: Study
    study_digest: str
    site: str
    roster: Roster
    key: SealingKey = field(repr=False)
    clients: Mapping[Side, ServerClient]

    def fetch(self, past: PastRelease, side: Side, take: Callable[[OutputHeader, Iterator[bytes]], T]) -> T:
        """What ``take`` makes of a side's output, anew where the connection breaks; it is told the header to expect."""
        recipient = own_key_id(self.roster, self.site)
        expected = output.header(self.study, past.announcement, past.release_set.message, side, recipient)
        return self.clients[side].fetch_output(
            self.study.name,
            past.announcement.round,
            lambda pieces: take(expected, pieces),
            output.most_bytes(expected),
        )


@dataclass(frozen=True)
class OutputReader(Outputs):
    """Opens released sums of shares."""

    @property
    def parameters(self) -> StudyParameters:
        return self.study.parameters

    def open(self, past: PastRelease) -> NDArray[np.float32]:
        """The weighted average update of a released round, opened while it is received; nothing is kept on disk.

        Shapes:   -> float32[D], without the coordinate of the sites' own weights where they weigh themselves
        Reveals:  the aggregate, to this site
        Raises:   AggregateOutOfBounds; BrokenSeal; MalformedMessage; Unavailable
        """
        return self._fetched(past, self._own_weighted if self.study.rule.name.self_weighted else self._average)

    def open_counts(self, past: PastRelease, classes: int) -> tuple[int, ...]:
        """The class counts of all sites in a released round of counts together.

        Reveals:  the totals, to this site
        Raises:   as :meth:`open`
        """
        signed = self._fetched(past, self._whole)
        return class_totals(signed, classes, len(past.release_set.message.sites))

    def _fetched(self, past: PastRelease, take: Callable[[_Vector], T]) -> T:
        """What ``take`` makes of the masked vector, once the mask's seed is here."""
        check_release(past, self.roster, self.study_digest)
        mask_from = masking_side(past.announcement.round)
        seed = self.fetch(past, mask_from, lambda expected, pieces: output.read_seed(expected, self.key, pieces))

        def taken(expected: OutputHeader, pieces: Iterator[bytes]) -> T:
            return take(_Vector(past, output.read_vector(expected, self.key, pieces), seed))

        return self.fetch(past, mask_from.other, taken)

    def _average(self, vector: _Vector) -> NDArray[np.float32]:
        past = vector.past
        numerators = sum_of_numerators(past, self.roster)
        summed = len(past.release_set.message.sites)
        bound = coordinate_bound(self.parameters, numerators, summed, past.announcement.opens.bounds_norms)
        longest = longest_sum(self.parameters, numerators, summed)
        weights = numerators / self.parameters.weight_grid
        opener = AverageOpener(vector.seed, bound, longest, weights, self.parameters)
        out = np.empty(self.parameters.dimension, dtype=np.float32)
        for start, masked in vector.pieces:
            opener.open_into(out[start : start + masked.size], masked, start)
        opener.finish()
        return out

    def _own_weighted(self, vector: _Vector) -> NDArray[np.float32]:
        """The sum of weights comes last, so the whole sum is held until it is known."""
        signed = self._whole(vector)
        summed = len(vector.past.release_set.message.sites)
        weights = own_weights_sum(int(signed[-1]), self.parameters, summed)
        require_clipped_sum(signed[:-1], int(signed[-1]), summed)
        out = np.empty(signed.size - 1, dtype=np.float32)
        for start in range(0, out.size, _AVERAGED_AT_ONCE):
            piece = signed[start : min(start + _AVERAGED_AT_ONCE, out.size)]
            out[start : start + piece.size] = average_chunk(piece, weights, self.parameters)
        return out

    def _whole(self, vector: _Vector) -> Signed:
        """The opened sum of vectors whose weights only their sites know."""
        bound = self_weighted_bound(self.parameters, len(vector.past.release_set.message.sites))
        out = np.empty(self.parameters.dimension, dtype=np.int64)
        for start, masked in vector.pieces:
            out[start : start + masked.size] = open_aggregate_chunk(masked, vector.seed, start, bound)
        return out


@dataclass(frozen=True)
class _Vector:
    """The masked half of a released round's output as it arrives, each piece with its place; and the mask's seed."""

    past: PastRelease
    pieces: Iterator[tuple[int, Ring]]
    seed: bytes = field(repr=False)
