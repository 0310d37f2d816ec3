"""Tags of a vector, and by how much a vector's tags are wrong (docs/protocol.md 15).

K_1 and K_2 are one stream of 64-bit words, K_2 a place further: <K_j, x> = sum of word[c + j - 1] x[c]. So two tags
cost one stream. For an error e whose last entry other than zero is e[c], the first tag hits with probability 2^(v-64),
2^v the power of two in e[c], over word[c], whatever comes before; and the second one too over word[c + 1], which the
first does not use: together at most 2^(2v-128), as with two independent streams. No error within the coordinates'
bound has v above 34, so at most 2^-60.

Source: the multilinear hash over a ring with shifted keys, Carter and Wegman 1981; shifts as in UMAC, Black, Halevi,
Krawczyk, Krovetz and Rogaway 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from protocol.arithmetic.kernels import NUMBA, Kernels
from protocol.arithmetic.prg import Usage, expand_into
from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation
from protocol.parameters import TAG_COORDINATES
from protocol.sharing import ChunkSource

_PIECE: Final = 1 << 15
_CHUNK: Final = 1 << 16


class TagSums:
    """<K_1, x> and <K_2, x> of one or more vectors that come piece by piece, each from its first coordinate on.

    Requires: ``key`` from :func:`protocol.tags.keys.attempt_key`
    """

    def __init__(self, key: bytes, vectors: int = 1, kernels: Kernels = NUMBA) -> None:
        self._key = key
        self._kernels = kernels
        self._done = 0
        self._totals = np.zeros((vectors, TAG_COORDINATES), dtype=np.uint64)
        self._words = np.empty(_PIECE + TAG_COORDINATES - 1, dtype=np.uint64)

    def add(self, *pieces: Ring) -> None:
        """The next piece of every vector, as long as each other.

        Shapes:   uint64[n] each, ring 2^64
        Raises:   ProtocolViolation, when there is not one for each vector, or they differ in length
        """
        _require_same(pieces, len(self._totals))
        size = pieces[0].size
        for start in range(0, size, _PIECE):
            part = min(_PIECE, size - start)
            words = self._words[: part + TAG_COORDINATES - 1]
            expand_into(self._key, Usage.TAGS, words, start=self._done)
            for total, piece in zip(self._totals, pieces, strict=True):
                self._kernels.multiply_into(total, words, piece[start : start + part])
            self._done += part

    def values(self) -> Ring:
        """The tags of what has come so far. Shapes: -> uint64[vectors, 2], ring 2^64"""
        return self._totals.copy()


class TagErrors:
    """<K_j, x> - tag_j of vectors that end with their two tags; zero for a vector that carries its own.

    Shares of a vector have errors that add up to the vector's.

    Requires: ``length`` counts the tags; ``key`` as for :class:`TagSums`
    """

    def __init__(self, key: bytes, length: int, vectors: int = 1, kernels: Kernels = NUMBA) -> None:
        self._sums = TagSums(key, vectors, kernels)
        self._left = length - TAG_COORDINATES
        self._tags = np.zeros((vectors, TAG_COORDINATES), dtype=np.uint64)
        self._tags_left = TAG_COORDINATES

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
        return self._sums.values() - self._tags


def errors_of(key: bytes, length: int, sources: Sequence[ChunkSource], kernels: Kernels = NUMBA) -> Ring:
    """:class:`TagErrors` of vectors that need not be in memory: shares, or the halves of an output.

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
