"""Commitments and digests of sealed messages: what they fix, and that bytes are compared whatever they are."""

from __future__ import annotations

import hashlib
import hmac
from itertools import pairwise

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from protocol.channel.commitment import (
    COMMITMENT_BYTES,
    MessageDigest,
    check_commitment,
    commitment,
    commitment_to,
    head_digest,
    message_digest,
)
from protocol.channel.keys import generate_sealing_key
from protocol.channel.sealing import (
    CHUNK_BYTES,
    MAGIC,
    MAX_HEADER_BYTES,
    SealedReader,
    encrypt_body,
    seal_message,
    sealed_head_length,
)
from protocol.errors import CommitmentMismatch, MalformedMessage

SALT, CONTENT_KEY = b"s" * 32, b"k" * 32
HEADER = b'{"round":3}'
HEAD_BYTES = sealed_head_length(len(HEADER))
SHARE = np.random.default_rng(1).bytes(CHUNK_BYTES + 1000)
KEY = generate_sealing_key(bytes(range(96)))
SEALED = seal_message(HEADER, [SHARE], KEY.public, CONTENT_KEY, SALT).whole()
BODY_HASH = hashlib.sha256(SEALED[HEAD_BYTES:]).digest()


def digest_of(data: bytes, *cuts: int) -> bytes:
    taken, places = MessageDigest(), [0, *cuts, len(data)]
    for start, stop in pairwise(places):
        taken.update(data[start:stop])
    return taken.digest()


def test_the_commitment_is_a_mac_under_the_salt_of_key_and_body() -> None:
    expected = hmac.digest(SALT, b"moiety/2 share\x00" + CONTENT_KEY + BODY_HASH, "sha256")
    assert commitment(SALT, CONTENT_KEY, BODY_HASH) == expected
    assert commitment_to(SHARE, SALT, CONTENT_KEY) == expected
    assert len(expected) == COMMITMENT_BYTES
    check_commitment(expected, SALT, CONTENT_KEY, BODY_HASH)


def test_a_commitment_of_another_length_is_refused() -> None:
    committed = commitment(SALT, CONTENT_KEY, BODY_HASH)
    for wrong in (b"", committed[:-1], committed + b"\x00"):
        with pytest.raises(CommitmentMismatch):
            check_commitment(wrong, SALT, CONTENT_KEY, BODY_HASH)


@pytest.mark.parametrize(
    ("salt", "content_key", "body_hash", "names"),
    [
        (SALT + b"s", CONTENT_KEY, BODY_HASH, "salt has 33"),
        (SALT, b"k", BODY_HASH, "content key has 1"),
        (SALT, CONTENT_KEY, b"", "body hash has 0"),
    ],
)
def test_wrong_lengths_are_refused(salt: bytes, content_key: bytes, body_hash: bytes, names: str) -> None:
    with pytest.raises(MalformedMessage, match=names):
        commitment(salt, content_key, body_hash)


def test_a_ciphertext_that_opens_under_two_keys_has_two_commitments() -> None:
    """AES-GCM commits to no key: one body and tag made to open under two. The commitment tells them apart."""
    keys = [bytes([n]) * 32 for n in (1, 2)]
    nonce = bytes(11) + b"\x01"
    body = _opens_under_both(keys, nonce)
    shares = [AESGCM(key).decrypt(nonce, body, None) for key in keys]
    assert shares[0] != shares[1]
    assert list(encrypt_body(keys[0], [shares[0]])) == list(encrypt_body(keys[1], [shares[1]])) == [body]
    first, second = (commitment_to(share, SALT, key) for key, share in zip(keys, shares, strict=True))
    assert first != second


