"""Tags of a vector, and by how much a vector's tags are wrong (docs/protocol.md 15).

A vector ends with two pairs of tags: the first under the key that servers are shown, the second under the one that
stays among the sites. A pair is <K_1, x> and <K_2, x>: with c the place i in block b, K_1[c] = r[b] k[i] and K_2[c] =
s[b] k[i + 1], for words k of one block and two scales for each block, all uniform. So a pair takes next to no AES.

For an error e whose last block other than zero is b, and the last entry other than zero there e[c], divisible by 2^v
and no further: both <k, e's block> and its neighbour a word on are 2^v times something uniform, the second whatever the
first is; the first tag hits over r[b] with probability 2^(w-64) where 2^w divides its product, the second over s[b]. On
average over k, a pair hits with at most 2^(2v-128) ((64 - v) / 2 + 1)^2. No error within the coordinates' bound has v
above 34, so at most 2^-52.

Source: the multilinear hash over a ring with shifted keys, Carter and Wegman 1981, over blocks with one key as in UMAC,
Black, Halevi, Krawczyk, Krovetz and Rogaway 1999; scales in place of its second hash, as tags have to add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, unique
from typing import Final

import numpy as np

from protocol.arithmetic.kernels import NUMBA, Kernels
from protocol.arithmetic.prg import Usage, expand, expand_into
from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation
from protocol.parameters import TAG_COORDINATES
from protocol.sharing import ChunkSource

PAIR: Final = 2
BLOCK: Final = 2048
_SCALES_FROM: Final = BLOCK + 2
_BLOCKS_AT_ONCE: Final = 256
_WINDOW: Final = _BLOCKS_AT_ONCE * BLOCK
_CHUNK: Final = 1 << 15


@unique
class TagPair(IntEnum):
    """The two pairs behind a vector, in their order."""

    SHOWN = 0
    KEPT = 1


class TagSums:
    """<K_1, x> and <K_2, x> of one or more vectors that come piece by piece, each from its first coordinate on.

    Requires: ``key`` from :func:`protocol.tags.keys.attempt_key` or :func:`protocol.tags.keys.kept_key`
    """

    def __init__(self, key: bytes, vectors: int = 1, kernels: Kernels = NUMBA) -> None:
        self._key = key
        self._kernels = kernels
        self._done = 0
        self._totals = np.zeros((vectors, PAIR), dtype=np.uint64)
        self._words = expand(key, Usage.TAGS, BLOCK + 1)
        self._scales = np.empty(PAIR * _BLOCKS_AT_ONCE, dtype=np.uint64)

    def add(self, *pieces: Ring) -> None:
        """The next piece of every vector, as long as each other.

        Shapes:   uint64[n] each, ring 2^64
        Raises:   ProtocolViolation, when there is not one for each vector, or they differ in length
        """
        _require_same(pieces, len(self._totals))
        at = 0
        while at < pieces[0].size:
            window, within = divmod(self._done, _WINDOW)
            if within == 0:
                expand_into(self._key, Usage.TAGS, self._scales, start=_SCALES_FROM + self._scales.size * window)
            stop = min(pieces[0].size, at + _WINDOW - within)
            block, place = divmod(within, BLOCK)
            for total, piece in zip(self._totals, pieces, strict=True):
                self._kernels.multiply_into(total, self._words, self._scales[PAIR * block :], piece[at:stop], place)
            self._done += stop - at
            at = stop

    def values(self) -> Ring:
        """The tags of what has come so far. Shapes: -> uint64[vectors, 2], ring 2^64"""
        return self._totals.copy()


class TagErrors:
    """<K_j, x> - tag_j of vectors that end with their tags, for one pair; zero for a vector that carries its own.

    Shares of a vector have errors that add up to the vector's.

    Requires: ``length`` counts all tags; ``key`` as for :class:`TagSums`, of this ``pair``
    """

    def __init__(
        self,
        key: bytes,
        length: int,
        vectors: int = 1,
        kernels: Kernels = NUMBA,
        pair: TagPair = TagPair.SHOWN,
    ) -> None:
        self._sums = TagSums(key, vectors, kernels)
        self._left = length - TAG_COORDINATES
        self._tags = np.zeros((vectors, TAG_COORDINATES), dtype=np.uint64)
        self._tags_left = TAG_COORDINATES
        self._own = slice(PAIR * pair, PAIR * (pair + 1))

    def add(self, *pieces: Ring) -> None:
        """The next piece of every vector. Shapes, raises: as :meth:`TagSums.add`; ProtocolViolation, too long ones"""
        _require_same(pieces, len(self._tags))
        size = pieces[0].size
        values = min(self._left, size)
        self._sums.add(*(piece[:values] for piece in pieces))
        self._left -= values
        tags, place = size - values, TAG_COORDINATES - self._tags_left
        if tags > self._tags_left:
            raise ProtocolViolation(f"a vector goes on for {tags - self._tags_left} elements behind its tags")
        for row, piece in zip(self._tags, pieces, strict=True):
            row[place : place + tags] = piece[values:]
        self._tags_left -= tags

    def values(self) -> Ring:
        """The errors, once all has come.

        Shapes:   -> uint64[vectors, 2], ring 2^64
        Raises:   ProtocolViolation, when elements are missing
        """
        if self._tags_left:
            raise ProtocolViolation(f"{self._left + self._tags_left} elements are missing at the end of a vector")
        return self._sums.values() - self._tags[:, self._own]


def errors_of(key: bytes, length: int, sources: Sequence[ChunkSource], kernels: Kernels = NUMBA) -> Ring:
    """:class:`TagErrors` of vectors that need not be in memory: shares, or the halves of an output; shown tags.

    Shapes:   -> uint64[len(sources), 2], ring 2^64
    """
    errors = TagErrors(key, length, len(sources), kernels)
    for start in range(0, length, _CHUNK):
        stop = min(start + _CHUNK, length)
        errors.add(*(source(start, stop) for source in sources))
    return errors.values()


def _require_same(pieces: Sequence[Ring], vectors: int) -> None:
    if len(pieces) != vectors or len({piece.shape for piece in pieces}) != 1:
        raise ProtocolViolation(
            f"{vectors} vectors take {vectors} pieces of one length, found shapes {[piece.shape for piece in pieces]}"
        )
