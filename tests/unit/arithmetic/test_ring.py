"""Ring arithmetic and the generator of masks."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from protocol.arithmetic import ring
from protocol.arithmetic.ring import Usage, expand, expand_bytes, expand_into
from protocol.errors import MalformedMessage, ProtocolViolation

# --- ring -------------------------------------------------------------------------------------------------------------

EDGES = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)


def test_dot_is_the_inner_product_modulo_two_to_the_64(rng):
    a, b = (rng.integers(0, 2**64, 1001, dtype=np.uint64) for _ in range(2))
    a[:5], b[:5] = EDGES, EDGES[::-1]
    assert ring.dot(a, b) == sum(int(x) * int(y) for x, y in zip(a, b, strict=True)) % ring.MODULUS
    assert ring.dot(a[:0], b[:0]) == 0


def test_bytes_are_little_endian_and_round_trip():
    raw = ring.to_bytes(EDGES)
    assert raw[8:16] == b"\x01" + bytes(7)
    for given in (raw, bytearray(raw), memoryview(raw)):
        assert np.array_equal(ring.from_bytes(given, 5), EDGES)


@pytest.mark.parametrize("length", [4, 6])
def test_another_number_of_bytes_is_refused(length):
    with pytest.raises(MalformedMessage, match="found 40"):
        ring.from_bytes(ring.to_bytes(EDGES), length)


# --- prg --------------------------------------------------------------------------------------------------------------

SEED = bytes(range(32))


def test_a_fixed_vector():
    digest = hashlib.sha256(expand_bytes(SEED, Usage.SHARE, 100_000)).hexdigest()
    assert digest == "7120544d32e5b8b1db97d7cce9853abd37cd5130dde2c5af858fe7c9a1d14dd2"


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


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_seed_of_another_length_is_refused(length):
    with pytest.raises(MalformedMessage, match="32 bytes"):
        expand(bytes(length), Usage.SHARE, 1)


@pytest.mark.parametrize(("n", "start"), [(-1, 0), (1, -1)])
def test_negative_places_are_refused(n, start):
    with pytest.raises(ProtocolViolation, match="at least zero"):
        expand_bytes(SEED, Usage.SHARE, n, start=start)