def _opens_under_both(keys: list[bytes], nonce: bytes) -> bytes:
    """Two blocks and a tag for both keys (Grubbs, Lu, Ristenpart 2017): one linear equation in the second block.

    tag_k = c1 h^3 + c2 h^2 + len h + pad, with h = E_k(0) and pad = E_k(nonce, 1); GHASH is linear in c2.
    """
    first, length = 1 << 127, _reflected((256).to_bytes(16, "big"))
    h, pads = [], []
    for key in keys:
        h.append(_reflected(_block(key, bytes(16))))
        pads.append(_reflected(_block(key, nonce + (1).to_bytes(4, "big"))))
    fixed = [_times(first, _power(x, 3)) ^ _times(length, x) ^ pad for x, pad in zip(h, pads, strict=True)]
    second = _times(fixed[0] ^ fixed[1], _power(_times(h[0], h[0]) ^ _times(h[1], h[1]), 2**128 - 2))
    tag = fixed[0] ^ _times(second, _times(h[0], h[0]))
    return b"".join(_reflected_bytes(x) for x in (first, second, tag))


def _block(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)


def _reflected(block: bytes) -> int:
    """GCM writes x^0 as the first bit; here it is bit 0."""
    return int(f"{int.from_bytes(block, 'big'):0128b}"[::-1], 2)


def _reflected_bytes(x: int) -> bytes:
    return int(f"{x:0128b}"[::-1], 2).to_bytes(16, "big")


def _times(a: int, b: int) -> int:
    """GF(2^128) modulo x^128 + x^7 + x^2 + x + 1."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a >> 128:
            a ^= (1 << 128) | 0x87
        b >>= 1
    return product


def _power(x: int, exponent: int) -> int:
    result = 1
    while exponent:
        if exponent & 1:
            result = _times(result, x)
        x = _times(x, x)
        exponent >>= 1
    return result


def test_the_digest_covers_head_and_body_once() -> None:
    expected = hashlib.sha256(b"moiety/2 sealed message\x00" + SEALED[:HEAD_BYTES] + BODY_HASH).digest()
    assert message_digest(SEALED[:HEAD_BYTES], BODY_HASH) == expected
    assert digest_of(SEALED) == expected
    taken = MessageDigest()
    taken.update(SEALED)
    assert taken.body_hash() == BODY_HASH


def test_the_head_can_be_digested_alone() -> None:
    reader = SealedReader(KEY)
    reader.feed(SEALED[:20])
    assert (reader.head, reader.salt, reader.content_key) == (SEALED[:12], None, None)
    reader.feed(SEALED[20:])
    assert (reader.head, reader.salt, reader.content_key) == (SEALED[:HEAD_BYTES], SALT, CONTENT_KEY)
    assert head_digest(reader.head) == hashlib.sha256(b"moiety/2 sealed head\x00" + SEALED[:HEAD_BYTES]).digest()
    assert head_digest(reader.head) != head_digest(SEALED[: HEAD_BYTES - 1])


@given(st.lists(st.integers(0, len(SEALED)), max_size=6).map(sorted))
def test_the_digest_does_not_depend_on_the_pieces(cuts: list[int]) -> None:
    assert digest_of(SEALED, *cuts) == digest_of(SEALED)


@given(st.lists(st.integers(0, HEAD_BYTES + 2), max_size=6).map(sorted))
def test_nor_where_the_cuts_fall_in_the_head(cuts: list[int]) -> None:
    assert digest_of(SEALED[: HEAD_BYTES + 3], *cuts) == digest_of(SEALED[: HEAD_BYTES + 3])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        MAGIC + bytes(4) + b"no header",
        MAGIC + (MAX_HEADER_BYTES + 1).to_bytes(4, "big") + b"too long",
        b"something else altogether",
        SEALED[: HEAD_BYTES - 1],
    ],
    ids=["nothing", "cut in the prefix", "empty header", "long header", "other bytes", "cut in the head"],
)
def test_what_is_no_sealed_message_is_all_head(data: bytes) -> None:
    empty = hashlib.sha256(b"").digest()
    assert digest_of(data) == message_digest(data, empty)
    assert digest_of(data, len(data) // 2) == digest_of(data)
