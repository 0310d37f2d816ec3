"""The two key pairs of a party: one to sign with, one to be sealed to (docs/protocol.md 3).

Signing is Ed25519. Sealing is the HPKE hybrid of ML-KEM-768 and X25519: a sealed share stays closed as long
as one of the two holds. Random bytes are arguments, and a private key never appears in a repr or an error.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey
from nacl.bindings import crypto_core_ed25519_is_valid_point

from protocol.errors import BadSignature, MalformedMessage

SIGNING_KEY_BYTES: Final = 32
_KEY_ID_DIGITS: Final = 32
VERIFY_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
MLKEM_SEED_BYTES: Final = 64
MLKEM_PUBLIC_BYTES: Final = 1184
X25519_BYTES: Final = 32
SEALING_KEY_BYTES: Final = MLKEM_SEED_BYTES + X25519_BYTES
SEALING_PUBLIC_BYTES: Final = MLKEM_PUBLIC_BYTES + X25519_BYTES
_KEPT_KEYS: Final = 1024


def require_length(what: str, data: bytes, length: int) -> bytes:
    """``data`` as bytes, or MalformedMessage that names ``what`` and both lengths, never the content."""
    if len(data) != length:
        raise MalformedMessage(f"{what} has {len(data)} bytes, must have {length}: check where it was read from")
    return bytes(data)


def _fingerprint(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


@dataclass(frozen=True, repr=False)
class VerifyKey:
    """Ed25519 public key, 32 raw bytes; ``ed25519`` is the same key as a library object.

    Raises: MalformedMessage on a wrong length and on a point outside the prime-order group: under a point of
            small order one signature can be valid for many messages
    Source: RFC 8032
    """

    raw: bytes
    ed25519: Ed25519PublicKey = field(init=False, compare=False)

    def __post_init__(self) -> None:
        raw = require_length("an Ed25519 public key", self.raw, VERIFY_KEY_BYTES)
        if not crypto_core_ed25519_is_valid_point(raw):
            raise MalformedMessage("an Ed25519 public key is not a point of the prime-order group: export it again")
        object.__setattr__(self, "raw", raw)
        object.__setattr__(self, "ed25519", Ed25519PublicKey.from_public_bytes(raw))

    def __repr__(self) -> str:
        return f"VerifyKey(fingerprint={_fingerprint(self.raw)})"

    @classmethod
    @lru_cache(maxsize=_KEPT_KEYS)
    def from_bytes(cls, raw: bytes) -> VerifyKey:
        """The checked key; of the few that a federation has, each is checked once."""
        return cls(raw)

    def to_bytes(self) -> bytes:
        return self.raw

    def verify(self, signature: bytes, message: bytes) -> None:
        """Return if ``signature`` over ``message`` is this key's, else raise BadSignature."""
        if len(signature) != SIGNATURE_BYTES:
            raise BadSignature(
                f"an Ed25519 signature has {SIGNATURE_BYTES} bytes, found {len(signature)}: send the raw signature"
            )
        try:
            self.ed25519.verify(signature, message)
        except InvalidSignature:
            raise BadSignature(
                f"the signature does not match the content and the key {_fingerprint(self.raw)}: "
                "sign exactly the bytes that are sent, with the key in the roster"
            ) from None


@dataclass(frozen=True, repr=False, eq=False)
class SigningKey:
    """Ed25519 private key, 32 raw bytes (the RFC 8032 seed)."""

    _raw: bytes
    _ed25519: Ed25519PrivateKey = field(init=False)
    public: VerifyKey = field(init=False)

    def __post_init__(self) -> None:
        raw = require_length("an Ed25519 private key", self._raw, SIGNING_KEY_BYTES)
        key = Ed25519PrivateKey.from_private_bytes(raw)
        object.__setattr__(self, "_raw", raw)
        object.__setattr__(self, "_ed25519", key)
        object.__setattr__(self, "public", VerifyKey(key.public_key().public_bytes_raw()))

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public!r})"

    @classmethod
    def from_bytes(cls, raw: bytes) -> SigningKey:
        return cls(raw)

    def to_bytes(self) -> bytes:
        """The secret itself: for the key file only."""
        return self._raw

    def sign(self, message: bytes) -> bytes:
        """64-byte Ed25519 signature; deterministic."""
        return self._ed25519.sign(message)


