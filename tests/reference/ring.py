"""Ring Z_{2^64}, AES-CTR expansion and two-party sharing (docs/protocol.md 2, 3)."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MODULUS = 2**64

USAGES = {
    "SHARE": 1,
    "SKETCH": 2,
    "PROJECTIONS": 3,
    "QUERY": 4,
    "OUTPUT_MASK": 5,
    "ZERO_SHARING": 6,
    "DEALER_A": 7,
    "DEALER_B": 8,
    "OT_EXTENSION": 9,
    "OT_CHOICES": 10,
    "OT_MASKS": 11,
    "TAGS": 12,
    "ROUNDING": 13,
    "CANARY": 14,
    "SEEDED": 15,
    "MEMORY": 16,
    "FIRST_MODEL": 17,
    "CHECKS": 18,
    "NOISE": 19,
}


def signed(x: int) -> int:
    """Two's complement reading of a ring element."""
    return x - MODULUS if x >= MODULUS // 2 else x


def add(a: list[int], b: list[int]) -> list[int]:
    return [(x + y) % MODULUS for x, y in zip(a, b, strict=True)]


def subtract(a: list[int], b: list[int]) -> list[int]:
    return [(x - y) % MODULUS for x, y in zip(a, b, strict=True)]


def inner(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True)) % MODULUS


def aes_block(key: bytes, block: bytes) -> bytes:
    """One AES block: the only primitive taken from a library besides hashes."""
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return encryptor.update(block) + encryptor.finalize()


def stream(seed: bytes, usage: str, first: int, count: int) -> bytes:
    """Bytes first .. first+count-1 of the stream: block i is AES(seed, usage as 8 bytes BE || i as 8 bytes BE)."""
    tag = USAGES[usage].to_bytes(8, "big")
    low, high = first // 16, (first + count + 15) // 16
    encryptor = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    blocks = b"".join(encryptor.update(tag + i.to_bytes(8, "big")) for i in range(low, high))
    return blocks[first - 16 * low :][:count]


def expand(seed: bytes, usage: str, length: int, start: int = 0) -> list[int]:
    """Elements start .. start+length-1, eight little-endian bytes each."""
    data = stream(seed, usage, 8 * start, 8 * length)
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def derive(seed: bytes, label: str) -> bytes:
    return hmac.new(seed, label.encode(), hashlib.sha256).digest()


def split(x: list[int], seed: bytes) -> list[int]:
    """The vector share; the other share is the seed."""
    return subtract(x, expand(seed, "SHARE", len(x)))


def reconstruct(seed: bytes, vector: list[int]) -> list[int]:
    return add(vector, expand(seed, "SHARE", len(vector)))


def encrypted(content_key: bytes, share: bytes) -> bytes:
    """A sealed body: pieces of 2^18 bytes, each under the nonce of its place, the last one marked."""
    pieces = [share[i : i + 2**18] for i in range(0, len(share), 2**18)] or [b""]
    cipher = AESGCM(content_key)
    return b"".join(
        cipher.encrypt(i.to_bytes(11, "big") + bytes([i == len(pieces) - 1]), piece, None)
        for i, piece in enumerate(pieces)
    )


def commitment(salt: bytes, content_key: bytes, share: bytes) -> bytes:
    """HMAC under 32 secret random bytes of the content key and the hash of what it encrypts the share to."""
    body_hash = hashlib.sha256(encrypted(content_key, share)).digest()
    return hmac.new(salt, b"moiety/2 share\x00" + content_key + body_hash, hashlib.sha256).digest()


def message_digest(head: bytes, body: bytes) -> bytes:
    """The digest that a contribution's sender signs: all before the encrypted body, and the body's hash."""
    return hashlib.sha256(b"moiety/2 sealed message\x00" + head + hashlib.sha256(body).digest()).digest()


def to_bytes(x: list[int]) -> bytes:
    return b"".join(v.to_bytes(8, "little") for v in x)
