"""Requests and answers in envelopes: a proxy that opens TLS sees sizes and times only (docs/protocol.md 3, 14).

Every request goes to one address. Its body is

    u32 length | HPKE to the server (request head | enclosed body | zeros) | the rest of the body

A control message is enclosed; a share or a checkpoint, which is sealed already, follows behind. What the request's
signature covers is the digest of the envelope, which holds the digest of the body: one hash pass, whatever follows.
An answer is HPKE to the caller (answer head | body | zeros), or a body that is sealed to the caller already.

Lengths are padded coarsely, so that a name more or less in a list does not show. Both envelopes are bound to caller,
server and the nonce of the request's signature; nobody is authenticated by them: that is the signatures' part
(protocol/channel/signing.py). HPKE draws its own randomness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from protocol.channel.commitment import head_digest
from protocol.channel.keys import SealingKey, SealingPublicKey, SigningKey
from protocol.channel.message import MAX_CONTROL_BYTES, Digest, Message, Version, pack_frame, unpack_frame
from protocol.channel.sealing import open_small, seal_small, sealed_small_length
from protocol.channel.signing import DigestField, sign_request
from protocol.errors import BrokenSeal, MalformedMessage, TooLarge

HEAD_BYTES: Final = 2**13
"""Most that the head of an enclosed request or answer takes, its frame included."""
LENGTH_BYTES: Final = 4
ANSWER_TYPE: Final = "application/vnd.moiety.answer"
SEALED_TYPE: Final = "application/octet-stream"

_LEAST_BYTES: Final = 512
_COARSE_UP_TO: Final = 2**16
_COARSE_BITS: Final = 2
_FINE_BITS: Final = 4


@dataclass(frozen=True)
class Correspondence:
    """Between whom one request and its answer travel, by the ids of their keys, and the request's nonce."""

    caller: str
    server: str
    nonce: str

    def info(self, what: str) -> bytes:
        """The context that an envelope is bound to; key ids and nonces hold no spaces."""
        return f"{what} {self.caller} {self.server} {self.nonce}".encode()


class EnclosedRequest(Message):
    """A request inside its envelope. The whole body has ``body_bytes`` and ``body_digest``; ``enclosed_bytes`` travel
    inside.

    What comes behind so many bytes nobody has signed.
    """

    KIND: ClassVar[str] = "enclosed_request"
    version: Version = "moiety/2"
    method: Literal["GET", "POST", "PUT"]
    target: Annotated[str, Field(pattern=r"^/[\x21-\x7e]{0,2000}$")]
    body_digest: Digest
    digest_field: DigestField
    enclosed_bytes: Annotated[int, Field(ge=0)]
    body_bytes: Annotated[int, Field(ge=0)]


class EnclosedAnswer(Message):
    """A status as HTTP counts them; ``body_bytes`` of body follow in the envelope."""

    KIND: ClassVar[str] = "enclosed_answer"
    version: Version = "moiety/2"
    status: Annotated[int, Field(ge=200, le=599)]
    body_bytes: Annotated[int, Field(ge=0)]


def padded_length(length: int, least: int = _LEAST_BYTES) -> int:
    """Return the padded length of an envelope's content: at most a quarter more up to 64 KiB, a sixteenth above.

    Reveals: one of four lengths for each doubling up to 64 KiB, so at most five bits about what is enclosed
    """
    if length <= least:
        return least
    bits = _COARSE_BITS if length <= _COARSE_UP_TO else _FINE_BITS
    step = 1 << ((length - 1).bit_length() - 1 - bits)
    return -(-length // step) * step


def envelope_bytes(body_bytes: int) -> int:
    """The longest envelope that a body of so many bytes can be in, without its length field."""
    return sealed_small_length(padded_length(HEAD_BYTES + body_bytes))


def close_request(request: EnclosedRequest, enclosed: bytes, to: SealingPublicKey, between: Correspondence) -> bytes:
    """The envelope with its length in front. Raises: TooLarge"""
    sealed = seal_small(_padded(request, enclosed), to, between.info("request"))
    return len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed


def sign_enclosed(
    request: EnclosedRequest,
    enclosed: bytes,
    to: SealingPublicKey,
    between: Correspondence,
    url: str,
    key: SigningKey,
    created: int,
) -> tuple[bytes, list[tuple[str, str]]]:
    """The envelope, and the signature's headers for its POST to ``url``; ``key`` is the caller's.

    Raises: TooLarge, MalformedMessage
    """
    envelope = close_request(request, enclosed, to, between)
    signed = sign_request(
        "POST",
        url,
        head_digest(envelope),
        key,
        between.caller,
        created=created,
        nonce=between.nonce,
        digest_field=DigestField.SEALED_HEAD,
    )
    return envelope, list(signed)


def open_request(sealed: bytes, key: SealingKey, between: Correspondence) -> tuple[EnclosedRequest, bytes]:
    """The request and what of its body is enclosed. Raises: BrokenSeal, MalformedMessage, OtherVersion"""
    head, rest = unpack_frame(open_small(sealed, key, between.info("request")), EnclosedRequest)
    return head, _unpadded(rest, head.enclosed_bytes)


def close_answer(status: int, body: bytes, to: SealingPublicKey, between: Correspondence) -> bytes:
    head = EnclosedAnswer(status=status, body_bytes=len(body))
    return seal_small(_padded(head, body), to, between.info("answer"))


def open_answer(sealed: bytes, key: SealingKey, between: Correspondence) -> tuple[int, bytes]:
    """Status and body. Raises: BrokenSeal, MalformedMessage, OtherVersion"""
    head, rest = unpack_frame(open_small(sealed, key, between.info("answer")), EnclosedAnswer)
    return head.status, _unpadded(rest, head.body_bytes)


def envelope_length(prefix: bytes, most_body_bytes: int = MAX_CONTROL_BYTES) -> int:
    """Return the bytes of the envelope behind its length field. Raises: TooLarge, BrokenSeal"""
    length, most = int.from_bytes(prefix, "big"), envelope_bytes(most_body_bytes)
    if length > most:
        raise TooLarge(f"an envelope of {length} bytes was announced, at most {most} are allowed here")
    if length < sealed_small_length(0):
        raise BrokenSeal(f"an envelope of {length} bytes is too short to be one")
    return length


def _padded(head: Message, body: bytes) -> bytes:
    content = pack_frame(head, body)
    if len(content) - len(body) > HEAD_BYTES:
        raise TooLarge(f"{head.KIND}: the head takes more than {HEAD_BYTES} bytes: take shorter names")
    return content.ljust(padded_length(len(content)), b"\0")


def _unpadded(rest: memoryview, length: int) -> bytes:
    if length > len(rest):
        raise MalformedMessage(f"an envelope says {length} bytes of body and holds {len(rest)}")
    return bytes(rest[:length])
