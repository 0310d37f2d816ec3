"""The protection of updates, from update to bytes and from bytes to average (docs/protocol.md 2, 9, 11).

``protocol/messages/purpose.py`` tells what follows from each for a round. Here is no I/O: random bytes are arguments,
bodies are iterators, and whatever must rest on disk meanwhile is a place that the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import BinaryIO, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.fixed_point import Layers, Update
from protocol.channel.sealing import Octets
from protocol.ckks.scheme import Scratch, SecretKey
from protocol.messages.bodies import Part
from protocol.messages.control import Announcement, OutputHeader, Purpose, Roster, ShareKind, Study
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side

T = TypeVar("T")


@dataclass(frozen=True)
class UnderKey:
    """A site's needs under CKKS. ``spool`` takes a fetched sum, still encrypted, until it is known to be right."""

    key: SecretKey = field(repr=False)
    scratch: Callable[[], AbstractContextManager[Scratch]]
    spool: Callable[[], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True)
class AtSite:
    """A site in a study; ``under`` is None before a key came, and in a study of shares."""

    study: Study
    site: str
    roster: Roster
    under: UnderKey | None = None

    @property
    def layers(self) -> Layers:
        """Name and number of coordinates of each shared layer."""
        return [(layer.name, prod(layer.shape)) for layer in self.study.model.layers]


@dataclass(frozen=True)
class Encoded:
    """A vector checked and clipped; ``pieces`` of its encoding are made while they are taken, once.

    ``norm`` is that of the clipped vector.
    """

    pieces: Iterator[bytes] = field(repr=False)
    clipped: bool
    norm: float


class Fetch(Protocol):
    """Fetch the content that a side serves of a released round."""

    def __call__(self, side: Side, take: Callable[[OutputHeader, Iterator[bytes]], T]) -> T:
        """Return ``take`` of the content; it starts again where the connection breaks."""
        ...


class Protection(Protocol):
    """Shares or ciphertexts, of updates; shares of any other vector too."""

    def whole(self, study: Study, purpose: Purpose) -> tuple[ShareKind, int]:
        """Kind and length of the longest part of a contribution; a vector is encoded in as many elements."""
        ...

    def parts(
        self, study: Study, announcement: Announcement, attempt: int, site: str, roster: Roster
    ) -> dict[Side, Part]:
        """The parts of a contribution by server; a side that gets nothing is absent."""
        ...

    def encode(
        self, at: AtSite, announcement: Announcement, update: Update, weight: float, rounding_seed: bytes
    ) -> Encoded:
        """Check, clip, then weigh, then encode. Shapes: float[D]. Raises: UnusableUpdate, which names the layer"""
        ...

    def content(self, part: Part, encoded: Iterable[Octets], share_seed: bytes) -> Iterator[Octets]:
        """One part's content out of the encoding; a piece holds until the next one is taken.

        Requires: ``share_seed`` fresh for the attempt, and the same for all of its parts
        Reveals:  of shares, nothing; of ciphertexts, everything to holders of the key
        """
        ...

    def served(self, study: Study, announcement: Announcement, side: Side) -> tuple[ShareKind, int]:
        """Kind and length of what a side serves of a released round. Raises: UnknownResource, when it serves nothing"""
        ...

    def open(self, at: AtSite, past: PastRelease, fetch: Fetch) -> NDArray[np.float32]:
        """The average update of a released round whose evidence was checked.

        Shapes:   -> float32[D]
        Reveals:  the average, to this site
        Raises:   AggregateOutOfBounds (SumForged), which discards the round; BadSignature, AnnouncementMismatch,
                  TranscriptMismatch, MalformedMessage, BrokenSeal; Unavailable, UnknownResource
        """
        ...
