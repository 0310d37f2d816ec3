"""A released sum at a site: both halves fetched, the evidence checked, the average opened (docs/protocol.md 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from client_agent.network.server_client import ServerClient
from protocol.arithmetic.ring import Ring, Signed
from protocol.bodies import output
from protocol.evidence import PastRelease, check_release, sum_of_numerators
from protocol.parameters import StudyParameters
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
from protocol.wire.keys import SealingKey
from protocol.wire.messages import OutputHeader, Roster, Study

T = TypeVar("T")
_AVERAGED_AT_ONCE: Final = 2**16


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
