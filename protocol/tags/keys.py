"""The seed of a round's tags, its public hash, and the keys of one attempt (docs/protocol.md 15).

The requester draws 32 fresh random bytes for a round. The weight list carries them, sealed to each listed site, and two
keys follow from them: one from what servers are shown once both have signed what they are going to serve, whose hash
the announcement carries, and one that stays among the sites.
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
_SHOWN_DOMAIN: Final = f"{PROTOCOL_VERSION} tag seed shown"
_KEY_DOMAIN: Final = f"{PROTOCOL_VERSION} tag key"
_KEPT_DOMAIN: Final = f"{PROTOCOL_VERSION} kept tag key"


def shown_seed(seed: bytes) -> bytes:
    """Derive the seed that servers are shown: HKDF-Expand (RFC 5869), 32 bytes. It says nothing of the round's seed
    itself.

    Raises:   MalformedMessage, when the seed is not 32 bytes
    """
    require_length("a tag seed", seed, SEED_BYTES)
    return _expanded(seed, _SHOWN_DOMAIN)


def seed_hash(study_digest: str, round_number: int, seed: bytes) -> str:
    """Return the hash of the shown seed that an announcement holds, in hex. It hides both seeds.

    Requires: ``seed`` 32 fresh random bytes, used for one round
    Raises:   MalformedMessage, when it is not 32 bytes
    """
    return _hash_of_shown(study_digest, round_number, shown_seed(seed))


def require_seed(announcement: Announcement, seed: str | None) -> bytes | None:
    """At a site: the announced seed, from hex; None in a round without tags, which has none.

    Raises:   CommitmentMismatch, when it is another one, or there is one too many or too few
    """
    if announcement.tag_seed_hash is None and seed is None:
        return None
    if seed is not None:
        drawn = bytes.fromhex(seed)
        require_shown(announcement, shown_seed(drawn).hex())
        return drawn
    raise _another(announcement)


def require_shown(announcement: Announcement, shown: str) -> bytes:
    """At a server: what the announcement says that it will be shown, from hex.

    Raises:   CommitmentMismatch, when it is another one, or the round has none
    """
    found = bytes.fromhex(shown)
    hashed = _hash_of_shown(announcement.study_digest, announcement.round, found)
    if not hmac.compare_digest(hashed, announcement.tag_seed_hash or ""):
        raise _another(announcement)
    return found


def attempt_key(announcement: Announcement, attempt: int, shown: bytes) -> bytes:
    """The key of one attempt's shown tags, 32 bytes, from the shown seed.

    A burnt attempt is followed by another with fresh shares of the same update, and so with other tags.

    Requires: ``shown`` from :func:`shown_seed`, or passed :func:`require_shown`
    """
    return _expanded(shown, _of_attempt(_KEY_DOMAIN, announcement, attempt))


def kept_key(announcement: Announcement, attempt: int, seed: bytes) -> bytes:
    """The key of one attempt's kept tags, 32 bytes, which servers never see.

    Requires: ``seed`` passed :func:`require_seed`
    """
    return _expanded(seed, _of_attempt(_KEPT_DOMAIN, announcement, attempt))


def _hash_of_shown(study_digest: str, round_number: int, shown: bytes) -> str:
    said = f"{_SEED_DOMAIN} study {study_digest} round {round_number}\x00".encode()
    return hashlib.sha256(said + shown).hexdigest()


def _of_attempt(domain: str, announcement: Announcement, attempt: int) -> str:
    return f"{domain} study {announcement.study_digest} round {announcement.round} attempt {attempt}"


def _expanded(seed: bytes, info: str) -> bytes:
    return HKDFExpand(hashes.SHA256(), SEED_BYTES, info.encode()).derive(seed)


def _another(announcement: Announcement) -> CommitmentMismatch:
    return CommitmentMismatch(
        f"round {announcement.round}: the seed of its tags is not the announced one; take the one whose hash the "
        "announcement carries, or none where it carries none"
    )
