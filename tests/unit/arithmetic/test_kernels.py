"""Every kernel against plain Python."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from protocol.arithmetic import kernels
from protocol.arithmetic.fixed_point import element_bytes, packed, unpacked
from protocol.arithmetic.kernels import Scaling
from protocol.arithmetic.ring import Ring, lifted, to_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.parameters import RingBits

# --- kernels ----------------------------------------------------------------------------------------------------------

EDGES = np.array([0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], dtype=np.uint64)


def vectors(rng, n):
    x = rng.integers(0, 2**64, n, dtype=np.uint64)
    x[: min(n, EDGES.size)] = EDGES[: min(n, EDGES.size)]
    return x


@pytest.mark.parametrize("n", [0, 1, 7, 8, 63, 1001])
def test_mask_and_add_into_wrap_as_big_integers_do(rng, n):
    x, pad = vectors(rng, n), vectors(rng, n)[::-1].copy()
    out = np.empty_like(x)
    kernels.mask(x, pad, out)
    assert out.tolist() == [(int(a) - int(b)) % 2**64 for a, b in zip(x, pad, strict=True)]
    kernels.add_into(out, pad)
    assert np.array_equal(out, x)
    kernels.mask(x, x, x)
    assert not x.any()


def test_mask_and_add_into_read_read_only_arrays(rng):
    x = np.frombuffer(rng.bytes(800), dtype=np.uint64)
    total = np.zeros(100, dtype=np.uint64)
    kernels.add_into(total, x)
    assert np.array_equal(total, x)


def plain_sketch(words, x, length):
    size = length // 4
    buckets = [0] * length
    for word, value in zip(words.tolist(), x.tolist(), strict=True):
        for block in range(4):
            lane = (word >> (16 * block)) & 0xFFFF
            sign = -1 if lane >> 15 else 1
            place = block * size + lane % size
            buckets[place] = (buckets[place] + sign * value) % 2**64
    return buckets


@pytest.mark.parametrize("length", [4, 8, 2048, 2**17])
@pytest.mark.parametrize("n", [0, 1, 333])
def test_sketch_into_is_the_documented_map(rng, length, n):
    words, x = vectors(rng, n), vectors(rng, n)
    buckets = np.zeros(length, dtype=np.uint64)
    kernels.sketch_into(buckets, words, x)
    assert buckets.tolist() == plain_sketch(words, x, length)


def test_sketch_into_adds_to_what_is_there(rng):
    words, x = vectors(rng, 50), vectors(rng, 50)
    once, twice = np.zeros(64, dtype=np.uint64), np.zeros(64, dtype=np.uint64)
    kernels.sketch_into(once, words, x)
    kernels.sketch_into(twice, words, x)
    kernels.sketch_into(twice, words, x)
    assert np.array_equal(twice, once + once)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("length", "n"), [(4, 1), (8, 333), (4096, 333), (2**17, 0)])
def test_sketch_reals_is_the_same_map(rng, dtype, length, n):
    """Whole numbers, which floats add exactly in any order."""
    words, x = vectors(rng, n), rng.integers(-1000, 1000, n)
    buckets = np.full(length, 0.5)
    kernels.sketch_reals(buckets, words, x.astype(dtype))
    signed = np.array(plain_sketch(words, x, length), dtype=np.uint64).view(np.int64)
    assert np.array_equal(buckets, signed + 0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sketch_reals_sums_what_is_new_before_it_adds_it(rng, dtype):
    words, values, before = vectors(rng, 5001), rng.normal(size=5001).astype(dtype), rng.normal(size=64)
    new = [0.0] * 64
    for word, value in zip(words.tolist(), values.tolist(), strict=True):
        for block in range(4):
            lane = (word >> (16 * block)) & 0xFFFF
            new[16 * block + lane % 16] += -value if lane >> 15 else value
    buckets = before.copy()
    kernels.sketch_reals(buckets, words, values)
    assert np.array_equal(buckets, before + np.array(new))


@pytest.mark.parametrize("n", [0, 64, 128, 512, 576, 1088])
def test_transpose_bits_puts_every_bit_in_its_place(rng, n):
    columns = rng.integers(0, 256, (128, n // 8), dtype=np.uint8)
    rows = kernels.transpose_bits(columns)
    assert rows.shape == (n, 16)
    bits = [[(int(columns[j, i // 8]) >> (i % 8)) & 1 for j in range(128)] for i in range(n)]
    assert [[(int(rows[i, j // 8]) >> (j % 8)) & 1 for j in range(128)] for i in range(n)] == bits


def test_transpose_bits_takes_strided_columns(rng):
    columns = rng.integers(0, 256, (128, 64), dtype=np.uint8)[:, ::2]
    assert np.array_equal(kernels.transpose_bits(columns), kernels.transpose_bits(columns.copy()))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 4097, 10_000])
def test_block_squares_sum_what_they_say(rng, dtype, n):
    values = rng.normal(size=n).astype(dtype)
    peaks, squares = kernels.block_squares(values)
    assert peaks.shape == squares.shape == (math.ceil(n / 4096),)
    for i, (peak, square) in enumerate(zip(peaks, squares, strict=True)):
        block = [abs(float(x)) for x in values[4096 * i : 4096 * (i + 1)]]
        unit = 2 ** math.frexp(max(block))[1]
        exact = sum((Fraction(x) / unit) ** 2 for x in block)
        assert peak == max(block)
        # a square and twelve additions on the way to the sum: 13 roundings of 2^-53 each, of positive terms
        assert abs(Fraction(square) - exact) <= 14 * Fraction(2) ** -53 * exact


def added_by_halves(block):
    exponent = max(math.frexp(float(np.abs(block).max()))[1], -1000)
    terms = np.zeros(4096)
    terms[: block.size] = (block.astype(np.float64) * math.ldexp(1.0, -exponent)) ** 2
    while terms.size > 1:
        terms = terms[: terms.size // 2] + terms[terms.size // 2 :]
    return terms[0]


@pytest.mark.parametrize(
    ("small", "large"), [(5e-324, 1.7976931348623157e308), (1e-310, 1e-300), (1e-45, 3e38), (0.0, 5e-324), (0.0, 0.0)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_block_squares_neither_overflow_nor_vanish(rng, small, large, dtype):
    largest = min(large, float(np.finfo(dtype).max))
    values = np.array([small, -largest, -0.0, largest] * 1100, dtype=dtype)
    peak = float(np.abs(values).max())
    peaks, squares = kernels.block_squares(values)
    assert squares.tolist() == [added_by_halves(values[:4096]), added_by_halves(values[4096:])]
    assert peaks.tolist() == [peak, peak]
    assert np.all(np.isfinite(squares))
    assert np.all(squares > 0) == (peak > 0)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4095, 4096, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_block_with_a_value_that_is_not_finite_says_so(bad, place, dtype):
    values = np.full(5001, np.finfo(dtype).max, dtype=dtype)
    values[place] = bad
    peaks, squares = kernels.block_squares(values)
    assert np.isinf(peaks).tolist() == np.isinf(squares).tolist() == [place < 4096, place >= 4096]


SCALINGS = [
    Scaling(),
    Scaling(scale=2.0**20),
    Scaling(2.0**-3, 1.2345, 3 / 32, 2.0**21),
    Scaling(2.0**900, 0.7, 1.0, 1),
]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 7, 1001])
def test_encoding_kernels_round_as_exact_fractions_do(rng, scaling, dtype, n):
    values = (rng.normal(size=n) / scaling.unit).astype(dtype)
    words = vectors(rng, n)
    expected = []
    for x, word in zip(values.tolist(), words.tolist(), strict=True):
        s = x * scaling.unit * scaling.factor * scaling.weight * scaling.scale
        fraction = Fraction(s) - math.floor(s)
        # the fraction is compared as a float: for a tiny negative s it rounds to 1
        expected.append((math.floor(s) + (Fraction(word >> 11, 2**53) < Fraction(float(fraction)))) % 2**64)
    assert kernels.encode(values, scaling, words)
    assert words.tolist() == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**62, -(2.0**62), 1.7e308])
def test_encoding_kernels_say_when_a_value_does_not_fit(bad):
    values, words = np.zeros(9), np.zeros(9, dtype=np.uint64)
    values[4] = bad
    assert not kernels.encode(values, Scaling(), words.copy())
    assert not kernels.encode(values, Scaling(scale=8.0), words)


def test_encoding_kernels_take_the_largest_values_that_fit():
    values = np.array([np.nextafter(2.0**62, 0), -np.nextafter(2.0**62, 0)])
    words = np.zeros(2, dtype=np.uint64)
    assert kernels.encode(values, Scaling(), words)
    assert words.view(np.int64).tolist() == [2**62 - 512, 512 - 2**62]


def test_a_strided_update_is_read_as_it_is(rng):
    values = rng.normal(size=200)[::2]
    assert kernels.block_squares(values)[0].tolist() == [np.abs(values).max()]
    words, same = vectors(rng, 100), vectors(rng, 100)
    same[:] = words
    kernels.encode(values, Scaling(scale=8.0), words)
    kernels.encode(values.copy(), Scaling(scale=8.0), same)
    assert np.array_equal(words, same)


def test_what_is_no_update_is_refused():
    words = np.zeros(4, dtype=np.uint64)
    with pytest.raises(ProtocolViolation, match="int64"):
        kernels.block_squares(np.zeros(4, dtype=np.int64))  # type: ignore[arg-type]  # that is what is refused
    for shape in ((3,), (2, 2)):
        with pytest.raises(ProtocolViolation, match="equally long"):
            kernels.encode(np.zeros(shape), Scaling(), words)


def test_a_scaling_keeps_the_norm_out_of_its_repr():
    assert repr(Scaling(2.0, 0.3, 0.25, 8.0)) == "Scaling(scale=8.0)"
    assert not Scaling(weight=0.5, scale=8.0).clips
    assert Scaling(unit=0.5).clips
    assert Scaling(factor=0.5).clips


@pytest.mark.parametrize(("m", "n"), [(0, 5), (1, 0), (40, 101), (3, 2048)])
def test_project_multiplies_signed_entries_modulo_two_to_the_64(rng, m, n):
    rows, x = rng.integers(-128, 128, (m, n), dtype=np.int8), vectors(rng, n)
    expected = [sum(int(r) * int(v) for r, v in zip(row, x, strict=True)) % 2**64 for row in rows]
    assert kernels.project(rows, x).tolist() == expected
    assert kernels.project(np.asfortranarray(rows), np.repeat(x, 2)[::2]).tolist() == expected


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 2, 4)])
def test_rows_that_do_not_fit_are_refused(shape):
    with pytest.raises(ProtocolViolation, match="do not fit"):
        kernels.project(np.zeros(shape, dtype=np.int8), np.zeros(4, dtype=np.uint64))


def test_wrong_shapes_are_refused_before_any_memory_is_touched():
    def zeros(*shape):
        return np.zeros(shape, dtype=np.uint64)

    with pytest.raises(ProtocolViolation, match="equally long"):
        kernels.mask(zeros(4), zeros(4), zeros(3))
    with pytest.raises(ProtocolViolation, match="equally long"):
        kernels.add_into(zeros(4), zeros(5))
    with pytest.raises(ProtocolViolation, match="one-dimensional"):
        kernels.add_into(zeros(2, 2), zeros(2, 2))
    with pytest.raises(ProtocolViolation, match="equally long"):
        kernels.sketch_into(zeros(8), zeros(4), zeros(5))
    with pytest.raises(ProtocolViolation, match="equally long"):
        kernels.sketch_reals(np.zeros(8), zeros(4), np.zeros(5))


@pytest.mark.parametrize("shape", [(0,), (6,), (12,), (2**18,), (2, 4)])
def test_sketches_of_another_shape_are_refused(shape):
    empty = np.zeros(0, dtype=np.uint64)
    with pytest.raises(ProtocolViolation, match="four blocks"):
        kernels.sketch_into(np.zeros(shape, dtype=np.uint64), empty, empty)
    with pytest.raises(ProtocolViolation, match="four blocks"):
        kernels.sketch_reals(np.zeros(shape), empty, np.zeros(0))


@pytest.mark.parametrize("shape", [(127, 8), (128, 9), (8,)])
def test_bit_columns_of_another_shape_are_refused(shape):
    with pytest.raises(ProtocolViolation, match="multiple of 64"):
        kernels.transpose_bits(np.zeros(shape, dtype=np.uint8))


def test_numba_is_not_loaded_before_a_compiled_kernel_runs():
    program = "import sys, protocol.release; print('numba' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]


# --- packing ----------------------------------------------------------------------------------------------------------

PACKED_EDGES = np.array([0, 1, 2**16, 2**47 - 1, 2**47, 2**48 - 1, 2**48, 2**63, 2**64 - 1], dtype=np.uint64)


def drawn(rng: np.random.Generator, n: int) -> Ring:
    x = rng.integers(0, 2**64, n, dtype=np.uint64)
    x[: PACKED_EDGES.size] = PACKED_EDGES[:n]
    return x


def signed_reading(value: int, bits: int) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@pytest.mark.parametrize("bits", [48, 64])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 9, 1001])
def test_bytes_are_the_low_ones_and_are_read_with_their_sign(rng: np.random.Generator, n: int, bits: RingBits) -> None:
    x, size = drawn(rng, n), bits // 8
    raw = bytes(packed(x, bits))
    assert raw == b"".join((int(value) % 2**bits).to_bytes(size, "little") for value in x)
    expected = [signed_reading(int(value), bits) for value in x]
    into = np.empty(n, dtype=np.uint64)
    for given in (raw, bytearray(raw), memoryview(b"x" + raw)[1:]):
        assert to_signed(unpacked(given, n, bits).copy()).tolist() == expected
    assert to_signed(unpacked(raw, n, bits, into).copy()).tolist() == expected
    assert to_signed(lifted(x, bits)).tolist() == expected
    assert element_bytes(bits) == size


def test_a_piece_and_every_second_element_are_packed_too(rng: np.random.Generator) -> None:
    x = drawn(rng, 50)
    assert bytes(packed(x[3:7], 48)) == bytes(packed(x, 48))[18:42]
    assert bytes(packed(x[::2], 48)) == bytes(packed(x[::2].copy(), 48))


@pytest.mark.parametrize("length", [4, 6])
def test_another_number_of_bytes_is_refused(length: int) -> None:
    with pytest.raises(MalformedMessage, match="found 30"):
        unpacked(bytes(30), length, 48)


def test_a_buffer_that_does_not_fit_is_refused() -> None:
    x = np.zeros(2, dtype=np.uint64)
    for words in (np.zeros(5, dtype=np.uint16), np.zeros(6, dtype=np.int64).view(np.int64)):
        with pytest.raises(ProtocolViolation, match="three words"):
            kernels.pack(x, words)  # type: ignore[arg-type]  # what is refused here
        with pytest.raises(ProtocolViolation, match="three words"):
            kernels.unpack(words, x)  # type: ignore[arg-type]  # likewise


def test_an_average_is_opened_in_the_small_ring(rng: np.random.Generator) -> None:
    values = rng.integers(-(2**30), 2**30, 500)
    pad = rng.integers(0, 2**64, 500, dtype=np.uint64)
    masked = unpacked(packed(values.astype(np.uint64) - pad, 48), 500, 48)
    out = np.empty(500, dtype=np.float32)
    beyond, squares = kernels.open_average(masked, pad, 2**29, 4.0, out, 48)
    assert out.tolist() == (values / 4.0).astype(np.float32).tolist()
    assert (beyond, squares) == (int(np.count_nonzero(np.abs(values) > 2**29)), int((values.astype(object) ** 2).sum()))
