"""Request bodies: small ones whole, under a cap; large ones streamed through hashing and decryption to disk."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Final, Protocol

from fastapi import Request

from protocol.errors import MalformedMessage, TooLarge
from protocol.wire.keys import SealingKey
from protocol.wire.messages import MAX_CONTROL_BYTES
from protocol.wire.sealing import Commitment, SealedReader
from servers.authentication import Caller
from servers.store.shares import Draft

_PIECE_BYTES: Final = 2**20


async def read_small(request: Request, caller: Caller, limit_bytes: int = MAX_CONTROL_BYTES) -> bytes:
    """The whole body. Raises: TooLarge, BadSignature"""
    body = bytearray()
    async for data in request.stream():
        body += data
        if len(body) > limit_bytes:
            raise TooLarge(f"the body has more than the {limit_bytes} bytes that are allowed here")
    caller.require_digest(hashlib.sha256(body).digest())
    return bytes(body)


class Intake(Protocol):
    """Takes a body piece by piece, off the event loop."""

    def feed(self, data: bytes | bytearray) -> None: ...


async def stream_into(request: Request, intake: Intake, limit_bytes: int) -> None:
    """Feed the body to ``intake`` in pieces of about a megabyte; while it takes one, the next one arrives.

    Raises: TooLarge, and what the intake raises
    """
    held, total = bytearray(), 0
    feeding: asyncio.Future[None] | None = None
    try:
        async for data in request.stream():
            total += len(data)
            if total > limit_bytes:
                raise TooLarge(f"the body has more than the {limit_bytes} bytes that are allowed here")
            held += data
            if len(held) >= _PIECE_BYTES:
                if feeding is not None:
                    await feeding
                feeding = asyncio.ensure_future(asyncio.to_thread(intake.feed, held))
                held = bytearray()
    finally:
        if feeding is not None:
            await asyncio.wait([feeding])  # whatever went wrong, the intake is left only once its thread has
            feeding.exception()
    if feeding is not None:
        feeding.result()
    if held:
        await asyncio.to_thread(intake.feed, held)


class HashOnly:
    """For a body that is already stored: only whether the bytes are the same matters."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def feed(self, data: bytes | bytearray) -> None:
        self._hash.update(data)

    def finish(self, caller: Caller) -> str:
        caller.require_digest(self._hash.digest())
        return self._hash.hexdigest()


class OpaqueIntake:
    """Sealed bytes for somebody else: hashed and written as they are."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._hash = hashlib.sha256()

    def feed(self, data: bytes | bytearray) -> None:
        self._hash.update(data)
        self._draft.write(memoryview(data))

    def finish(self, caller: Caller) -> str:
        """Raises: BadSignature"""
        caller.require_digest(self._hash.digest())
        return self._hash.hexdigest()


class SealedIntake:
    """Sealed bytes for this server: hashed, opened and written in clear, with the commitment taken on the way."""

    def __init__(self, key: SealingKey, accept: Callable[[bytes], None], draft: Draft) -> None:
        self._reader = SealedReader(key, accept)
        self._hash = hashlib.sha256()
        self._commitment: Commitment | None = None
        self._draft = draft
        self._plain_bytes = 0

    def feed(self, data: bytes | bytearray) -> None:
        self._hash.update(data)
        for piece in self._reader.feed(data):
            self._take(piece)

    def finish(self, caller: Caller, plain_bytes: int) -> str:
        """The digest of the sealed bytes, once the last chunk has opened.

        Raises: BrokenSeal, BadSignature; MalformedMessage, when the plaintext does not have ``plain_bytes``
        """
        caller.require_digest(self._hash.digest())
        self._take(self._reader.finish())
        if self._plain_bytes != plain_bytes:
            raise MalformedMessage(
                f"the sealed body holds {self._plain_bytes} bytes, {plain_bytes} are needed; check the study"
            )
        return self._hash.hexdigest()

    def check_commitment(self, committed: str) -> None:
        """Raises: CommitmentMismatch"""
        assert self._commitment is not None, "finish comes first"
        self._commitment.check(bytes.fromhex(committed))

    def _take(self, piece: bytes) -> None:
        if self._commitment is None:
            salt = self._reader.salt
            assert salt is not None, "the key part is open before the body"
            self._commitment = Commitment(salt)
        self._commitment.update(piece)
        self._plain_bytes += len(piece)
        self._draft.write(piece)
