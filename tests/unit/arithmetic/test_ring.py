from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic import ring
from protocol.errors import MalformedMessage

EDGES = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)


def test_signed_reading_is_twos_complement():
    assert ring.to_signed(EDGES).tolist() == [0, 1, 2**63 - 1, -(2**63), -1]
    assert np.array_equal(ring.from_signed(ring.to_signed(EDGES)), EDGES)


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
