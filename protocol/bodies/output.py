"""One server's part of a released sum, sealed to one site (docs/protocol.md 9, 11).

header    which release, side and recipient; what follows
content   seed: the mask's 32 bytes | vector: the masked sum, 8 bytes per element, or 6 of a vector48 |
          ciphertext: the sum under the sites' key, from side A alone

To a site that asks in a session (protocol/wire/channel/session.py) a short output goes whole under that session's keys,
and has no seal of its own: header and content framed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from protocol.arithmetic.packing import element_bytes
from protocol.arithmetic.prg import SEED_BYTES
from protocol.arithmetic.ring import Ring
from protocol.bodies import sealed
from protocol.ckks.ciphertext import Kind, body_bytes
from protocol.ckks.parameters import CkksParameters
from protocol.errors import MalformedMessage, TranscriptMismatch
from protocol.parameters import RingBits
from protocol.release import masking_side
from protocol.sharing import Side
from protocol.wire.channel.sealing import Octets, SealedMessage, SealedReader, sealed_length
from protocol.wire.keys import SealingKey, SealingPublicKey
from protocol.wire.messages import OutputHeader, ShareKind
from protocol.wire.peer_messages import pack_frame, unpack_frame

SHORT_BYTES: Final = 2**14
"""Of content; from about here on what a session pads by costs more than a seal does."""
_FRAMED: Final = b"\x00"
"""A frame begins with its header's length, a seal with the first letter of its magic."""


def output_kind(side: Side, round_number: int, bits: RingBits) -> ShareKind:
    """Return the kind of share that a side serves in this ring."""
    return ShareKind.SEED if masking_side(round_number) is side else ShareKind.vector_of(bits)


def is_short_output(header: OutputHeader) -> bool:
    """True if the output goes without a seal of its own where a session seals it."""
    return output_content_bytes(header) <= SHORT_BYTES


def frame_output(header: OutputHeader, content: Iterable[Octets]) -> bytes:
    """A short output without a seal. Requires: a session seals it, to the site that the header names"""
    return pack_frame(header, b"".join(content))


def seal_output(
    header: OutputHeader, content: Iterable[Octets], recipient: SealingPublicKey, secret: bytes
) -> SealedMessage:
    """The body, made while it is sent. Requires: ``secret`` as :func:`seal_body`"""
    made = sealed.seal_body(header, content, recipient, secret)
    return replace(made, length=len(made.head) + sealed_length(output_content_bytes(header)))


def output_content_bytes(header: OutputHeader) -> int:
    """Return the content bytes of a body with this header."""
    if header.share_kind is ShareKind.CIPHERTEXT:
        return body_bytes(CkksParameters(), Kind.SUM, header.length)
    if header.share_kind is ShareKind.SEED:
        return SEED_BYTES
    return element_bytes(header.share_kind.ring_bits) * header.length


def most_output_bytes(header: OutputHeader) -> int:
    """The longest body with such a header."""
    return sealed.most_body_bytes(output_content_bytes(header))


def read_output(expected: OutputHeader, key: SealingKey, pieces: Iterable[Octets]) -> Iterator[bytes]:
    """The content of exactly the expected output, piece by piece; the last piece once the end is authentic.

    Requires: the pieces come from the server (client_agent/network/answer.py), who alone can have left out the seal
    Raises:   TranscriptMismatch, MalformedMessage, BrokenSeal
    """

    def require(found: OutputHeader) -> None:
        if found != expected:
            raise TranscriptMismatch(f"server {expected.side} served the output of another release, kind or recipient")

    following = iter(pieces)
    first = next((piece for piece in following if len(piece)), b"")
    if is_short_output(expected) and bytes(first[:1]) == _FRAMED:
        header, content = unpack_frame(b"".join([first, *following]), OutputHeader)
        require(header)
        yield bytes(content)
        return
    reader = SealedReader(key, lambda raw: require(OutputHeader.parse(raw)))
    yield from sealed.open_body(reader, chain([first], following))


def output_seed(header: OutputHeader, content: Iterable[bytes]) -> bytes:
    """The mask's seed. Raises: MalformedMessage, and as :func:`read_output` from the content"""
    seed = b"".join(content)
    if len(seed) != SEED_BYTES:
        raise MalformedMessage(f"server {header.side} served a mask seed of {len(seed)} bytes, expected {SEED_BYTES}")
    return seed


def output_elements(header: OutputHeader, content: Iterable[bytes]) -> Iterator[tuple[int, Ring]]:
    """The masked sum piece by piece, each with its place; the last one once the end is authentic.

    Raises: MalformedMessage, and as :func:`read_output` from the content
    """
    side, length = header.side, header.length
    elements = sealed.ElementReader(
        length,
        f"server {side} served more than {length} elements",
        f"server {side} served {{}} elements, expected {length}",
        header.share_kind.ring_bits,
    )
    for piece in content:
        yield elements.feed(piece)
    elements.finish()
