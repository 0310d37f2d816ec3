"""Tags at a site: append them to its vector, check those of a sum while it is opened (section 15).

The sum's kept tags, whose key no server has, say in one pass whether it is the sum of what the sites shared. Only
where they are wrong is it fetched and looked at again, for whose doing that is: the halves are those that both servers
signed, else they are asked for anew; then the coordinates and the length, then the shown tags. A sum whose shown tags
are wrong although the servers' checks added up to zero contradicts the check of a server, which is named. Where they
are right, a site made its kept tags wrong, and the sum is what it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from protocol.arithmetic.kernels import NUMBA, Kernels
from protocol.arithmetic.prg import Usage, expand_into
from protocol.arithmetic.ring import ELEMENT_BYTES, Ring, from_bytes, octets, to_bytes
from protocol.errors import AggregateOutOfBounds, SumAltered, Unavailable
from protocol.evidence import PastRelease, require_go
from protocol.parameters import TAG_COORDINATES
from protocol.release import mask_source, masking_side
from protocol.sharing import Side
from protocol.tags.halves import VectorDigest, mask_digest
from protocol.tags.keys import attempt_key, kept_key, require_seed, shown_seed
from protocol.tags.sums import TagErrors, TagPair, TagSums, errors_of
from protocol.tags.verdicts import contradicted
from protocol.wire.channel.sealing import Octets
from protocol.wire.messages import Announcement, Go, Roster

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
        kernels: Kernels = NUMBA,
    ) -> None:
        self._go: Go = require_go(past, roster)
        self._mask_seed = mask_seed
        self._from_vector = masking_side(past.announcement.round).other
        self._values = length - TAG_COORDINATES
        self._length = length
        self._kernels = kernels
        self._closely = closely
        drawn = require_seed(past.announcement, past.weight_list.tag_seed) or b""
        self._shown_key = attempt_key(past.announcement, self._go.attempt, shown_seed(drawn))
        key, pair = self._shown_key, TagPair.SHOWN
        if not closely:
            key, pair = kept_key(past.announcement, self._go.attempt, drawn), TagPair.KEPT
        self._errors = TagErrors(key, length, kernels=kernels, pair=pair)
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
        self._kernels.add_into(opened, masked)
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
