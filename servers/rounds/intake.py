"""Request bodies: small ones whole, under a cap; large ones streamed through hashing and decryption to disk."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from fastapi import Request

from protocol.channel.commitment import MessageDigest, check_commitment
from protocol.channel.keys import SealingKey
from protocol.channel.sealing import Octets, SealedReader
from protocol.channel.signing import DigestField
from protocol.errors import BadSignature, BrokenSeal, MalformedMessage, RefusedMessage, TooLarge
from protocol.messages.bodies import Expected
from protocol.messages.control import MAX_CONTROL_BYTES, Message, Party
from servers.store.upload_parts import NewCheck

H = TypeVar("H", bound=Message)

_PIECE_BYTES: Final = 2**20


@dataclass(frozen=True)
class Caller:
    """A party whose signature over this request is valid and new; the body must have ``body_digest``."""

    party: Party
    body_digest: bytes
    digest_field: DigestField
    in_session: bool = False
    """The signature is that under which the session began."""

    @property
    def name(self) -> str:
        return self.party.name

    def require_digest(self, found: bytes, digest_field: DigestField = DigestField.CONTENT) -> None:
        """Raises: BadSignature, unless the body that came is the one that was signed, in this field"""
        if self.digest_field is not digest_field:
            raise BadSignature(
                f"the request carries its digest as {self.digest_field.value!r}, this one takes {digest_field.value!r}"
            )
        if not hmac.compare_digest(found, self.body_digest):
            raise BadSignature("the body is not the one whose digest was signed; sign the bytes that are sent")


async def read_small(request: Request, caller: Caller, limit_bytes: int = MAX_CONTROL_BYTES) -> bytes:
    """The whole body. Raises: TooLarge, BadSignature"""
    body = bytearray()
    async for data in request.stream():
        body += data
        if len(body) > limit_bytes:
            raise TooLarge(f"the body has more than the {limit_bytes} bytes that are allowed here")
    caller.require_digest(hashlib.sha256(body).digest())
    return bytes(body)


async def stream_into(
    request: Request, feed: Callable[[bytearray], object], limit_bytes: int, at_once_bytes: int = 0
) -> None:
    """Feed the body, off the event loop, in pieces of about a megabyte; while one is taken, the next one arrives.

    A body of at most ``at_once_bytes`` is fed on the event loop: a thread would take longer to wake up.
    Raises: TooLarge, and what ``feed`` raises
    """
    held, total = bytearray(), 0
    feeding: asyncio.Future[object] | None = None
    try:
        async for data in request.stream():
            total += len(data)
            if total > limit_bytes:
                raise TooLarge(f"the body has more than the {limit_bytes} bytes that are allowed here")
            held += data
            if len(held) >= _PIECE_BYTES:
                if feeding is not None:
                    await feeding
                feeding = asyncio.ensure_future(asyncio.to_thread(feed, held))
                held = bytearray()
    finally:
        if feeding is not None:
            await asyncio.wait([feeding])  # whatever went wrong, nothing is left before the thread has ended
            feeding.exception()
    if feeding is not None:
        feeding.result()
    if held and total <= at_once_bytes:
        feed(held)
    elif held:
        await asyncio.to_thread(feed, held)


async def same_body(request: Request, caller: Caller, limit_bytes: int) -> str:
    """Return the SHA-256 of a body whose like is stored: only whether the bytes are the same matters.

    Raises: TooLarge, BadSignature
    """
    again = hashlib.sha256()
    await stream_into(request, again.update, limit_bytes)
    caller.require_digest(again.digest())
    return again.hexdigest()


class HashIntake:
    """Hashes a body, and hands it on as it is."""

    def __init__(self, hand_on: Callable[[memoryview], object]) -> None:
        self._hand_on = hand_on
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def feed(self, data: bytes | bytearray) -> None:
        self._hash.update(data)
        self.size_bytes += len(data)
        self._hand_on(memoryview(data))

    def finish(self, caller: Caller) -> str:
        """Raises: BadSignature"""
        caller.require_digest(self._hash.digest())
        return self._hash.hexdigest()


class Sink(Protocol):
    """Takes opened bytes."""

    def write(self, piece: bytes) -> None: ...


class ShareSink(Sink, Protocol):
    """Takes a share twice: its opened content, and its encrypted body as it came."""

    def write_received(self, piece: bytes | memoryview) -> None: ...


class ContributionIntake(Generic[H]):
    """A sealed share: one pass of hashing serves the digest that was signed and the commitment.

    What is wrong with it is said only once its digest shows that the site sent these bytes: the refusal is signed, and
    a site does not come again with what a server refused, so nobody on the way may bring one about.
    """

    def __init__(
        self, key: SealingKey, expected: Expected[H], draft: ShareSink, new_check: NewCheck | None = None
    ) -> None:
        """``draft`` takes what is opened and what came; ``new_check`` makes what looks at the opened content first."""
        self._check = None if new_check is None else new_check(draft.write)
        self._opening = Opening(key, expected, self._check or draft)
        self._draft = draft
        self._came = 0
        self._digest = MessageDigest()
        self._refused: RefusedMessage | None = None

    @property
    def content_key(self) -> bytes:
        """The body's content key. Raises: BrokenSeal, before it came"""
        if self._opening.reader.content_key is None:
            raise BrokenSeal("the sealed share's head has not come")
        return self._opening.reader.content_key

    def feed(self, data: bytes | bytearray) -> None:
        """Raises: Unavailable, ConfigurationError"""
        self._digest.update(data)
        before, self._came = self._came, self._came + len(data)
        if self._refused is not None:
            return
        reader = self._opening.reader
        try:
            self._opening.feed(data)
        except RefusedMessage as refused:
            self._refused = refused
            return
        if reader.content_key is not None:  # the bytes behind the head, as they came
            self._draft.write_received(memoryview(data)[max(0, len(reader.head) - before) :])

    def finish(self, caller: Caller) -> tuple[H, str]:
        """As ``Opening.finish``, with the sealed message's digest. Raises: BadSignature; what was refused on the way"""
        digest = sealed_digest(caller, self._digest)
        if self._refused is not None:
            raise self._refused
        header = self._opening.finish()
        if self._check is not None:
            self._check.finish()
        return header, digest

    def check_commitment(self, committed: str) -> None:
        """Check the commitment of a share that has come whole. Raises: CommitmentMismatch; BrokenSeal, when its key
        never came
        """
        salt, content_key = self._opening.reader.salt, self._opening.reader.content_key
        if salt is None or content_key is None:
            raise BrokenSeal("the sealed share has not been opened; finish comes before its commitment is checked")
        check_commitment(bytes.fromhex(committed), salt, content_key, self._digest.body_hash())


