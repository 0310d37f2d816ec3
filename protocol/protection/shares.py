"""Updates as additive shares at two servers, and the average out of their halves (docs/protocol.md 2, 3, 9).

Class counts, ranking vectors and probes leave a site in the same way, each encoded by a function of its own.

A site appends tags to its vector, and checks those of a sum while it is opened (section 15). The sum's kept tags, whose
key no server has, say in one pass whether it is the sum of what the sites shared. Only where they are wrong is it
fetched and looked at again, for whose doing that is: the halves are those that both servers signed, else they are asked
for anew; then the coordinates and the length, then the shown tags. A sum whose shown tags are wrong although the
servers' checks added up to zero contradicts the check of a server, which is named. Where they are right, a site made
its kept tags wrong, and the sum is what it should be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic import kernels
from protocol.arithmetic.fixed_point import Layers, Real, Update, encode_into, packed, scaling_of
from protocol.arithmetic.kernels import Scaling
from protocol.arithmetic.ring import ELEMENT_BYTES, Ring, Signed, Usage, expand_into, from_bytes, octets, to_bytes
from protocol.channel.sealing import Octets
from protocol.errors import AggregateOutOfBounds, SumAltered, Unavailable
from protocol.messages import bodies
from protocol.messages.bodies import ElementReader, Part, share_parts
from protocol.messages.control import Announcement, Go, OutputHeader, Purpose, Roster, ShareKind, Study
from protocol.parameters import TAG_COORDINATES, StudyParameters
from protocol.protection.interface import AtSite, Encoded, Fetch
from protocol.release import (
    AverageOpener,
    average_chunk,
    class_totals,
    longest_sum,
    mask_source,
    masking_side,
    open_aggregate_chunk,
    own_weights_sum,
    require_clipped_sum,
    self_weighted_bound,
)
from protocol.rounds.evidence import PastRelease, require_go, sum_of_numerators
from protocol.rules.fedavg import counts_vector
from protocol.sharing import Side, split_chunk_into
from protocol.summary.table_one import TableOne, table_one
from protocol.tags import (
    TagErrors,
    TagPair,
    TagSums,
    VectorDigest,
    attempt_key,
    contradicted,
    errors_of,
    kept_key,
    mask_digest,
    require_seed,
    shown_seed,
)

T = TypeVar("T")
Pieces = Iterator[tuple[int, Ring]]


def with_tags(
    encoded: Iterable[Octets], announcement: Announcement, attempt: int, seed: str | None
) -> Iterator[Octets]:
    """The encoding as it is, and both pairs of tags behind it where the round has tags.

    Requires: every piece holds whole elements; ``seed`` of the weight list, hexadecimal
    Raises:   CommitmentMismatch, when it is not the announced one
    """
    drawn = require_seed(announcement, seed)
    if drawn is None:
        yield from encoded
        return
    shown = TagSums(attempt_key(announcement, attempt, shown_seed(drawn)))
    kept = TagSums(kept_key(announcement, attempt, drawn))
    for piece in encoded:
        values = from_bytes(piece, memoryview(piece).nbytes // ELEMENT_BYTES)
        shown.add(values)
        kept.add(values)
        yield piece
    yield to_bytes(np.concatenate([shown.values()[0], kept.values()[0]]))


class CheckedHalves:
    """Both halves of a released sum with tags, while the sum is opened; ``closely``: held against what servers signed.

    Raises: Unavailable, when a half is not the signed one; BadSignature, AnnouncementMismatch, CommitmentMismatch
    """

    def __init__(
        self,
        past: PastRelease,
        roster: Roster,
        mask_seed: bytes,
        length: int,
        *,
        closely: bool = False,
    ) -> None:
        self._go: Go = require_go(past, roster)
        self._mask_seed = mask_seed
        self._from_vector = masking_side(past.announcement.round).other
        self._values = length - TAG_COORDINATES
        self._length = length
        self._closely = closely
        drawn = require_seed(past.announcement, past.weight_list.tag_seed) or b""
        self._shown_key = attempt_key(past.announcement, self._go.attempt, shown_seed(drawn))
        key, pair = self._shown_key, TagPair.SHOWN
        if not closely:
            key, pair = kept_key(past.announcement, self._go.attempt, drawn), TagPair.KEPT
        self._errors = TagErrors(key, length, pair=pair)
        self._digest = VectorDigest()
        self._opened = np.empty(0, dtype=np.uint64)
        self._require_half(self._from_vector.other, mask_digest(mask_seed))

    def opened(self, pieces: Pieces, take: Callable[[Pieces], T]) -> T | None:
        """Return ``take`` of the sum without mask and tags; a piece is valid until the next one is taken.

        None where the kept tags are wrong: fetch the sum again, and look ``closely``.

        Raises: as the class; what ``take`` raises; SumAltered
        """
        passing = self._values_of(pieces)
        try:
            taken, broken = take(passing), None
        except AggregateOutOfBounds as beyond:  # whether it is the sum of the shares is known at its end
            broken = beyond
        for _ in passing:
            pass
        if self._closely:
            self._require_half(self._from_vector, self._digest.hexdigest())
            self._require_shown_tags()  # first: whoever forged its check is named, however large its error is
        elif not self._kept_tags_fit():
            return None
        if broken is not None:
            raise broken
        return taken

    def _values_of(self, pieces: Pieces) -> Pieces:
        for start, masked in pieces:
            if self._closely:
                self._digest.update(octets(masked))
            opened = self._without_mask(masked, start)
            self._errors.add(opened)
            values = opened[: max(0, self._values - start)]
            if values.size:
                yield start, values

    def _without_mask(self, masked: Ring, start: int) -> Ring:
        if self._opened.size < masked.size:
            self._opened = np.empty(masked.size, dtype=np.uint64)
        opened = self._opened[: masked.size]
        expand_into(self._mask_seed, Usage.OUTPUT_MASK, opened, start=start)
        kernels.add_into(opened, masked)
        return opened

    def _kept_tags_fit(self) -> bool:
        return not np.any(self._errors.values())

    def _require_shown_tags(self) -> None:
        of_sum = self._errors.values()[0]
        if not np.any(of_sum):
            return
        of_mask = errors_of(self._shown_key, self._length, [mask_source(self._mask_seed)])[0]
        sides = contradicted(self._go, of_mask, of_sum - of_mask)
        named = " and ".join(f"server {side.value.upper()}" for side in sides)
        raise SumAltered(
            f"round {self._go.round}: the tags of the sum are wrong, and {named} signed that its half's are other than "
            "they are: it altered the sum, or its check. The model stays as it was; compare records with the other "
            "operator before another study is begun",
            tuple(side.value for side in sides),
        )

    def _require_half(self, side: Side, found: str) -> None:
        if found != self._go.commitments[list(Side).index(side)].message.half_digest:
            raise Unavailable(
                f"round {self._go.round}: server {side.value.upper()} serves another half of the sum than it signed; "
                "nothing of it is used, and it is fetched again: if this goes on, ask its operator for the signed one"
            )


CHUNK: Final = 2**15
_AVERAGED_AT_ONCE: Final = 2**16


class Shares:
    """Each share alone is uniform; both servers' halves of a masked sum make the average."""

    def whole(self, study: Study, purpose: Purpose) -> tuple[ShareKind, int]:
        return ShareKind.vector_of(study.parameters_in(purpose).ring_bits), study.shared_length(purpose)

    def parts(
        self, study: Study, announcement: Announcement, attempt: int, site: str, roster: Roster
    ) -> dict[Side, Part]:
        purpose, bits = announcement.purpose, study.parameters_in(announcement.purpose).ring_bits
        return share_parts(announcement, attempt, site, roster, study.shared_length(purpose), bits)

    def encode(
        self, at: AtSite, announcement: Announcement, update: Update, weight: float, rounding_seed: bytes
    ) -> Encoded:
        own = at.study.rule.name.self_weighted
        return encode_update(update, at.layers, weight, at.study.parameters, rounding_seed, own_weighted=own)

    def content(self, part: Part, encoded: Iterable[Octets], share_seed: bytes) -> Iterator[Octets]:
        if part.kind is ShareKind.SEED:
            yield share_seed
            return
        wrong = f"the encoded vector has {{}} elements, its part {part.length}"
        elements = ElementReader(part.length, wrong.format("more"), wrong)
        buffer = np.empty(min(CHUNK, part.length), dtype=np.uint64)
        for piece in encoded:
            start, chunk = elements.feed(piece)
            share = buffer[: chunk.size] if chunk.size <= buffer.size else np.empty(chunk.size, dtype=np.uint64)
            split_chunk_into(share, chunk, share_seed, start)
            yield packed(share, part.kind.ring_bits)
        elements.finish()

    def served(self, study: Study, announcement: Announcement, side: Side) -> tuple[ShareKind, int]:
        purpose, bits = announcement.purpose, study.parameters_in(announcement.purpose).ring_bits
        return bodies.output_kind(side, announcement.round, bits), study.shared_length(purpose)

    def open(self, at: AtSite, past: PastRelease, fetch: Fetch) -> NDArray[np.float32]:
        opened = _own_weighted if at.study.rule.name.self_weighted else _average
        return _fetched(at, past, fetch, lambda vector: opened(at, vector))


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode_update(
    update: Update,
    layers: Layers,
    weight: float,
    parameters: StudyParameters,
    rounding_seed: bytes,
    *,
    own_weighted: bool = False,
) -> Encoded:
    """w g; with ``own_weighted`` (w g, w C): the weight is the last coordinate, w E, rounded like any other.

    Shapes:   float[D] or float[D - 1] -> uint64[D], f fraction bits
    Raises:   UnusableUpdate, which names the layer
    Source:   docs/protocol.md 2: clip first, then the weight, then the encoding
    """
    scaling = scaling_of(update, layers, parameters, weight)

    def pieces() -> Iterator[bytes]:
        for start in range(0, update.size, CHUNK):
            yield _encoded(update[start : start + CHUNK], scaling, rounding_seed, start)
        if own_weighted:
            norm = np.array([parameters.clip_norm])
            yield _encoded(norm, Scaling(weight=weight, scale=parameters.scale), rounding_seed, update.size)

    return Encoded(pieces(), scaling.clips, parameters.clip_norm if scaling.clips else norm_of(update))


