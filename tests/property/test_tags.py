"""Tags and the slow reference agree on random input, in whatever pieces it comes (docs/protocol.md 15)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.arithmetic.ring import Usage, expand
from protocol.tags import TagErrors, TagSums, errors_of
from tests.reference import ring as slow
from tests.reference import tags as slow_tags

from .drawn import EXACTLY_AGAIN, MODULUS, elements, ring, ring_vectors, seeds

cuts = st.lists(st.integers(0, 60), max_size=4)


def pieces(x: list[int], places: list[int]) -> list[list[int]]:
    ends = sorted({0, len(x), *(place for place in places if place < len(x))})
    return [x[a:b] for a, b in pairwise(ends)]


@given(x=ring_vectors(max_size=60), key=seeds, places=cuts)
@EXACTLY_AGAIN
def test_tags(x, key, places):
    sums = TagSums(key)
    for piece in pieces(x, places):
        sums.add(ring(piece))
    assert sums.values().tolist() == [slow_tags.tags(key, x)]


@given(x=ring_vectors(min_size=5, max_size=60), y=st.data(), key=seeds, places=cuts)
@EXACTLY_AGAIN
def test_errors_of_two_vectors_at_once(x, y, key, places):
    other = y.draw(ring_vectors(min_size=len(x), max_size=len(x)))
    errors = TagErrors(key, len(x), 2)
    for one, two in zip(pieces(x, places), pieces(other, places), strict=True):
        errors.add(ring(one), ring(two))
    assert errors.values().tolist() == [slow_tags.errors(key, x), slow_tags.errors(key, other)]


@given(x=ring_vectors(), key=seeds, share=seeds, wrong=st.tuples(elements, elements))
@EXACTLY_AGAIN
def test_shares_have_the_vectors_errors(x, key, share, wrong):
    """Both servers' errors add up to what a site put behind its vector in place of its tags."""
    tags = slow_tags.tags(key, x)
    vector = [*x, *((tag - off) % MODULUS for tag, off in zip(tags, wrong, strict=True)), 0, 0]
    other = ring(slow.split(vector, share))
    sources = [lambda a, b: expand(share, Usage.SHARE, b - a, start=a), lambda a, b: other[a:b]]
    errors = errors_of(key, len(vector), sources)
    assert (errors[0] + errors[1]).tolist() == list(wrong)


@given(x=ring_vectors(), key=seeds, place=st.integers(0, 39), by=st.integers(1, 2**34), sign=st.sampled_from((1, -1)))
@EXACTLY_AGAIN
def test_one_changed_coordinate_within_bounds_shows(x, key, place, by, sign):
    """Not a bound, which is 2^-52, but that none of these examples passes."""
    vector = [*x, *slow_tags.tags(key, x), 0, 0]
    vector[place % len(x)] += sign * by
    assert errors_of(key, len(vector), [lambda a, b: ring(vector)[a:b]])[0].any()


def test_how_often_an_error_of_a_high_power_of_two_hits_both_tags():
    """An error of 2^62 in the last coordinate hits a tag with probability 1/2, so both with 1/4, as derived."""
    hits = np.zeros(2, dtype=np.int64)
    for number in range(4000):
        key = number.to_bytes(32, "big")
        off = errors_of(key, 7, [lambda a, b: ring([0, 0, 2**62, 0, 0, 0, 0])[a:b]])[0]
        hits += (off[0] == 0, bool((off == 0).all()))
    assert abs(hits[0] / 4000 - 1 / 2) < 4 * (1 / 2 * 1 / 2 / 4000) ** 0.5
    assert abs(hits[1] / 4000 - 1 / 4) < 4 * (1 / 4 * 3 / 4 / 4000) ** 0.5
