"""Keys of a party: raw forms, refusals, nothing secret shown (docs/protocol.md 3)."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from pydantic import TypeAdapter, ValidationError

from protocol.channel import keys
from protocol.errors import BadSignature, MalformedMessage
from protocol.messages.paths import ServerUrl

# --- keys -------------------------------------------------------------------------------------------------------------

RAND_32 = bytes(range(32))
RAND_96 = bytes(range(96))

# RFC 8032, 7.1, test 2
RFC_SECRET = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
RFC_PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
RFC_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_signing_matches_the_rfc() -> None:
    key = keys.SigningKey.from_bytes(RFC_SECRET)
    assert key.public.to_bytes() == RFC_PUBLIC
    assert key.sign(b"\x72") == RFC_SIGNATURE
    keys.VerifyKey.from_bytes(RFC_PUBLIC).verify(RFC_SIGNATURE, b"\x72")


def test_raw_forms_round_trip() -> None:
    signing = keys.generate_signing_key(RAND_32)
    assert keys.SigningKey.from_bytes(signing.to_bytes()).public == signing.public
    assert keys.VerifyKey.from_bytes(signing.public.to_bytes()) == signing.public
    sealing = keys.generate_sealing_key(RAND_96)
    assert sealing.to_bytes() == RAND_96
    assert len(sealing.public.to_bytes()) == keys.SEALING_PUBLIC_BYTES == 1216
    assert keys.SealingPublicKey.from_bytes(sealing.public.to_bytes()) == sealing.public
    assert keys.SealingKey.from_bytes(sealing.to_bytes()).public == sealing.public


def test_public_halves_open_with_the_private_ones() -> None:
    key = keys.generate_sealing_key(RAND_96)
    suite = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    public = keys.SealingPublicKey.from_bytes(key.public.to_bytes())
    assert suite.decrypt(suite.encrypt(b"text", public.hpke, info=b"i"), key.hpke, info=b"i") == b"text"


def test_each_random_byte_counts() -> None:
    first = keys.generate_sealing_key(RAND_96).public
    for place in (0, 31, 70):  # bytes 32 to 63 are ML-KEM's z, which only makes rejected secrets
        other = bytearray(RAND_96)
        other[place] ^= 1
        assert keys.generate_sealing_key(bytes(other)).public != first


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize(
    ("make", "length"),
    [
        (keys.generate_signing_key, 32),
        (keys.SigningKey.from_bytes, 32),
        (keys.VerifyKey.from_bytes, 32),
        (keys.generate_sealing_key, 96),
        (keys.SealingKey.from_bytes, 96),
        (keys.SealingPublicKey.from_bytes, 1216),
    ],
)
def test_wrong_lengths_are_refused(make, length: int, change: int) -> None:
    with pytest.raises(MalformedMessage, match=f"has {length + change} bytes, must have {length}"):
        make(bytes(length + change))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x01" + bytes(31),  # the neutral element, order 1
        bytes(32),  # order 4
        b"\xec" + b"\xff" * 30 + b"\x7f",  # order 2
        b"\x02" + bytes(31),  # no point at all
    ],
)
def test_verify_key_outside_the_prime_order_group_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedMessage, match="prime-order"):
        keys.VerifyKey.from_bytes(raw)


def test_bad_halves_of_a_sealing_key_are_refused() -> None:
    good = keys.generate_sealing_key(RAND_96).public.to_bytes()
    for bad in (
        b"\xff" * keys.MLKEM_PUBLIC_BYTES + good[keys.MLKEM_PUBLIC_BYTES :],  # coefficients above q
        good[: keys.MLKEM_PUBLIC_BYTES] + bytes(32),  # small order
        good[: keys.MLKEM_PUBLIC_BYTES] + b"\x01" + bytes(31),  # small order
    ):
        with pytest.raises(MalformedMessage, match="not a valid pair"):
            keys.SealingPublicKey.from_bytes(bad)


def test_wrong_signatures_are_refused() -> None:
    key, other = keys.SigningKey.from_bytes(RFC_SECRET), keys.generate_signing_key(RAND_32)
    with pytest.raises(BadSignature, match="does not match"):
        key.public.verify(RFC_SIGNATURE, b"\x73")
    with pytest.raises(BadSignature, match="does not match"):
        other.public.verify(RFC_SIGNATURE, b"\x72")
    for bit in range(0, 512, 37):
        bad = bytearray(RFC_SIGNATURE)
        bad[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(BadSignature, match="does not match"):
            key.public.verify(bytes(bad), b"\x72")
    for wrong in (b"", RFC_SIGNATURE[:-1], RFC_SIGNATURE + b"\x00"):
        with pytest.raises(BadSignature, match=f"found {len(wrong)}"):
            key.public.verify(wrong, b"\x72")


def test_no_secret_in_repr_or_error() -> None:
    sealing, signing = keys.generate_sealing_key(RAND_96), keys.generate_signing_key(RAND_32)
    shown = repr(sealing) + repr(signing) + repr([sealing.public, signing.public]) + f"{signing}"
    assert shown.count("fingerprint=") == 5
    assert RAND_32.hex()[:16] not in shown
    assert "\\x01" not in shown
    with pytest.raises(MalformedMessage) as refused:
        keys.SigningKey.from_bytes(RFC_SECRET + b"\x00")
    assert RFC_SECRET.hex()[:8] not in refused.value.detail
    assert repr(RFC_SECRET)[2:10] not in refused.value.detail


def test_keys_are_frozen_and_secret_keys_compare_by_identity() -> None:
    key = keys.generate_signing_key(RAND_32)
    with pytest.raises(dataclasses.FrozenInstanceError):
        key.public.raw = b""  # type: ignore[misc]
    assert key != keys.generate_signing_key(RAND_32)
    assert keys.generate_sealing_key(RAND_96) != keys.generate_sealing_key(RAND_96)
    assert len({key.public, copy.copy(key.public)}) == 1


def test_a_public_key_is_checked_once() -> None:
    sealing = keys.generate_sealing_key(bytes(96)).public.raw
    for kind, raw in ((keys.VerifyKey, RFC_PUBLIC), (keys.SealingPublicKey, sealing)):
        assert kind.from_bytes(raw) is kind.from_bytes(bytes(bytearray(raw)))


# --- address ----------------------------------------------------------------------------------------------------------

ADDRESS: TypeAdapter[str] = TypeAdapter(ServerUrl)


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example",
        "https://a.example:8443",
        "https://operator_a:1",
        "https://127.0.0.1:65535",
        "https://[::1]:8443",
        "https://[2001:db8::1]",
        "https://xn--klinik-4ya.example",
        f"https://{'a' * 63}.example:8443",
        f"https://{'a.' * 126}b",
    ],
)
def test_addresses(url: str) -> None:
    assert ADDRESS.validate_python(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example",
        "https://",
        "https://:8443",
        "https://a.example/",
        "https://a.example/moiety",
        "https://a.example?x",
        "https://a.example#x",
        "https://user@a.example",
        "https://user:word@a.example",
        "https://a.example:0",
        "https://a.example:65536",
        "https://a.example:08",
        "https://a.example:",
        "https://a.example\\@b.example",
        "https://.example",
        "https://a..example",
        "https://a-.example",
        f"https://{'a' * 64}.example",
        f"https://{'a.' * 126}bb",
        "https://a.example ",
        "https://a.example\n",
        "https://ä.example",
        "https://[::1",
        "HTTPS://a.example",
    ],
)
def test_no_addresses(url: str) -> None:
    with pytest.raises(ValidationError, match="https://HOST or https://HOST:PORT and nothing more"):
        ADDRESS.validate_python(url)