def norm_of(update: Update) -> float:
    """L2 norm in float64, chunk by chunk."""
    pieces = (update[start : start + CHUNK].astype(np.float64) for start in range(0, update.size, CHUNK))
    return math.sqrt(sum(float(np.sum(np.square(piece))) for piece in pieces))


def encode_counts(counts: Sequence[int], parameters: StudyParameters) -> Encoded:
    """Class counts as plain ring integers, zeros behind them.

    Shapes:   -> uint64[D], no fraction bits
    Raises:   UnusableUpdate when they do not fit
    """
    return Encoded(iter([to_bytes(counts_vector(counts, parameters))]), clipped=False, norm=0.0)


def encode_integers(vector: Signed) -> Encoded:
    """A summary as it is. Shapes: int64[L] -> uint64[L], no fraction bits"""
    return Encoded(iter([to_bytes(vector.astype(np.uint64))]), clipped=False, norm=0.0)


def encode_vector(vector: Real, parameters: StudyParameters, rounding_seed: bytes) -> Encoded:
    """A short vector of a ranking, in one piece. Shapes: float64[L] -> uint64[L], f fraction bits"""
    whole = _encoded(vector, Scaling(scale=parameters.scale), rounding_seed, 0)
    return Encoded(iter([whole]), clipped=False, norm=float(np.linalg.norm(vector)))


