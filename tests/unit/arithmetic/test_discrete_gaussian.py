"""Noise in whole numbers: the fast draws against slow fractions, and their law against the exact one."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from protocol.arithmetic.discrete_gaussian import LARGEST_SIGMA, discrete_gaussian
from protocol.arithmetic.ring import Usage, derive, expand
from protocol.errors import ProtocolViolation
from tests.reference.discrete_gaussian import Words, draw

SEED = bytes(range(32))
FALSE_ALARM = 1e-6


@pytest.mark.parametrize("sigma", [1, 2, 3, 10, 2**24, LARGEST_SIGMA - 1, LARGEST_SIGMA])
def test_the_fast_draws_are_those_of_slow_fractions(sigma):
    words = Words(expand(SEED, Usage.NOISE, 60_000).tolist())

    assert discrete_gaussian(1000, sigma, SEED).tolist() == [draw(words, sigma) for _ in range(1000)]


def test_long_vectors_go_on_where_a_piece_of_the_stream_ends():
    long = discrete_gaussian(40_000, 5, SEED)

    assert np.array_equal(long[:300], discrete_gaussian(300, 5, SEED))
    assert len(set(long[:-1000:1000].tolist())) > 5


@pytest.mark.parametrize("sigma", [1, 3, 40])
def test_every_value_comes_as_often_as_the_law_says(sigma):
    count = 200_000
    found = Counter(discrete_gaussian(count, sigma, derive(SEED, "law")).tolist())
    values = range(-12 * sigma, 12 * sigma + 1)
    weights = [math.exp(-(x**2) / (2 * sigma**2)) for x in values]
    expected = {x: count * weight / sum(weights) for x, weight in zip(values, weights, strict=True)}
    often = [x for x in values if expected[x] >= 5]
    seen = [found[x] for x in often] + [count - sum(found[x] for x in often)]
    law = [expected[x] for x in often] + [count - sum(expected[x] for x in often)]

    assert stats.chisquare(seen, law).pvalue > FALSE_ALARM


def test_wide_noise_has_the_moments_of_a_gaussian_and_coordinates_are_independent():
    sigma, count = 2**24, 200_000
    drawn = discrete_gaussian(count, sigma, derive(SEED, "moments")) / sigma

    assert abs(drawn.mean()) < 5 / math.sqrt(count)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / count)
    assert stats.kstest(drawn, "norm").pvalue > FALSE_ALARM
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / math.sqrt(count)


def test_other_seeds_draw_other_noise():
    assert not np.array_equal(discrete_gaussian(50, 100, SEED), discrete_gaussian(50, 100, derive(SEED, "other")))


@pytest.mark.parametrize("sigma", [0, -1, LARGEST_SIGMA + 1])
def test_a_width_that_does_not_fit_is_refused(sigma):
    with pytest.raises(ProtocolViolation, match="sigma is a whole number"):
        discrete_gaussian(1, sigma, SEED)


def test_a_draw_that_leaves_64_bits_is_an_error_and_no_number(monkeypatch):
    from protocol.arithmetic import noise_kernels

    monkeypatch.setattr(noise_kernels, "fill", lambda words, sigma, out: (-1, 0))
    with pytest.raises(ProtocolViolation, match="64 bits"):
        discrete_gaussian(1, 3, SEED)


def test_the_moments_that_accounting_rests_on_are_those_of_the_continuous_gaussian():
    """For whole shifts s and orders k: E[(P_s / P)^k] under N_Z(0, sigma^2) is exp(k (k - 1) s^2 / (2 sigma^2))."""
    sigma, values = 4, range(-400, 401)
    weights = {x: math.exp(-(x**2) / (2 * sigma**2)) for x in values}
    total = math.fsum(weights.values())
    for s in (1, 3):
        for k in (2, 5):
            moment = math.fsum(w * math.exp(k * (2 * x * s - s * s) / (2 * sigma**2)) for x, w in weights.items())
            assert moment / total == pytest.approx(math.exp(k * (k - 1) * s**2 / (2 * sigma**2)), rel=1e-12)
