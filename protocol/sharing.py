"""Additive shares of a ring vector: a seed for one server, a vector for the other (docs/protocol.md 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from protocol.arithmetic import kernels
from protocol.arithmetic.ring import SEED_BYTES, Ring, Usage, expand, expand_into
from protocol.errors import MalformedMessage

ChunkSource: TypeAlias = Callable[[int, int], Ring]
"""Elements ``start`` to ``stop`` of a vector that need not be in memory as a whole."""


class Side(StrEnum):
    """One of the two servers."""

    A = "a"
    B = "b"

    @property
    def other(self) -> Side:
        return Side.B if self is Side.A else Side.A


@dataclass(frozen=True, eq=False)
class SeedShare:
    """A share of ``length`` elements given by the 32-byte seed of its stream."""

    seed: bytes = field(repr=False)
    length: int

    def __post_init__(self) -> None:
        if len(self.seed) != SEED_BYTES or self.length < 0:
            raise MalformedMessage(
                f"a seed share has {SEED_BYTES} bytes and a length of at least 0, found {len(self.seed)} bytes "
                f"and length {self.length}"
            )


@dataclass(frozen=True, eq=False)
class VectorShare:
    """A share given element by element."""

    vector: Ring = field(repr=False)

    @property
    def length(self) -> int:
        return self.vector.size


Share: TypeAlias = SeedShare | VectorShare


def vector_side(place_in_roster: int) -> Side:
    """The server that gets the vector: A for even places, B for odd ones, so that both carry the same load."""
    return Side.A if place_in_roster % 2 == 0 else Side.B


def round_seed_side(round_number: int) -> Side:
    """The server that has the seed of what is shared once per round: A in odd rounds, B in even ones."""
    return Side.A if round_number % 2 else Side.B


def split(x: Ring, seed: bytes) -> tuple[SeedShare, VectorShare]:
    """Share a whole vector.

    Shapes:   uint64[n] -> 32 bytes and uint64[n], ring 2^64
    Requires: ``seed`` fresh and secret: each share alone is then uniform
    """
    vector_share = np.empty_like(x)
    split_chunk_into(vector_share, x, seed, 0)
    return SeedShare(seed, x.size), VectorShare(vector_share)


def split_chunk_into(vector_share: Ring, x: Ring, seed: bytes, start: int) -> None:
    """Write the vector share of the piece ``x`` that begins at ``start`` into a buffer as long; allocates nothing.

    Raises:   ProtocolViolation, when lengths differ
    """
    expand_into(seed, Usage.SHARE, vector_share, start=start)
    kernels.mask(x, vector_share, vector_share)


def expand_share(share: Share, start: int, stop: int) -> Ring:
    """Elements ``start`` to ``stop`` of a share, as a fresh array.

    Raises:   MalformedMessage, when the share does not reach that far
    """
    if not 0 <= start <= stop <= share.length:
        raise MalformedMessage(f"a share of {share.length} elements has no elements {start} to {stop}")
    if isinstance(share, SeedShare):
        return expand(share.seed, Usage.SHARE, stop - start, start=start)
    return share.vector[start:stop].copy()


def chunk_source(share: Share) -> ChunkSource:
    return lambda start, stop: expand_share(share, start, stop)
