"""Messages between the two servers (docs/protocol.md 4, 7, 8, 9, 23); A calls, B answers.

Vectors travel behind a message in one frame: u32 big-endian length, the message's canonical bytes, then the
ring vectors as little-endian uint64.

Each server keeps the last history of the other. An older database that was put back shows by it: its server signed more
than it knows now. The proof is that server's own signature, so nobody but itself can hold one against it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.channel.message import omitted
from protocol.messages.control import (
    AgreedSet,
    ChallengeTranscript,
    CollectedContribution,
    Digest,
    Go,
    Message,
    PartyName,
    ShareKind,
    Signature,
    Signed,
)
from protocol.messages.round import OfAttempt


class SessionOpen(Message):
    """A opens an OT session: its id and A's half of the zero-sharing key, sealed to B."""

    KIND: ClassVar[str] = "session_open"
    session: Digest
    sealed_key_part: Annotated[str, Field(pattern=r"^[0-9a-f]+$", max_length=8192, repr=False)]


class SessionOpened(Message):
    """B's half of the zero-sharing key, sealed to A; B's base-OT message follows in the frame."""

    KIND: ClassVar[str] = "session_opened"
    session: Digest
    sealed_key_part: Annotated[str, Field(pattern=r"^[0-9a-f]+$", max_length=8192, repr=False)]


class BatchHeader(Message):
    """One OT-extension step of one batch: the product lengths of each correlation that it makes, in order."""

    KIND: ClassVar[str] = "ot_batch"
    session: Digest
    batch: Annotated[int, Field(ge=0)]
    lengths: tuple[tuple[Annotated[int, Field(ge=1)], ...], ...]


class CollectedSet(OfAttempt, Message):
    """One server's contributions of an attempt. ``complete``: all listed sites and the requester, or too late."""

    KIND: ClassVar[str] = "collected_set"
    announcement_digest: Digest
    complete: bool
    contributions: tuple[CollectedContribution, ...]


class LockRequest(Message):
    """A's signed agreed set and H("A", round, set digest, n_A)."""

    KIND: ClassVar[str] = "lock_request"
    agreed_set: Signed[AgreedSet]
    commitment_a: Digest


class LockReply(Message):
    """B's signature over the same agreed set, and n_B in clear."""

    KIND: ClassVar[str] = "lock_reply"
    signature: Signature
    nonce_b: Digest


class ChallengeReveal(Message):
    """A reveals n_A inside the transcript, signed by A."""

    KIND: ClassVar[str] = "challenge_reveal"
    transcript: Signed[ChallengeTranscript]


class ChallengeReply(Message):
    KIND: ClassVar[str] = "challenge_reply"
    signature: Signature


class CorrelationRef(Message):
    """The correlation that serves a site: bound for ever to (study, round, site, attempt)."""

    KIND: ClassVar[str] = "correlation_ref"
    site: PartyName
    session: Digest
    batch: Annotated[int, Field(ge=0)]
    index: Annotated[int, Field(ge=0)]


class ProductsHeader(Message):
    """One side's masked operands of all sites of an attempt, concatenated in this order behind the header."""

    KIND: ClassVar[str] = "products"
    transcript_digest: Digest
    correlations: tuple[CorrelationRef, ...]


class HandOver(Message):
    """A has stored the requester's go and signs no skip of the round any more: B may serve."""

    KIND: ClassVar[str] = "hand_over"
    go: Signed[Go]


class MaskedSumHeader(Message):
    """The masking side's sum less PRG(t), streamed behind the header: 8 D bytes, or 6 D of ``vector48``."""

    KIND: ClassVar[str] = "masked_sum"
    release_digest: Digest
    length: Annotated[int, Field(ge=1)]
    share_kind: ShareKind = omitted(ShareKind.VECTOR)


Count = Annotated[int, Field(ge=0, le=2**53)]


class History(Message):
    """A server's store at the time of signing: a count and a time, nothing of any study.

    ``run`` is drawn at every start, ``start`` counts them, for people. ``changes`` is how many changes its database has
    seen once this start has compared, and ``began`` before that; ``began`` how many at this start, or, where starts
    before it compared nothing with the other server, at the first of those. ``restored_at_s``: when its operator last
    said that an older database was put back on purpose, in seconds since 1970, 0 for never.
    """

    KIND: ClassVar[str] = "server_history"
    party: PartyName
    run: Digest
    start: Annotated[int, Field(ge=1, le=2**53)]
    began: Count
    changes: Count
    restored_at_s: Count = 0

    def follows(self, earlier: History) -> bool:
        """Return whether a server that signed ``earlier`` and lost nothing since can say this.

        False also for an older message of the same server that came late; ``same_run`` tells those of one start.
        """
        if self.restored_at_s != earlier.restored_at_s:
            return self.restored_at_s > earlier.restored_at_s
        if self.same_run(earlier):
            return self.changes >= earlier.changes
        return self.began >= earlier.changes

    def same_run(self, other: History) -> bool:
        return self.run == other.run

    @property
    def place(self) -> str:
        """The place in words for people."""
        return f"start {self.start}, change {self.changes}"


class Histories(Message):
    """One server to the other: how far it has come, and the furthest that the other has said of itself, if any."""

    KIND: ClassVar[str] = "server_histories"
    own: Signed[History]
    known: Signed[History] | None = None
