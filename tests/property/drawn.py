"""Strategies of the property tests: ring vectors rich in edge values, seeds, studies."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from protocol.arithmetic.ring import Ring
from protocol.parameters import StudyParameters

MODULUS = 2**64
EDGES = [0, 1, 2, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**63 + 1, MODULUS - 2**32, MODULUS - 1]

EXACTLY_AGAIN = settings(derandomize=True, deadline=None, database=None, max_examples=60)
"""The same examples every time, whatever the machine's speed."""

elements = st.one_of(st.sampled_from(EDGES), st.integers(0, MODULUS - 1))
seeds = st.binary(min_size=32, max_size=32)


def ring_vectors(min_size: int = 1, max_size: int = 40) -> st.SearchStrategy[list[int]]:
    return st.lists(elements, min_size=min_size, max_size=max_size)


def ring(x: list[int]) -> Ring:
    return np.array([v % MODULUS for v in x], dtype=np.uint64)


def study(dimension: int, fraction_bits: int = 20, encoded_norm_log2: int = 21, grid: int = 32) -> StudyParameters:
    return StudyParameters(
        dimension=dimension,
        clip_norm=2.0 ** (encoded_norm_log2 - fraction_bits),
        encoded_norm_log2=encoded_norm_log2,
        weight_grid=grid,
        least_contributors=3,
    )
