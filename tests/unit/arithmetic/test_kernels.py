"""Both implementations of every kernel, against each other and against plain Python."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from protocol.arithmetic.kernels import NUMBA, NUMPY
from protocol.errors import ProtocolViolation

EDGES = np.array([0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], dtype=np.uint64)


def vectors(rng, n):
    x = rng.integers(0, 2**64, n, dtype=np.uint64)
    x[: min(n, EDGES.size)] = EDGES[: min(n, EDGES.size)]
    return x


@pytest.mark.parametrize("n", [0, 1, 7, 8, 63, 1001])
def test_mask_and_add_into_wrap_as_big_integers_do(kernels, rng, n):
    x, pad = vectors(rng, n), vectors(rng, n)[::-1].copy()
    out = np.empty_like(x)
    kernels.mask(x, pad, out)
    assert out.tolist() == [(int(a) - int(b)) % 2**64 for a, b in zip(x, pad, strict=True)]
    kernels.add_into(out, pad)
    assert np.array_equal(out, x)
    kernels.mask(x, x, x)
    assert not x.any()


def test_mask_and_add_into_read_read_only_arrays(kernels, rng):
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
def test_sketch_into_is_the_documented_map(kernels, rng, length, n):
    words, x = vectors(rng, n), vectors(rng, n)
    buckets = np.zeros(length, dtype=np.uint64)
    kernels.sketch_into(buckets, words, x)
    assert buckets.tolist() == plain_sketch(words, x, length)


def test_sketch_into_adds_to_what_is_there(kernels, rng):
    words, x = vectors(rng, 50), vectors(rng, 50)
    once, twice = np.zeros(64, dtype=np.uint64), np.zeros(64, dtype=np.uint64)
    kernels.sketch_into(once, words, x)
    kernels.sketch_into(twice, words, x)
    kernels.sketch_into(twice, words, x)
    assert np.array_equal(twice, once + once)


@pytest.mark.parametrize("n", [0, 64, 128, 512, 576, 1088])
def test_transpose_bits_puts_every_bit_in_its_place(kernels, rng, n):
    columns = rng.integers(0, 256, (128, n // 8), dtype=np.uint8)
    rows = kernels.transpose_bits(columns)
    assert rows.shape == (n, 16)
    bits = [[(int(columns[j, i // 8]) >> (i % 8)) & 1 for j in range(128)] for i in range(n)]
    assert [[(int(rows[i, j // 8]) >> (j % 8)) & 1 for j in range(128)] for i in range(n)] == bits


def test_transpose_bits_takes_strided_columns(rng):
    columns = rng.integers(0, 256, (128, 64), dtype=np.uint8)[:, ::2]
    assert np.array_equal(NUMBA.transpose_bits(columns), NUMPY.transpose_bits(columns))


def test_twins_agree_on_a_long_vector(rng):
    words, x = vectors(rng, 20_001), vectors(rng, 20_001)
    results = []
    for kernels in (NUMBA, NUMPY):
        buckets = np.zeros(2048, dtype=np.uint64)
        kernels.sketch_into(buckets, words, x)
        results.append(buckets)
    assert np.array_equal(*results)


def test_wrong_shapes_are_refused_before_any_memory_is_touched(kernels):
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


@pytest.mark.parametrize("shape", [(0,), (6,), (12,), (2**18,), (2, 4)])
def test_sketches_of_another_shape_are_refused(kernels, shape):
    empty = np.zeros(0, dtype=np.uint64)
    with pytest.raises(ProtocolViolation, match="four blocks"):
        kernels.sketch_into(np.zeros(shape, dtype=np.uint64), empty, empty)


@pytest.mark.parametrize("shape", [(127, 8), (128, 9), (8,)])
def test_bit_columns_of_another_shape_are_refused(kernels, shape):
    with pytest.raises(ProtocolViolation, match="multiple of 64"):
        kernels.transpose_bits(np.zeros(shape, dtype=np.uint8))


def test_numba_is_not_loaded_before_a_compiled_kernel_runs():
    program = "import sys, protocol.release; print('numba' in sys.modules, protocol.release.NUMBA.name)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "numba"]
