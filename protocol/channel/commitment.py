"""The digest of a sealed message and the commitment to a share, to which its sender is held (docs/protocol.md 3).

Both rest on the body hash, SHA-256 of the encrypted body, so that every byte is hashed once at either end:

    digest      SHA-256("moiety/2 sealed message\\x00" || head || body hash)        head: all before the encrypted body
    commitment  HMAC-SHA256(salt, "moiety/2 share\\x00" || content key || body hash)

The commitment fixes the share although AES-GCM commits to no key, because it covers the key itself: key and body hash
leave one plaintext. It hides the share as long as the salt is secret. docs/adr/0009 has the argument.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from protocol.channel.keys import require_length
from protocol.channel.sealing import (
    CONTENT_KEY_BYTES,
    MAGIC,
    MAX_HEADER_BYTES,
    SALT_BYTES,
    Octets,
    encrypt_body,
    octets,
    sealed_head_length,
)
from protocol.errors import BadSignature, CommitmentMismatch, MalformedMessage

COMMITMENT_BYTES: Final = 32
BODY_HASH_BYTES: Final = 32

_DIGEST_DOMAIN: Final = b"moiety/2 sealed message\x00"
_HEAD_DOMAIN: Final = b"moiety/2 sealed head\x00"
_COMMITMENT_DOMAIN: Final = b"moiety/2 share\x00"
_PREFIX_BYTES: Final = len(MAGIC) + 4


def commitment(salt: bytes, content_key: bytes, body_hash: bytes) -> bytes:
    """The commitment to the share that ``content_key`` opens from the body of that hash.

    Shapes:   32 bytes each -> 32 bytes
    Requires: ``salt`` fresh, secret and used for nothing else
    Raises:   MalformedMessage on a wrong length
    """
    require_length("a salt", salt, SALT_BYTES)
    require_length("a content key", content_key, CONTENT_KEY_BYTES)
    require_length("a body hash", body_hash, BODY_HASH_BYTES)
    return hmac.digest(salt, _COMMITMENT_DOMAIN + content_key + body_hash, "sha256")


def commitment_to(share: Octets, salt: bytes, content_key: bytes) -> bytes:
    """The commitment to a share that is in memory, as a body under ``content_key`` would keep it."""
    body_hash = hashlib.sha256()
    for chunk in encrypt_body(content_key, [share]):
        body_hash.update(chunk)
    return commitment(salt, content_key, body_hash.digest())


def check_commitment(committed: bytes, salt: bytes, content_key: bytes, body_hash: bytes) -> None:
    """Return if ``committed`` is the commitment to this share, else raise CommitmentMismatch."""
    if not hmac.compare_digest(commitment(salt, content_key, body_hash), committed):
        raise CommitmentMismatch("the share is not the one that was committed to: send the share made with it")


def message_digest(head: bytes, body_hash: bytes) -> bytes:
    """The digest of a sealed message, from its head and the hash of its encrypted body."""
    return hashlib.sha256(_DIGEST_DOMAIN + head + body_hash).digest()


def head_digest(head: bytes) -> bytes:
    """The digest of a sealed message's head alone, for a sender that does not know the whole body yet.

    Whoever signs it vouches for the content key sealed in the head, and that key authenticates every chunk of the
    body: nobody else can alter it. It does not hold the sender itself to one body.
    """
    return hashlib.sha256(_HEAD_DOMAIN + head).digest()


class MessageDigest:
    """``message_digest`` of bytes that arrive in pieces of any size; opens nothing and needs no key.

    Defined for every string of bytes, so that whatever came can be compared with what was signed: bytes that do not
    begin as a sealed message, or end before its body, are all head.
    """

    def __init__(self) -> None:
        self._message = hashlib.sha256(_DIGEST_DOMAIN)
        self._body = hashlib.sha256()
        self._prefix = b""
        self._head_left: int | None = _PREFIX_BYTES

    def update(self, data: Octets) -> None:
        view = octets(data)
        while self._head_left != 0 and len(view):
            taken = len(view) if self._head_left is None else min(self._head_left, len(view))
            self._take_head(view[:taken])
            view = view[taken:]
        self._body.update(view)

    def body_hash(self) -> bytes:
        """SHA-256 of the encrypted body so far."""
        return self._body.digest()

    def digest(self) -> bytes:
        whole = self._message.copy()
        whole.update(self._body.digest())
        return whole.digest()

    def _take_head(self, part: memoryview) -> None:
        self._message.update(part)
        if self._head_left is None:
            return
        self._head_left -= len(part)
        if len(self._prefix) < _PREFIX_BYTES:
            self._prefix += part
            if self._head_left == 0:
                self._head_left = _rest_of_head(self._prefix)


def _rest_of_head(prefix: bytes) -> int | None:
    """Return the bytes left of a sealed message's head after its prefix; None where no sealed message begins."""
    header_bytes = int.from_bytes(prefix[len(MAGIC) :], "big")
    if not prefix.startswith(MAGIC) or not 0 < header_bytes <= MAX_HEADER_BYTES:
        return None
    return sealed_head_length(header_bytes) - _PREFIX_BYTES


class CheckedHead:
    """Hands a sealed message on, piece by piece, only once its head has the digest that was signed.

    After that the content key sealed in the head authenticates the rest: whoever reads it opens every chunk.
    """

    def __init__(self, expected: bytes) -> None:
        self._expected = expected
        self._held = bytearray()
        self._checked = False

    def feed(self, data: Octets) -> Octets:
        """Return the bytes that may be read now. Raises: BadSignature; MalformedMessage when it is no sealed message"""
        if self._checked:
            return data
        self._held += octets(data)
        if len(self._held) < _PREFIX_BYTES:
            return b""
        rest = _rest_of_head(bytes(self._held[:_PREFIX_BYTES]))
        if rest is None:
            raise MalformedMessage("what came does not begin as a sealed message of this version")
        if len(self._held) < _PREFIX_BYTES + rest:
            return b""
        if not hmac.compare_digest(head_digest(bytes(self._held[: _PREFIX_BYTES + rest])), self._expected):
            raise BadSignature("the sealed message that came is not the one whose head was signed")
        self._checked = True
        return bytes(self._held)

    def finish(self) -> None:
        """Raises: BadSignature, when less came than a head"""
        if not self._checked:
            raise BadSignature("the sealed message that came is cut off before its signed head ends")
