"""The weights that sites give themselves, by hand and by the formula in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.mpc.sketch import project, projections, sketch_vector
from protocol.parameters import StudyParameters
from protocol.rules.fedavg import class_weight, counts_vector, sample_weight

CHALLENGE = bytes(range(32))
COUNTS = st.lists(st.integers(0, 500), min_size=2, max_size=6).filter(any)


@pytest.mark.parametrize(
    ("count", "largest", "expected"),
    [(100, 100, 1.0), (25, 100, 0.25), (300, 100, 1.0), (1, 100, 0.125), (13, 100, 0.13)],
)
def test_a_sample_weight_is_the_share_of_the_largest_count_within_bounds(
    count: int, largest: int, expected: float
) -> None:
    assert sample_weight(count, largest, 8) == expected


def test_no_samples_or_no_largest_count() -> None:
    with pytest.raises(UnusableUpdate, match="0 training samples"):
        sample_weight(0, 10, 4)
    with pytest.raises(ConfigurationError, match="largest_count"):
        sample_weight(10, 0, 4)


@pytest.mark.parametrize(
    ("counts", "totals", "expected"),
    [
        # P = 1/2 each: an even site has 1 / (1/2 * 1/4 * 2) = 4 = sum 1 / P, a site with one class 1 / (1/2) = 2
        ((5, 5), (50, 50), 1.0),
        ((9, 0), (50, 50), 0.5),
        # P = 4/5, 1/5: largest 5/4 + 5 = 25/4, at p = 1/5, 4/5. A site like the whole: 1 / (64/125 + 1/125) = 25/13.
        ((1, 4), (80, 20), 1.0),
        ((8, 2), (80, 20), float(Fraction(25, 13) / Fraction(25, 4))),
        ((3, 0), (80, 20), 0.2),
        ((0, 3), (80, 20), 0.8),
        # ten classes alike: a site with k of them has weight k / 10
        ((7, 7, 7, 0, 0, 0, 0, 0, 0, 0), (100,) * 10, 0.3),
    ],
)
def test_a_class_weight_by_hand(counts: tuple[int, ...], totals: tuple[int, ...], expected: float) -> None:
    assert class_weight(counts, totals, 32) == expected


def test_a_weight_below_the_grid_is_the_smallest_one() -> None:
    assert class_weight((10, 0), (999, 1), 32) == 1 / 32


@given(COUNTS, st.data())
def test_class_weights_follow_the_formula(counts: list[int], data: st.DataObject) -> None:
    totals = data.draw(st.lists(st.integers(1, 5000), min_size=len(counts), max_size=len(counts)))
    weight = class_weight(counts, totals, 64)
    p = [Fraction(n, sum(counts)) for n in counts]
    P = [Fraction(n, sum(totals)) for n in totals]
    exact = 1 / sum(a * b * b for a, b in zip(P, p, strict=True)) / sum(1 / a for a in P)
    assert exact <= 1
    assert weight == max(1 / 64, float(exact))
    order = data.draw(st.permutations(range(len(counts))))
    assert class_weight([counts[i] for i in order], [totals[i] for i in order], 64) == weight
    assert class_weight([7 * n for n in counts], totals, 64) == weight


def test_a_class_without_samples_anywhere_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no site has training samples of classes \[1, 3\]"):
        class_weight((1, 0, 2, 0), (10, 0, 10, 0), 32)


@pytest.mark.parametrize("counts", [(1, 2, 3), (1, -1), (0, 0), ()])
def test_counts_of_other_classes_or_of_nothing_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(UnusableUpdate, match="2 classes"):
        class_weight(counts, (10, 10), 32)


def test_counts_are_plain_integers_in_front_of_zeros(identity: StudyParameters) -> None:
    vector = counts_vector((3, 0, 11), identity)
    assert vector.dtype == np.uint64
    assert vector.tolist() == [3, 0, 11] + [0] * (identity.dimension - 3)


@pytest.mark.parametrize("split", [1, 2, 10])
def test_the_largest_counts_pass_the_range_check(parameters: StudyParameters, split: int) -> None:
    # in range for certain is |y| < 2^(h-1), docs/protocol.md 6
    largest = 4 * parameters.encoded_norm - 1
    counts = [largest // split] * split
    rows = projections(CHALLENGE, parameters)
    projected = project(sketch_vector(CHALLENGE, counts_vector(counts, parameters), parameters), rows)
    assert np.abs(projected.view(np.int64)).max() < 2 ** (parameters.range_bits - 1)


@pytest.mark.parametrize("classes", [1, 10])
def test_counts_that_do_not_fit_are_refused(identity: StudyParameters, classes: int) -> None:
    with pytest.raises(UnusableUpdate, match=f"1 to {2**23 - 1} samples"):
        counts_vector([2**23] + [0] * (classes - 1), identity)
    with pytest.raises(UnusableUpdate, match="samples, found"):
        counts_vector([0] * classes, identity)
    with pytest.raises(UnusableUpdate, match="samples, found"):
        counts_vector([-1] + [2] * classes, identity)
    with pytest.raises(UnusableUpdate, match="102 class counts do not fit a vector of 101"):
        counts_vector([1] * 102, identity)
