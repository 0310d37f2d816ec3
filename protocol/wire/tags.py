"""Signed messages of a round with tags, between its release set and its end (docs/protocol.md 15)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from protocol.sharing import Side
from protocol.wire.message import Attempt, Digest, Message, PartyName, RoundNumber, Secret32, Signed
from protocol.wire.round import ShareKind

Word = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
"""A ring element: 16 hex digits, the highest first."""
Words = tuple[Word, Word]


class TagSeed(Message):
    """The requester shows a server the seed of the round's tags, once both servers have committed to their halves."""

    KIND: ClassVar[str] = "tag_seed"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    seed: Secret32


class OutputCommitment(Message):
    """A server's commitment to what it will serve of a release, signed before it sees the seed of the tags.

    ``half_digest`` is a commitment to the mask's seed, or the digest of the masked vector (``protocol.tags.halves``).
    """

    KIND: ClassVar[str] = "output_commitment"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    release_digest: Digest
    side: Side
    share_kind: ShareKind
    half_digest: Digest


class TagCheck(Message):
    """<K_j, half> - tag_j over a server's own half of the output, not refreshed; signed by that server.

    Both servers' values add up to the errors of the sum's tags, zero where nothing is wrong.
    """

    KIND: ClassVar[str] = "tag_check"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    side: Side
    commitment_digest: Digest
    values: Words


class HalvesChecked(Message):
    """Both servers' commitments and checks of one release, side A's first, each signed by its server."""

    KIND: ClassVar[str] = "halves_checked"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    release_digest: Digest
    commitments: tuple[Signed[OutputCommitment], Signed[OutputCommitment]]
    checks: tuple[Signed[TagCheck], Signed[TagCheck]]


class Go(HalvesChecked):
    """The checks add up to zero: the servers may serve the halves that they committed to. Signed by the requester."""

    KIND: ClassVar[str] = "go"


class TagsFailed(HalvesChecked):
    """They do not: nothing is served, and the round ends. Signed by the requester."""

    KIND: ClassVar[str] = "tags_failed"


class TagShares(Message):
    """A server's shares of the errors of single sites' tags, for the requester alone; signed by that server.

    They add up to zero for a site whose tags are those of its vector.
    """

    KIND: ClassVar[str] = "tag_shares"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    release_digest: Digest
    side: Side
    sites: tuple[PartyName, ...]
    values: Annotated[tuple[Words, ...], Field(repr=False)]

    @model_validator(mode="after")
    def _consistent(self) -> TagShares:
        if len(self.sites) != len(self.values):
            raise ValueError(f"{len(self.sites)} sites and {len(self.values)} values; one for each")
        return self
