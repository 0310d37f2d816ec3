"""The row hash, the packed messages and Gilboa's sums, against Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.kernels import transpose_bits
from protocol.errors import ConfigurationError, MalformedMessage, ProtocolViolation
from protocol.ot import gilboa, kernels, numba_kernels
from protocol.ot.base import Extension
from protocol.ot.extension import column_bytes, next_position, receiver_columns, row_count, sender_columns
from protocol.ot.gilboa import RowHash

EDGES = np.array([0, 1, 2**63, 2**64 - 1, 2**32, 2**63 - 1], dtype=np.uint64)


def random_ring(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


def test_shapes_that_do_not_fit_are_refused():
    own, pads, packed = random_ring(1, 2), random_ring(2, 128), np.zeros((2, 65), np.uint32)
    for zero, one, mine in ((pads[:-1], pads, own), (pads, pads[:-1], own), (pads, pads, own[:1])):
        with pytest.raises(ProtocolViolation, match="64 pads"):
            kernels.sender_products(zero, one, mine)
    for some, words, mine in ((pads[:-1], packed, own), (pads, packed[:, :-1], own), (pads, packed, own[:, None])):
        with pytest.raises(ProtocolViolation, match="64 pads"):
            kernels.receiver_products(some, words, mine)


def test_the_loops_are_compiled_with_the_first_call():
    assert kernels._compiled() is numba_kernels


def test_folding_sums_the_streams_by_the_bits_of_their_number():
    for bits, words in ((0, 2), (1, 3), (2, 1), (3, 513), (4, 2), (8, 5)):
        streams = random_ring(bits, words << bits).reshape(1 << bits, words)
        number = np.arange(1 << bits)
        before = random_ring(bits + 20, words * bits).reshape(bits, words)
        columns = before.copy()
        total = np.empty(words, np.uint64)
        kernels.fold(streams, columns, total)
        for bit in range(bits):
            wanted = np.bitwise_xor.reduce(streams[(number >> bit & 1) == 1], axis=0)
            np.testing.assert_array_equal(columns[bit] ^ before[bit], wanted)
        np.testing.assert_array_equal(total, np.bitwise_xor.reduce(streams, axis=0))


@pytest.mark.parametrize("shape", [(3, 4), (4,), (0, 4)])
def test_streams_that_are_no_power_of_two_are_refused(shape: tuple[int, ...]):
    with pytest.raises(ProtocolViolation, match="power of two"):
        kernels.fold(np.zeros(shape, np.uint64), np.zeros((2, 4), np.uint64), np.zeros(4, np.uint64))


@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (2, 3)])
def test_columns_that_do_not_fit_their_streams_are_refused(shape: tuple[int, ...]):
    with pytest.raises(ProtocolViolation, match="are folded into 2 columns"):
        kernels.fold(np.zeros((4, 4), np.uint64), np.zeros(shape, np.uint64), np.zeros(4, np.uint64))
    with pytest.raises(ProtocolViolation, match="are folded into 2 columns"):
        kernels.fold(np.zeros((4, 4), np.uint64), np.zeros((2, 4), np.uint64), np.zeros(3, np.uint64))


def test_rows_that_do_not_fit_are_refused():
    four, three, two = (np.zeros(n, np.uint64) for n in (4, 3, 2))
    for step in (
        lambda: kernels.shift_rows(four, two, two),
        lambda: kernels.shift_rows(four, three, four),
        lambda: kernels.tweak(three, 0, three.copy()),
        lambda: kernels.tweak(four, 0, two),
        lambda: kernels.first_words(four, two, two),
        lambda: kernels.first_words(four, four.copy(), four.copy()),
    ):
        with pytest.raises(ProtocolViolation, match="two words each"):
            step()


def correlated(own: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, bytes]:
    """A's columns t and B's columns q for the choice bits of ``own``, and Delta."""
    rng = np.random.default_rng(seed)
    choices = np.concatenate([own.astype("<u8").view(np.uint8), rng.integers(0, 256, 24, dtype=np.uint8)])
    t = rng.integers(0, 256, (128, choices.size), dtype=np.uint8)
    delta = rng.bytes(16)
    return t, t ^ np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")[:, None] * choices, delta


def test_gilboa_terms_sum_to_products():
    a = np.concatenate([EDGES, random_ring(12, 2)])
    t, q, delta = correlated(a, 11)
    row_hash = RowHash(bytes(32))
    b, message, terms_b = gilboa.sender_terms(row_hash, q, delta, a.size, first_row=640)
    assert len(message) == 252 * a.size
    terms_a = gilboa.receiver_terms(row_hash, t, a, message, first_row=640)
    expected = [x * y % 2**64 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert (terms_a + terms_b).tolist() == expected
    other = gilboa.receiver_terms(row_hash, t, a, message, first_row=641)
    assert (other + terms_b).tolist() != expected
    with pytest.raises(MalformedMessage, match="bytes, found"):
        gilboa.receiver_terms(row_hash, t, a, message + b"\0", first_row=640)


def test_b_is_the_difference_of_the_pads_of_its_first_row():
    a = random_ring(1, 5)
    t, q, delta = correlated(a, 2)
    row_hash = RowHash(bytes(32))
    b, _, _ = gilboa.sender_terms(row_hash, q, delta, a.size, first_row=0)
    rows = transpose_bits(t)[: 64 * a.size]
    known = row_hash(rows, 0)[::64]
    other = row_hash(rows, 0, delta)[::64]
    signs = np.where(a & np.uint64(1), -np.ones(5, np.int64), np.ones(5, np.int64)).astype(np.uint64)
    np.testing.assert_array_equal(b, signs * (other - known))


EXTENSIONS = pytest.mark.parametrize("digits", [128, 127, 64, 32, 21, 16])


@EXTENSIONS
def test_an_extension_reads_128_bits_in_digits_of_nearly_equal_length(digits: int):
    extension = Extension(digits)
    sizes = extension.digit_bits
    assert (len(sizes), sum(sizes), max(sizes) - min(sizes) <= 1) == (digits, 128, True)
    assert list(sizes) == sorted(sizes, reverse=True)
    columns, leaves = zip(*extension.places(), strict=True)
    assert (columns[-1].stop, leaves[-1].stop) == (128, extension.leaves)
    assert [leaf.stop - leaf.start for leaf in leaves] == [1 << size for size in sizes]


@pytest.mark.parametrize("digits", [-1, 0, 15, 129])
def test_other_numbers_of_digits_are_refused(digits: int):
    with pytest.raises(ConfigurationError, match="16 to 128"):
        Extension(digits)


@pytest.mark.parametrize(
    ("digits", "length"),
    [(128, 40), (127, 40), (64, 40), (32, 40), (21, 40), (16, 40), (128, (1 << 16) + 8), (16, (1 << 16) + 8)],
)
def test_columns_follow_the_bits_of_delta(digits: int, length: int):
    rng = np.random.default_rng(3)
    extension, delta = Extension(digits), rng.bytes(16)
    keys = rng.integers(0, 256, (extension.leaves, 32), dtype=np.uint8)
    bits = np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")
    x, t, u = receiver_columns(extension, keys, length, 48)
    q = sender_columns(extension, punctured(extension, keys, bits), delta, u, 48)
    assert u.shape == (digits - 1, length)
    np.testing.assert_array_equal(q, t ^ bits[:, None] * x)
    elsewhere, columns, _ = receiver_columns(extension, keys, length, 48 + length + -length % 16)
    assert (columns != t).any(axis=1).all()
    assert (elsewhere != x).any()


def punctured(extension: Extension, keys: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """All keys but number Delta's digit, key y in row y xor Delta's digit."""
    found = np.zeros_like(keys)
    for column, leaf in extension.places():
        digit = sum(int(bit) << i for i, bit in enumerate(bits[column]))
        for y in range(leaf.stop - leaf.start):
            if y != digit:
                found[leaf.start + (y ^ digit)] = keys[leaf.start + y]
    return found


def test_pieces_of_a_stream_differ():
    extension = Extension(128)
    keys = np.random.default_rng(1).integers(0, 256, (256, 32), dtype=np.uint8)
    _, t, _ = receiver_columns(extension, keys, 3 << 16, 0)
    first, second, third = t.reshape(128, 3, -1).transpose(1, 0, 2)
    assert not (first == second).all(axis=1).any()
    assert not (second == third).all(axis=1).any()


@pytest.mark.parametrize("elements", [1, 2, 3, 2088])
def test_streams_of_successive_batches_never_overlap(elements: int):
    position = next_position(32, elements)
    assert position % 16 == 0
    assert 0 <= position - (32 + column_bytes(elements)) < 16
    assert row_count(elements) == 64 * elements + 192
