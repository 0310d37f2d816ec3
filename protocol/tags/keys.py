"""The seed of a round's tags, its public hash, and the key of one attempt (docs/protocol.md 15).

The requester draws 32 fresh random bytes for a round. The announcement carries their hash, the weight list the bytes
themselves, sealed to each listed site; servers see them once both have signed what they are going to serve.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from protocol.arithmetic.prg import SEED_BYTES
from protocol.errors import CommitmentMismatch
from protocol.parameters import PROTOCOL_VERSION
from protocol.wire.keys import require_length
from protocol.wire.messages import Announcement

_SEED_DOMAIN: Final = f"{PROTOCOL_VERSION} tag seed"
_KEY_DOMAIN: Final = f"{PROTOCOL_VERSION} tag key"


def seed_hash(study_digest: str, round_number: int, seed: bytes) -> str:
    """What an announcement says of its round's seed, in hex; it hides the seed, and fits no other round.

    Requires: ``seed`` 32 fresh random bytes, used for one round
    Raises:   MalformedMessage, when it is not 32 bytes
    """
    require_length("a tag seed", seed, SEED_BYTES)
    said = f"{_SEED_DOMAIN} study {study_digest} round {round_number}\x00".encode()
    return hashlib.sha256(said + seed).hexdigest()


def require_seed(announcement: Announcement, seed: str | None) -> bytes | None:
    """The announced seed, from hex; None in a round without tags, which has none.

    Raises:   CommitmentMismatch, when it is another one, or there is one too many or too few
    """
    said = announcement.tag_seed_hash
    if said is None and seed is None:
        return None
    if said is not None and seed is not None:
        found = bytes.fromhex(seed)
        if hmac.compare_digest(seed_hash(announcement.study_digest, announcement.round, found), said):
            return found
    raise CommitmentMismatch(
        f"round {announcement.round}: the seed of its tags is not the announced one; take the one whose hash the "
        "announcement carries, or none where it carries none"
    )


def attempt_key(announcement: Announcement, attempt: int, seed: bytes) -> bytes:
    """The key of one attempt's tags: HKDF-Expand (RFC 5869) of the seed, 32 bytes.

    A burnt attempt is followed by another with fresh shares of the same update, and so with other tags.

    Requires: ``seed`` passed :func:`require_seed`
    """
    info = f"{_KEY_DOMAIN} study {announcement.study_digest} round {announcement.round} attempt {attempt}"
    return HKDFExpand(hashes.SHA256(), SEED_BYTES, info.encode()).derive(seed)