def _encoded(piece: Update, scaling: Scaling, rounding_seed: bytes, start: int) -> bytes:
    encoded = np.empty(piece.shape, dtype=np.uint64)
    encode_into(encoded, piece, scaling, rounding_seed, start)
    return to_bytes(encoded)


# --- opening ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Vector:
    """The masked half of a released round's output as it arrives, each piece with its place; and the mask's seed.

    Where tags are checked the mask is taken off with them: ``seed`` is None then.
    """

    past: PastRelease
    pieces: Iterator[tuple[int, Ring]]
    seed: bytes | None = field(repr=False)

    @property
    def summed(self) -> int:
        """The number of sites whose vectors are summed."""
        return len(self.past.release_set.message.sites)


def _fetched(at: AtSite, past: PastRelease, fetch: Fetch, take: Callable[[_Vector], T]) -> T:
    """Return ``take`` of the masked vector once the mask's seed is here; with tags, once the sum has its own.

    A sum whose kept tags are wrong is fetched once more, to see by what the servers signed whose doing that is.
    """
    mask_from = masking_side(past.announcement.round)
    seed = fetch(mask_from, bodies.output_seed)
    if not past.announcement.tagged:
        return fetch(
            mask_from.other,
            lambda header, content: take(_Vector(past, bodies.output_elements(header, content), seed)),
        )

    def taken(header: OutputHeader, content: Iterator[bytes], *, closely: bool) -> T | None:
        halves = CheckedHalves(past, at.roster, seed, header.length, closely=closely)
        pieces = bodies.output_elements(header, content)
        return halves.opened(pieces, lambda values: take(_Vector(past, values, None)))

    found = fetch(mask_from.other, partial(taken, closely=False))
    if found is None:
        found = fetch(mask_from.other, partial(taken, closely=True))
    return cast(T, found)


