"""Messages between the two servers (docs/protocol.md 4, 7, 8, 9); A calls, B answers.

Vectors travel behind a message in one frame: u32 big-endian length, the message's canonical bytes, then the
ring vectors as little-endian uint64.
"""

from __future__ import annotations

import struct
from typing import Annotated, ClassVar, Final, TypeVar

from pydantic import Field

from protocol.errors import MalformedMessage
from protocol.wire.messages import (
    MAX_CONTROL_BYTES,
    AgreedSet,
    Attempt,
    ChallengeTranscript,
    CollectedContribution,
    Digest,
    Go,
    Message,
    PartyName,
    RoundNumber,
    ShareKind,
    Signature,
    Signed,
)

M = TypeVar("M", bound=Message)
_LENGTH: Final = struct.Struct(">I")


def pack_frame(message: Message, body: bytes = b"") -> bytes:
    """One message followed by raw bytes."""
    head = message.canonical()
    return _LENGTH.pack(len(head)) + head + body


def unpack_frame(data: bytes, kind: type[M]) -> tuple[M, memoryview]:
    """The message and the bytes behind it; MalformedMessage when the frame is short or the message wrong."""
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise MalformedMessage(f"{kind.KIND}: a frame of {len(view)} bytes is shorter than its length field")
    (size,) = _LENGTH.unpack(view[: _LENGTH.size])
    if size > MAX_CONTROL_BYTES or len(view) < _LENGTH.size + size:
        raise MalformedMessage(f"{kind.KIND}: the frame says {size} header bytes, {len(view) - _LENGTH.size} follow")
    return kind.parse(bytes(view[_LENGTH.size : _LENGTH.size + size])), view[_LENGTH.size + size :]


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


class CollectedSet(Message):
    """One server's contributions of an attempt. ``complete``: all listed sites and the requester, or too late."""

    KIND: ClassVar[str] = "collected_set"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
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
    """y_A - PRG(t), the masking side's sum, streamed behind the header: 8 D bytes, or 6 D of ``vector48``."""

    KIND: ClassVar[str] = "masked_sum"
    release_digest: Digest
    length: Annotated[int, Field(ge=1)]
    share_kind: ShareKind = Field(default=ShareKind.VECTOR, exclude_if=lambda kind: kind is ShareKind.VECTOR)
