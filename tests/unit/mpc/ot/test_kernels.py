"""The row hash, the packed messages and Gilboa's sums, against Python integers; compiled and numpy twins agree."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc.ot import extension, gilboa
from protocol.mpc.ot.hashing import RowHash
from protocol.mpc.ot.kernels import NUMBA, NUMPY, OtKernels

BOTH = pytest.mark.parametrize("kernels", [NUMBA, NUMPY], ids=["numba", "numpy"])
EDGES = np.array([0, 1, 2**63, 2**64 - 1, 2**32, 2**63 - 1], dtype=np.uint64)


def random_ring(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


def pack(values: list[int]) -> bytes:
    """64 - t bits of value t, one after the other, lowest first."""
    whole, at = 0, 0
    for t, value in enumerate(values):
        whole |= (value & ((1 << (64 - t)) - 1)) << at
        at += 64 - t
    assert at == 8 * 260
    return whole.to_bytes(260, "little")


@pytest.mark.parametrize("rows", [1, 5, (1 << 14) + 3])
def test_row_hash_is_the_formula(rows: int):
    key, first = bytes(range(32)), 2**40 + 7
    data = np.random.default_rng(rows).integers(0, 256, (rows, 16), dtype=np.uint8)
    offset = bytes(range(100, 116))
    aes = Cipher(algorithms.AES(key[:16]), modes.ECB())

    def pi(block: int) -> int:
        return int.from_bytes(aes.encryptor().update(block.to_bytes(16, "little")), "little")

    found = RowHash(key)(data, first, offset)
    for i in {0, rows // 2, rows - 1}:
        once = pi(int.from_bytes(data[i].tobytes(), "little") ^ int.from_bytes(offset, "little"))
        assert int(found[i]) == (pi(once ^ (first + i)) ^ once) % 2**64
    assert len(np.unique(RowHash(key)(np.zeros((rows, 16), np.uint8), 0))) == rows


@BOTH
def test_sender_products_match_integers(kernels: OtKernels):
    own = np.concatenate([EDGES, random_ring(1, 3)])
    zero, one = random_ring(2, 64 * own.size), random_ring(3, 64 * own.size)
    packed, terms = kernels.sender_products(zero, one, own)
    for j, b in enumerate(own.tolist()):
        h0, h1 = zero[64 * j : 64 * j + 64].tolist(), one[64 * j : 64 * j + 64].tolist()
        assert packed[j].astype("<u4").tobytes() == pack([x + b - y for x, y in zip(h0, h1, strict=True)])
        assert int(terms[j]) == -sum(x << t for t, x in enumerate(h0)) % 2**64


@BOTH
def test_receiver_products_match_integers(kernels: OtKernels):
    own = np.concatenate([EDGES, random_ring(4, 3)])
    pads, messages = random_ring(5, 64 * own.size), random_ring(6, 64 * own.size)
    rows = [pack(messages[64 * j : 64 * j + 64].tolist()) for j in range(own.size)]
    packed = np.frombuffer(b"".join(rows), "<u4").reshape(-1, 65).astype(np.uint32)
    terms = kernels.receiver_products(pads, packed, own)
    for j, a in enumerate(own.tolist()):
        place = range(64 * j, 64 * j + 64)
        total = sum((int(pads[i]) + (a >> t & 1) * int(messages[i])) << t for t, i in enumerate(place))
        assert int(terms[j]) == total % 2**64


def test_twins_agree_beyond_one_chunk():
    n = 1030
    own, zero, one = random_ring(7, n), random_ring(8, 64 * n), random_ring(9, 64 * n)
    packed, terms = NUMBA.sender_products(zero, one, own)
    twin_packed, twin_terms = NUMPY.sender_products(zero, one, own)
    np.testing.assert_array_equal(packed, twin_packed)
    np.testing.assert_array_equal(terms, twin_terms)
    np.testing.assert_array_equal(
        NUMBA.receiver_products(zero, packed, own), NUMPY.receiver_products(zero, packed, own)
    )


@BOTH
def test_shapes_that_do_not_fit_are_refused(kernels: OtKernels):
    own, pads, packed = random_ring(1, 2), random_ring(2, 128), np.zeros((2, 65), np.uint32)
    for zero, one, mine in ((pads[:-1], pads, own), (pads, pads[:-1], own), (pads, pads, own[:1])):
        with pytest.raises(ProtocolViolation, match="64 pads"):
            kernels.sender_products(zero, one, mine)
    for some, words, mine in ((pads[:-1], packed, own), (pads, packed[:, :-1], own), (pads, packed, own[:, None])):
        with pytest.raises(ProtocolViolation, match="64 pads"):
            kernels.receiver_products(some, words, mine)


@BOTH
def test_gilboa_terms_sum_to_products(kernels: OtKernels):
    rng = np.random.default_rng(11)
    a, b = np.concatenate([EDGES, random_ring(12, 2)]), np.concatenate([EDGES[::-1], random_ring(13, 2)])
    n_bytes = 8 * a.size + 24
    choices = np.concatenate([a.astype("<u8").view(np.uint8), rng.integers(0, 256, 24, dtype=np.uint8)])
    t = rng.integers(0, 256, (128, n_bytes), dtype=np.uint8)
    delta = rng.bytes(16)
    q = t ^ np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")[:, None] * choices
    row_hash = RowHash(bytes(32))
    message, terms_b = gilboa.sender_terms(row_hash, q, delta, b, first_row=640, kernels=kernels)
    assert len(message) == 260 * a.size
    terms_a = gilboa.receiver_terms(row_hash, t, a, message, first_row=640, kernels=kernels)
    expected = [x * y % 2**64 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert (terms_a + terms_b).tolist() == expected
    other = gilboa.receiver_terms(row_hash, t, a, message, first_row=641, kernels=kernels)
    assert (other + terms_b).tolist() != expected
    with pytest.raises(MalformedMessage, match="bytes, found"):
        gilboa.receiver_terms(row_hash, t, a, message + b"\0", first_row=640, kernels=kernels)


def test_columns_follow_the_choice_of_delta():
    rng = np.random.default_rng(3)
    keys0, keys1 = rng.integers(0, 256, (2, 128, 32), dtype=np.uint8)
    delta = rng.bytes(16)
    bits = np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")[:, None]
    choices = rng.integers(0, 256, 40, dtype=np.uint8)
    t, u = extension.receiver_columns(keys0, keys1, choices, 48)
    q = extension.sender_columns(np.where(bits, keys1, keys0), delta, u, 48)
    np.testing.assert_array_equal(q, t ^ bits * choices)
    elsewhere, _ = extension.receiver_columns(keys0, keys1, choices, 48 + 48)
    assert (elsewhere != t).any(axis=1).all()


@pytest.mark.parametrize("elements", [1, 2, 3, 2088])
def test_streams_of_successive_batches_never_overlap(elements: int):
    position = extension.next_position(32, elements)
    assert position % 16 == 0
    assert 0 <= position - (32 + extension.column_bytes(elements)) < 16
    assert extension.row_count(elements) == 64 * elements + 192
