"""What tags refuse, and vectors longer than a piece (docs/protocol.md 15)."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.kernels import NUMBA, NUMPY
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.tags import BLOCK, TagErrors, TagPair, TagSums, errors_of, mask_digest
from tests.reference import tags as slow

KEY = bytes(range(32))


def zeros(length: int) -> np.ndarray:
    return np.zeros(length, dtype=np.uint64)


def test_a_long_vector_in_any_pieces_and_by_either_kernel(rng):
    x = rng.integers(0, 2**64, 600_001, dtype=np.uint64)
    sums = TagSums(KEY, kernels=NUMPY)
    for start in range(0, x.size, 70_000):
        sums.add(x[start : start + 70_000])
    tags = sums.values()[0]
    whole = np.concatenate([x, tags, zeros(2)])
    for kernels in (NUMBA, NUMPY):
        assert errors_of(KEY, whole.size, [lambda a, b: whole[a:b]] * 2, kernels).tolist() == [[0, 0], [0, 0]]


def test_over_several_blocks_tags_are_those_of_the_reference(rng):
    x = rng.integers(0, 2**64, 2 * BLOCK + 3, dtype=np.uint64)
    for kernels in (NUMBA, NUMPY):
        sums = TagSums(KEY, kernels=kernels)
        for piece in (x[:5], x[5 : BLOCK + 1], x[BLOCK + 1 :]):
            sums.add(piece)
        assert sums.values()[0].tolist() == slow.tags(KEY, x.tolist())


def test_each_pair_is_compared_with_its_own_tags(rng):
    x = rng.integers(0, 2**64, 9, dtype=np.uint64)
    for pair in TagPair:
        sums = TagSums(KEY)
        sums.add(x)
        behind = zeros(4)
        behind[2 * pair : 2 * pair + 2] = sums.values()[0]
        for other in TagPair:
            errors = TagErrors(KEY, 13, pair=other)
            errors.add(np.concatenate([x, behind]))
            assert bool(errors.values().any()) is (other is not pair)


def test_a_vector_of_another_length_is_refused():
    errors = TagErrors(KEY, 7)
    errors.add(zeros(6))
    with pytest.raises(ProtocolViolation, match="1 elements are missing"):
        errors.values()
    with pytest.raises(ProtocolViolation, match="goes on for 2 elements behind its tags"):
        errors.add(zeros(3))


def test_pieces_of_several_vectors_belong_together():
    with pytest.raises(ProtocolViolation, match="2 vectors take 2 pieces of one length"):
        TagSums(KEY, 2).add(zeros(3))
    with pytest.raises(ProtocolViolation, match=r"\[\(3,\), \(4,\)\]"):
        TagErrors(KEY, 9, 2).add(zeros(3), zeros(4))


def test_a_mask_seed_of_another_length_is_not_committed_to():
    with pytest.raises(MalformedMessage, match="a mask's seed has 31 bytes"):
        mask_digest(bytes(31))


@pytest.mark.parametrize("kernels", [NUMBA, NUMPY], ids=lambda kernels: kernels.name)
def test_shifted_products(kernels):
    """A block of two elements; the vector begins with a block's second one."""
    words, scales = np.array([1, 10, 100], dtype=np.uint64), np.array([1, 1, 5, 7], dtype=np.uint64)
    totals = np.array([1, 2], dtype=np.uint64)
    kernels.multiply_into(totals, words, scales, np.array([2, 3, 4], dtype=np.uint64), 1)
    assert totals.tolist() == [1 + 2 * 10 + 5 * (3 + 40), 2 + 2 * 100 + 7 * (30 + 400)]
    with pytest.raises(ProtocolViolation, match="two products of a vector"):
        kernels.multiply_into(zeros(3), words, scales, zeros(2), 0)
    with pytest.raises(ProtocolViolation, match="two products of a vector"):
        kernels.multiply_into(totals, words, scales, zeros(2), 2)
    with pytest.raises(ProtocolViolation, match="take two scales a block"):
        kernels.multiply_into(totals, words, scales, zeros(4), 1)
