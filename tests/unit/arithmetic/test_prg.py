from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protocol.arithmetic.ring import Usage, derive, expand, expand_bytes, expand_into
from protocol.errors import MalformedMessage, ProtocolViolation

SEED = bytes(range(32))


def test_the_stream_is_aes_256_of_the_documented_counter_blocks():
    blocks = b"".join(int(Usage.SKETCH).to_bytes(8, "big") + i.to_bytes(8, "big") for i in range(50))
    encryptor = Cipher(algorithms.AES(SEED), modes.ECB()).encryptor()  # block by block: an independent path
    assert expand_bytes(SEED, Usage.SKETCH, 800) == encryptor.update(blocks)


def test_a_fixed_vector():
    digest = hashlib.sha256(expand_bytes(SEED, Usage.SHARE, 100_000)).hexdigest()
    assert digest == "7120544d32e5b8b1db97d7cce9853abd37cd5130dde2c5af858fe7c9a1d14dd2"


def test_elements_are_the_little_endian_reading_of_the_bytes():
    raw = expand_bytes(SEED, Usage.SHARE, 80)
    assert expand(SEED, Usage.SHARE, 10).tolist() == [int.from_bytes(raw[i : i + 8], "little") for i in range(0, 80, 8)]


@pytest.mark.parametrize("start", [0, 1, 2, 333, 8192, 20_001])
@pytest.mark.parametrize("length", [0, 1, 2, 17, 9001])
def test_any_piece_can_be_reached(start, length):
    whole = expand(SEED, Usage.ROUNDING, 30_000)
    assert np.array_equal(expand(SEED, Usage.ROUNDING, length, start=start), whole[start : start + length])
    raw = expand_bytes(SEED, Usage.ROUNDING, length, start=start)
    assert raw == whole.tobytes()[start : start + length]


@pytest.mark.parametrize("start", [0, 1, 333])
@pytest.mark.parametrize("length", [0, 1, 9001])
def test_a_piece_is_written_into_the_callers_buffer(start, length):
    buffer = np.full(length + 2, 7, dtype=np.uint64)
    expand_into(SEED, Usage.SHARE, buffer[1:-1], start=start)
    assert np.array_equal(buffer[1:-1], expand(SEED, Usage.SHARE, length, start=start))
    assert buffer[0] == buffer[-1] == 7


@pytest.mark.parametrize(
    "buffer", [np.zeros(4, np.int64), np.zeros((2, 2), np.uint64), np.zeros(4, np.uint64)[::2], np.zeros(4, ">u8")]
)
def test_another_kind_of_buffer_is_refused(buffer):
    with pytest.raises(ProtocolViolation, match="little-endian"):
        expand_into(SEED, Usage.SHARE, buffer)


def test_usages_and_seeds_give_unrelated_streams():
    streams = {expand_bytes(SEED, usage, 32) for usage in Usage} | {expand_bytes(bytes(32), Usage.SHARE, 32)}
    assert len(streams) == len(Usage) + 1


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_seed_of_another_length_is_refused(length):
    with pytest.raises(MalformedMessage, match="32 bytes"):
        expand(bytes(length), Usage.SHARE, 1)


@pytest.mark.parametrize(("n", "start"), [(-1, 0), (1, -1)])
def test_negative_places_are_refused(n, start):
    with pytest.raises(ProtocolViolation, match="at least zero"):
        expand_bytes(SEED, Usage.SHARE, n, start=start)


def test_derive_is_hmac_sha256():
    assert derive(SEED, "query é") == hmac.digest(SEED, "query é".encode(), "sha256")
    assert derive(SEED, "a") != derive(SEED, "b")