def _average(at: AtSite, vector: _Vector) -> NDArray[np.float32]:
    parameters, numerators = at.study.parameters, sum_of_numerators(vector.past, at.roster)
    longest = longest_sum(parameters, numerators, vector.summed)
    opener = AverageOpener(vector.seed, longest, numerators / parameters.weight_grid, parameters)
    out = np.empty(parameters.dimension, dtype=np.float32)
    for start, masked in vector.pieces:
        opener.open_into(out[start : start + masked.size], masked, start)
    opener.finish()
    return out


def _own_weighted(at: AtSite, vector: _Vector) -> NDArray[np.float32]:
    """Without the last coordinate, the sum of weights: it comes last, so the whole sum is held until it is known."""
    parameters, signed = at.study.parameters, _whole(vector, at.study.parameters)
    weights = own_weights_sum(int(signed[-1]), parameters, vector.summed)
    require_clipped_sum(signed[:-1], int(signed[-1]), vector.summed)
    out = np.empty(signed.size - 1, dtype=np.float32)
    for start in range(0, out.size, _AVERAGED_AT_ONCE):
        piece = signed[start : min(start + _AVERAGED_AT_ONCE, out.size)]
        out[start : start + piece.size] = average_chunk(piece, weights, parameters)
    return out


def _whole(vector: _Vector, parameters: StudyParameters) -> Signed:
    """The opened sum of vectors whose weights only their sites know."""
    bound = self_weighted_bound(parameters, vector.summed)
    out = np.empty(parameters.dimension, dtype=np.int64)
    for start, masked in vector.pieces:
        out[start : start + masked.size] = open_aggregate_chunk(
            masked, vector.seed, start, bound, bits=parameters.ring_bits
        )
    return out


def open_summary(at: AtSite, past: PastRelease, fetch: Fetch) -> TableOne:
    """Open the sum of all sites' summaries in a released round.

    Reveals:  the table, to this site
    Raises:   as :meth:`Protection.open`
    """
    parameters = at.study.parameters_in(past.announcement.purpose)
    signed = _fetched(at, past, fetch, lambda vector: _whole(vector, parameters))
    return table_one(signed, at.study.summary_layout, len(past.release_set.message.sites))


def open_counts(at: AtSite, past: PastRelease, fetch: Fetch) -> tuple[int, ...]:
    """The class counts of all sites in a released round of counts together.

    Reveals:  the totals, to this site
    Raises:   as :meth:`Protection.open`
    """
    signed = _fetched(at, past, fetch, lambda vector: _whole(vector, at.study.parameters))
    return class_totals(signed, at.study.model.classes, len(past.release_set.message.sites))
