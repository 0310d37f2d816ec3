"""What tags refuse, and vectors longer than a piece (docs/protocol.md 15)."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.kernels import NUMBA, NUMPY
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.tags.halves import mask_digest
from protocol.tags.sums import TagErrors, TagSums, errors_of

KEY = bytes(range(32))


def zeros(length: int) -> np.ndarray:
    return np.zeros(length, dtype=np.uint64)


def test_a_long_vector_in_any_pieces_and_by_either_kernel(rng):
    x = rng.integers(0, 2**64, 200_001, dtype=np.uint64)
    sums = TagSums(KEY, kernels=NUMPY)
    for start in range(0, x.size, 70_000):
        sums.add(x[start : start + 70_000])
    tags = sums.values()[0]
    whole = np.concatenate([x, tags])
    for kernels in (NUMBA, NUMPY):
        assert errors_of(KEY, whole.size, [lambda a, b: whole[a:b]] * 2, kernels).tolist() == [[0, 0], [0, 0]]


def test_a_vector_of_another_length_is_refused():
    errors = TagErrors(KEY, 5)
    errors.add(zeros(4))
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
    totals = np.array([1, 2], dtype=np.uint64)
    kernels.multiply_into(totals, np.array([1, 10, 100], dtype=np.uint64), np.array([2, 3], dtype=np.uint64))
    assert totals.tolist() == [33, 322]
    for totals_, words in ((zeros(2), zeros(4)), (zeros(3), zeros(3))):
        with pytest.raises(ProtocolViolation, match="one word more than it has elements"):
            kernels.multiply_into(totals_, words, zeros(2))