@dataclass(frozen=True, repr=False)
class SealingPublicKey:
    """The public key to which others seal: ML-KEM-768 (1184 bytes) then X25519 (32 bytes); ``hpke`` is the library
    object.

    Raises: MalformedMessage on a wrong length, on ML-KEM coefficients out of range and on an X25519 point of
            small order (the shared secret would be known to everybody)
    Source: RFC 9180; FIPS 203; RFC 7748
    """

    raw: bytes
    hpke: MLKEM768X25519PublicKey = field(init=False, compare=False)

    def __post_init__(self) -> None:
        raw = require_length("a sealing public key", self.raw, SEALING_PUBLIC_BYTES)
        try:
            mlkem = MLKEM768PublicKey.from_public_bytes(raw[:MLKEM_PUBLIC_BYTES])
            x25519 = X25519PublicKey.from_public_bytes(raw[MLKEM_PUBLIC_BYTES:])
            # Any scalar shows a point of small order: the exchange gives zero and the library refuses.
            X25519PrivateKey.from_private_bytes(b"\x01" * X25519_BYTES).exchange(x25519)
        except ValueError:
            raise MalformedMessage("a sealing public key is not a valid pair of keys: export it again") from None
        object.__setattr__(self, "raw", raw)
        object.__setattr__(self, "hpke", MLKEM768X25519PublicKey(mlkem, x25519))

    def __repr__(self) -> str:
        return f"SealingPublicKey(fingerprint={_fingerprint(self.raw)})"

    @classmethod
    @lru_cache(maxsize=_KEPT_KEYS)
    def from_bytes(cls, raw: bytes) -> SealingPublicKey:
        """The checked key, checked once."""
        return cls(raw)

    def to_bytes(self) -> bytes:
        return self.raw


@dataclass(frozen=True, repr=False, eq=False)
class SealingKey:
    """Opens what was sealed to its ``public`` key: ML-KEM-768 seed (64 bytes) then X25519 scalar (32 bytes)."""

    _raw: bytes
    hpke: MLKEM768X25519PrivateKey = field(init=False)
    public: SealingPublicKey = field(init=False)

    def __post_init__(self) -> None:
        raw = require_length("a sealing private key", self._raw, SEALING_KEY_BYTES)
        mlkem = MLKEM768PrivateKey.from_seed_bytes(raw[:MLKEM_SEED_BYTES])
        x25519 = X25519PrivateKey.from_private_bytes(raw[MLKEM_SEED_BYTES:])
        public = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
        object.__setattr__(self, "_raw", raw)
        object.__setattr__(self, "hpke", MLKEM768X25519PrivateKey(mlkem, x25519))
        object.__setattr__(self, "public", SealingPublicKey(public))

    def __repr__(self) -> str:
        return f"SealingKey(public={self.public!r})"

    @classmethod
    def from_bytes(cls, raw: bytes) -> SealingKey:
        return cls(raw)

    def to_bytes(self) -> bytes:
        """The secret itself: for the key file only."""
        return self._raw


def key_id_of(signing_public: bytes) -> str:
    """32 hex digits of the hash of a public signing key."""
    return hashlib.sha256(b"moiety/2 key id\x00" + signing_public).hexdigest()[:_KEY_ID_DIGITS]


def generate_signing_key(rand: bytes) -> SigningKey:
    """A new signing key from 32 fresh random bytes."""
    return SigningKey.from_bytes(rand)


def generate_sealing_key(rand: bytes) -> SealingKey:
    """A new sealing key from 96 fresh random bytes (ML-KEM 64, X25519 32)."""
    return SealingKey.from_bytes(rand)
