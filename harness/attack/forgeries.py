"""Honest shares, requests, lists and updates, taken apart and put together wrongly (docs/protocol.md 3, 4, 6, 8, 9).

Nothing is sent here: each function returns what is to be sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from protocol.arithmetic.fixed_point import packed
from protocol.arithmetic.ring import Ring, derive
from protocol.channel.commitment import commitment_to
from protocol.channel.keys import SealingPublicKey, SigningKey, generate_signing_key
from protocol.channel.sealing import CHUNK_BYTES, TAG_BYTES, seal_message, sealed_length
from protocol.channel.signing import TAG, DigestField, digest_value
from protocol.messages.bodies import share_parts
from protocol.messages.control import AgreedSet, Announcement, ReleaseSet, Roster, ShareKind
from protocol.parameters import WORD_BITS, RingBits
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side, split

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
        return seal_message(self.header, [self.plain], self.recipient, self.content_key, self.salt).whole()


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


def truncated(sealed: bytes) -> bytes:
    return sealed[:-1]


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


Headers = list[tuple[str, str]]


def impostor(keys: PartyKeys, rand: bytes) -> PartyKeys:
    """Somebody else's name with a signing key of one's own."""
    return replace(keys, signing=generate_signing_key(rand))


def nobody(keys: PartyKeys, rand: bytes) -> PartyKeys:
    """A sound key that no roster holds."""
    return replace(keys, name="nobody", signing=generate_signing_key(rand))


def signature_bit_flipped(headers: Sequence[tuple[str, str]]) -> Headers:
    """The same request with one bit of its signature turned over."""
    altered: Headers = []
    for name, value in headers:
        if name.lower() != "signature":
            altered.append((name, value))
            continue
        label, _, encoded = value.partition("=:")
        raw = bytearray(base64.b64decode(encoded.rstrip(":")))
        raw[0] ^= 1
        altered.append((name, f"{label}=:{base64.b64encode(raw).decode()}:"))
    return altered


def signed_over_less(
    url: str, envelope_digest: bytes, key: SigningKey, key_id: str, *, created: int, nonce: str, without: str = ""
) -> Headers:
    """A valid Ed25519 signature over an envelope, with one component or parameter left out of what it covers.

    With ``without`` empty it is the signature that servers accept, which shows that nothing else is wrong with it.
    """
    field = DigestField.SEALED_HEAD
    digest = digest_value(field, envelope_digest)
    values = {"@method": "POST", "@target-uri": url, field.value: digest}
    stated = {
        "created": str(created),
        "keyid": f'"{key_id}"',
        "alg": '"ed25519"',
        "nonce": f'"{nonce}"',
        "tag": f'"{TAG}"',
    }
    covered = [name for name in values if name != without]
    parameters = "(" + " ".join(f'"{name}"' for name in covered) + ")"
    parameters += "".join(f";{name}={value}" for name, value in stated.items() if name != without)
    base = "".join(f'"{name}": {values[name]}\n' for name in covered) + f'"@signature-params": {parameters}'
    signature = base64.b64encode(key.sign(base.encode())).decode()
    return [
        (field.title(), digest),
        ("Signature-Input", f"moiety={parameters}"),
        ("Signature", f"moiety=:{signature}:"),
    ]


def equivocating_announcement(announcement: Announcement) -> tuple[Announcement, Announcement]:
    """One announcement for each server, alike but for the digest of the weight list."""
    flipped = f"{int(announcement.weight_list_digest, 16) ^ 1:064x}"
    return announcement, announcement.model_copy(update={"weight_list_digest": flipped})


def release_set(agreed: AgreedSet, sites: tuple[str, ...], failed_check: tuple[str, ...] = ()) -> ReleaseSet:
    """A release of any sites at all, the agreed ones or not."""
    return ReleaseSet(
        study_digest=agreed.study_digest,
        round=agreed.round,
        attempt=agreed.attempt,
        agreed_set_digest=agreed.digest(),
        sites=sites,
        failed_check=failed_check,
    )


_HALF = np.uint64(2**63)
_ROOT = np.uint64(2**32)
_HALF_OF_48 = np.uint64(2**47)


def wrap_around_entry(x: Ring, place: int = 0) -> Ring:
    """2^63 on top of one entry: its square is 0 mod 2^64, so the distance does not show it, but the model breaks."""
    hostile = x.copy()
    hostile[place] ^= _HALF  # the same as adding it
    return hostile


def half_of_the_small_ring(x: Ring, places: tuple[int, ...] = (0,)) -> Ring:
    """2^47 on top of some entries: half of a ring of 48 bits, which adds up to nothing in every second site's sum."""
    hostile = x.copy()
    hostile[list(places)] += _HALF_OF_48
    return hostile


def multiples_of_two_to_the_32(x: Ring, rand: int = 0) -> Ring:
    """Random odd multiples of 2^32 on top of every entry: the squares vanish mod 2^64, the products nearly so."""
    factors = np.random.default_rng(rand).integers(0, 2**31, x.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return x + factors * _ROOT


def scaled_update(x: Ring, factor: int) -> Ring:
    """The update times an integer, negative ones included: boosting, or pulling the model away."""
    return x * np.uint64(factor % 2**64)
