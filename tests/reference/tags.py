"""Tags by big integers: the seed's hash, the attempt's key, K_1 and K_2, and errors of tags (docs/protocol.md 15)."""

from __future__ import annotations

import hashlib
import hmac

from tests.reference.ring import MODULUS, expand, inner


def seed_hash(study_digest: str, round_number: int, seed: bytes) -> str:
    said = f"moiety/2 tag seed study {study_digest} round {round_number}".encode()
    return hashlib.sha256(said + b"\x00" + seed).hexdigest()


def attempt_key(study_digest: str, round_number: int, attempt: int, seed: bytes) -> bytes:
    """RFC 5869, 2.3, for 32 bytes: T(1) = HMAC(PRK, info | 0x01)."""
    info = f"moiety/2 tag key study {study_digest} round {round_number} attempt {attempt}".encode()
    return hmac.digest(seed, info + b"\x01", "sha256")


def factors(key: bytes, length: int) -> list[list[int]]:
    """K_1 and K_2: one stream, K_2 a word further."""
    words = expand(key, "TAGS", length + 1)
    return [words[:-1], words[1:]]


def tags(key: bytes, x: list[int]) -> list[int]:
    return [inner(row, x) for row in factors(key, len(x))]


def errors(key: bytes, x: list[int]) -> list[int]:
    """By how much the last two elements are not the tags of the others."""
    return [(tag - found) % MODULUS for tag, found in zip(tags(key, x[:-2]), x[-2:], strict=True)]


def commitment_to_mask(t_seed: bytes) -> str:
    return hashlib.sha256(b"moiety/2 output mask\x00" + t_seed).hexdigest()


def vector_digest(x: list[int]) -> str:
    octets = b"".join(v.to_bytes(8, "little") for v in x)
    return hashlib.sha256(b"moiety/2 output vector\x00" + octets).hexdigest()
