"""Vectors as bytes in either ring, against big integers; both implementations."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.fixed_point import element_bytes, packed, unpacked
from protocol.arithmetic.kernels import NUMPY, Kernels
from protocol.arithmetic.ring import Ring, lifted, to_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.parameters import RingBits

EDGES = np.array([0, 1, 2**16, 2**47 - 1, 2**47, 2**48 - 1, 2**48, 2**63, 2**64 - 1], dtype=np.uint64)


def drawn(rng: np.random.Generator, n: int) -> Ring:
    x = rng.integers(0, 2**64, n, dtype=np.uint64)
    x[: EDGES.size] = EDGES[:n]
    return x


def signed_reading(value: int, bits: int) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@pytest.mark.parametrize("bits", [48, 64])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 9, 1001])
def test_bytes_are_the_low_ones_and_are_read_with_their_sign(
    kernels: Kernels, rng: np.random.Generator, n: int, bits: RingBits
) -> None:
    x, size = drawn(rng, n), bits // 8
    raw = bytes(packed(x, bits, kernels))
    assert raw == b"".join((int(value) % 2**bits).to_bytes(size, "little") for value in x)
    expected = [signed_reading(int(value), bits) for value in x]
    into = np.empty(n, dtype=np.uint64)
    for given in (raw, bytearray(raw), memoryview(b"x" + raw)[1:]):
        assert to_signed(unpacked(given, n, bits, kernels).copy()).tolist() == expected
    assert to_signed(unpacked(raw, n, bits, kernels, into).copy()).tolist() == expected
    assert to_signed(lifted(x, bits)).tolist() == expected
    assert element_bytes(bits) == size


def test_a_piece_and_every_second_element_are_packed_too(kernels: Kernels, rng: np.random.Generator) -> None:
    x = drawn(rng, 50)
    assert bytes(packed(x[3:7], 48, kernels)) == bytes(packed(x, 48, kernels))[18:42]
    assert bytes(packed(x[::2], 48, kernels)) == bytes(packed(x[::2].copy(), 48, NUMPY))


@pytest.mark.parametrize("length", [4, 6])
def test_another_number_of_bytes_is_refused(length: int) -> None:
    with pytest.raises(MalformedMessage, match="found 30"):
        unpacked(bytes(30), length, 48)


def test_a_buffer_that_does_not_fit_is_refused(kernels: Kernels) -> None:
    x = np.zeros(2, dtype=np.uint64)
    for words in (np.zeros(5, dtype=np.uint16), np.zeros(6, dtype=np.int64).view(np.int64)):
        with pytest.raises(ProtocolViolation, match="three words"):
            kernels.pack(x, words)  # type: ignore[arg-type]  # what is refused here
        with pytest.raises(ProtocolViolation, match="three words"):
            kernels.unpack(words, x)  # type: ignore[arg-type]  # likewise


def test_an_average_is_opened_in_the_small_ring(kernels: Kernels, rng: np.random.Generator) -> None:
    values = rng.integers(-(2**30), 2**30, 500)
    pad = rng.integers(0, 2**64, 500, dtype=np.uint64)
    masked = unpacked(packed(values.astype(np.uint64) - pad, 48), 500, 48)
    out = np.empty(500, dtype=np.float32)
    beyond, squares = kernels.open_average(masked, pad, 2**29, 4.0, out, 48)
    assert out.tolist() == (values / 4.0).astype(np.float32).tolist()
    assert (beyond, squares) == (int(np.count_nonzero(np.abs(values) > 2**29)), int((values.astype(object) ** 2).sum()))
