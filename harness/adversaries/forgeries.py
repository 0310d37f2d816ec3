"""Sealed shares, honest ones taken apart and put together wrongly (docs/protocol.md 3, 4)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocol.arithmetic.packing import packed
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring
from protocol.bodies.contribution import share_parts
from protocol.parameters import WORD_BITS, RingBits
from protocol.sharing import Side, split
from protocol.wire.channel.sealing import CHUNK_BYTES, TAG_BYTES, seal_stream, sealed_length
from protocol.wire.commitment import commitment_to
from protocol.wire.keys import SealingPublicKey
from protocol.wire.messages import Announcement, Roster, ShareKind

_SEALED_CHUNK = CHUNK_BYTES + TAG_BYTES
_SALTS = {Side.A: "salt a", Side.B: "salt b"}


@dataclass(frozen=True)
class Parts:
    """A sealed message before it is sealed: each part can be replaced by another."""

    header: bytes
    plain: bytes = field(repr=False)
    recipient: SealingPublicKey
    content_key: bytes = field(repr=False)
    salt: bytes = field(repr=False)

    def sealed(self) -> bytes:
        return b"".join(seal_stream(self.header, [self.plain], self.recipient, self.content_key, self.salt))


Contribution = Mapping[Side, Parts]


def honest_contribution(
    x: Ring,
    announcement: Announcement,
    site: str,
    roster: Roster,
    rand: bytes,
    attempt: int = 1,
    bits: RingBits = WORD_BITS,
) -> Contribution:
    """Both halves as an honest site makes them; every random byte but HPKE's comes from the 32 bytes ``rand``."""
    seed_share, vector_share = split(x, derive(rand, "share seed"))
    both = share_parts(announcement, attempt, site, roster, x.size, bits)
    vector = bytes(packed(vector_share.vector, bits))
    plain = {side: seed_share.seed if part.kind is ShareKind.SEED else vector for side, part in both.items()}
    salts = {side: derive(rand, _SALTS[side]) for side in Side}
    content_keys = {side: derive(rand, f"content key {side.value}") for side in Side}
    committed = {side: commitment_to(plain[side], salts[side], content_keys[side]) for side in Side}
    return {
        side: Parts(
            both[side].header(committed).canonical(),
            plain[side],
            roster.operator(side).sealing,
            content_keys[side],
            salts[side],
        )
        for side in Side
    }


# --- before sealing ---------------------------------------------------------------------------------------------------


def with_header(parts: Parts, **changes: object) -> Parts:
    """Other header fields, unchecked: the version, the side, the site, commitments, unknown fields."""
    members = json.loads(parts.header) | changes
    return replace(parts, header=json.dumps(members, sort_keys=True, separators=(",", ":")).encode())


def sealed_to_the_wrong_key(contribution: Contribution, side: Side) -> bytes:
    """One server's share, sealed to the other server."""
    return replace(contribution[side], recipient=contribution[side.other].recipient).sealed()


def both_shares_to_one_server(contribution: Contribution, side: Side) -> bytes:
    """The other server's share, dressed up as this one's: together with the first it would give the update away."""
    other = with_header(contribution[side.other], side=side.value)
    return replace(other, recipient=contribution[side].recipient).sealed()


def another_share_than_committed(contribution: Contribution, side: Side) -> bytes:
    """The last bit of the share differs from what the commitment covers."""
    plain = contribution[side].plain
    return replace(contribution[side], plain=plain[:-1] + bytes([plain[-1] ^ 1])).sealed()


def two_faced(contribution: Contribution, elsewhere: Contribution) -> Contribution:
    """Halves of two different updates, each sound by itself: every server sees its own commitment kept."""
    return {Side.A: contribution[Side.A], Side.B: elsewhere[Side.B]}


# --- after sealing ----------------------------------------------------------------------------------------------------


def truncated(sealed: bytes, by: int = 1) -> bytes:
    return sealed[:-by]


def over_long(sealed: bytes, by: int = 1) -> bytes:
    return sealed + bytes(by)


def bit_flipped(sealed: bytes, place: int = -1) -> bytes:
    """One bit of the body, or of any other place, turned over."""
    altered = bytearray(sealed)
    altered[place] ^= 1
    return bytes(altered)


def chunks_swapped(parts: Parts) -> bytes:
    """The first two chunks of a body of at least three change places."""
    head, body = _head_and_body(parts)
    first, second, rest = body[:_SEALED_CHUNK], body[_SEALED_CHUNK : 2 * _SEALED_CHUNK], body[2 * _SEALED_CHUNK :]
    return head + second + first + rest


def last_chunk_missing(parts: Parts) -> bytes:
    """Everything up to the last chunk: each chunk that is there opens."""
    head, body = _head_and_body(parts)
    return head + body[: (len(body) - 1) // _SEALED_CHUNK * _SEALED_CHUNK]


def _head_and_body(parts: Parts) -> tuple[bytes, bytes]:
    sealed = parts.sealed()
    cut = len(sealed) - sealed_length(len(parts.plain))
    return sealed[:cut], sealed[cut:]
