"""Tags by big integers: the seed's hash, the attempt's key, K_1 and K_2, and errors of tags (docs/protocol.md 15)."""

from __future__ import annotations

import hashlib
import hmac

from tests.reference.ring import MODULUS, expand, inner

BLOCK = 2048


def expanded(seed: bytes, info: str) -> bytes:
    """RFC 5869, 2.3, for 32 bytes: T(1) = HMAC(PRK, info | 0x01)."""
    return hmac.digest(seed, info.encode() + b"\x01", "sha256")


def shown_seed(seed: bytes) -> bytes:
    return expanded(seed, "moiety/2 tag seed shown")


def seed_hash(study_digest: str, round_number: int, seed: bytes) -> str:
    said = f"moiety/2 tag seed study {study_digest} round {round_number}".encode()
    return hashlib.sha256(said + b"\x00" + shown_seed(seed)).hexdigest()


def attempt_key(study_digest: str, round_number: int, attempt: int, seed: bytes) -> bytes:
    info = f"moiety/2 tag key study {study_digest} round {round_number} attempt {attempt}"
    return expanded(shown_seed(seed), info)


def kept_key(study_digest: str, round_number: int, attempt: int, seed: bytes) -> bytes:
    return expanded(seed, f"moiety/2 kept tag key study {study_digest} round {round_number} attempt {attempt}")


def factors(key: bytes, length: int) -> list[list[int]]:
    """K_1 and K_2: the words of one block, K_2's a place further, times two scales for each block."""
    blocks = -(-length // BLOCK)
    stream = expand(key, "TAGS", BLOCK + 2 + 2 * blocks)
    words, scales = stream[: BLOCK + 1], stream[BLOCK + 2 :]
    return [[scales[2 * (c // BLOCK) + j] * words[c % BLOCK + j] % MODULUS for c in range(length)] for j in (0, 1)]


def tags(key: bytes, x: list[int]) -> list[int]:
    return [inner(row, x) for row in factors(key, len(x))]


def errors(key: bytes, x: list[int], pair: int = 0) -> list[int]:
    """The error of one of the two last pairs, the shown one or the kept one, against the tags of what is before."""
    own = x[len(x) - 4 + 2 * pair :][:2]
    return [(tag - found) % MODULUS for tag, found in zip(tags(key, x[:-4]), own, strict=True)]


def commitment_to_mask(t_seed: bytes) -> str:
    return hashlib.sha256(b"moiety/2 output mask\x00" + t_seed).hexdigest()


def vector_digest(x: list[int]) -> str:
    octets = b"".join(v.to_bytes(8, "little") for v in x)
    return hashlib.sha256(b"moiety/2 output vector\x00" + octets).hexdigest()
