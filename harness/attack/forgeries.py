"""Honest shares, requests, lists and updates, taken apart and put together wrongly (docs/protocol.md 3, 4, 6, 8, 9).

Nothing is sent here: each function returns what is to be sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from protocol.arithmetic.fixed_point import packed
from protocol.arithmetic.ring import Ring, derive
from protocol.channel.commitment import commitment_to
from protocol.channel.keys import SealingPublicKey, generate_signing_key
from protocol.channel.sealing import seal_message
from protocol.messages.bodies import share_parts
from protocol.messages.control import AgreedSet, Announcement, ReleaseSet, Roster, ShareKind
from protocol.parameters import WORD_BITS, RingBits
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side, split

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


def two_faced(contribution: Contribution, elsewhere: Contribution) -> Contribution:
    """Halves of two different updates, each sound by itself: every server sees its own commitment kept."""
    return {Side.A: contribution[Side.A], Side.B: elsewhere[Side.B]}


def impostor(keys: PartyKeys, rand: bytes) -> PartyKeys:
    """Somebody else's name with a signing key of one's own."""
    return replace(keys, signing=generate_signing_key(rand))


def nobody(keys: PartyKeys, rand: bytes) -> PartyKeys:
    """A sound key that no roster holds."""
    return replace(keys, name="nobody", signing=generate_signing_key(rand))


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