class Opening(Generic[H]):
    """Sealed bytes on their way to a draft in clear."""

    def __init__(self, key: SealingKey, expected: Expected[H], draft: Sink) -> None:
        self.reader = SealedReader(key, self._accept)
        self._expected = expected
        self._header: H | None = None
        self._draft = draft
        self._content_bytes = 0

    def feed(self, data: Octets) -> None:
        for piece in self.reader.feed(data):
            self._take(piece)

    def finish(self) -> H:
        """The header, once the last chunk has opened.

        Raises: BrokenSeal; MalformedMessage, when there is more or less content than expected
        """
        self._take(self.reader.finish())
        if self._header is None:
            raise BrokenSeal("the sealed body ended before its header")
        needed = self._expected.content_bytes(self._header)
        if self._content_bytes != needed:
            raise MalformedMessage(
                f"the sealed body holds {self._content_bytes} bytes, {needed} are needed; check the study"
            )
        return self._header

    def _accept(self, raw: bytes) -> None:
        self._header = self._expected.require(raw)

    def _take(self, piece: bytes) -> None:
        self._content_bytes += len(piece)
        self._draft.write(piece)


def sealed_digest(caller: Caller, digest: MessageDigest) -> str:
    """The digest of a sealed message that has come whole. Raises: BadSignature, unless it is the one that was signed"""
    found = digest.digest()
    caller.require_digest(found, DigestField.SEALED)
    return found.hex()
