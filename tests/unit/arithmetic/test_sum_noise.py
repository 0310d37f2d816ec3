"""Noise that each server adds to a sum: how long, how far it reaches, and that what it hides is no longer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from client_agent.site.budget.accounting import Steps, epsilon_of
from protocol.arithmetic.discrete_gaussian import NoiseStream, discrete_gaussian
from protocol.arithmetic.sum_noise import SumNoise
from protocol.errors import ProtocolViolation
from protocol.parameters import StudyParameters
from protocol.protection.shares import encode_update, no_longer

SEED = bytes(range(32))
PARAMETERS = StudyParameters(dimension=28, clip_norm=1.0, encoded_norm_log2=16, least_contributors=3)


def noise(multiplier: float = 1.5) -> SumNoise:
    return SumNoise.of(PARAMETERS, multiplier)


def test_one_servers_deviation_is_the_multiplier_of_the_longest_update():
    found = noise()
    assert found.sensitivity == 2**16 + 5 + 2
    assert found.deviation == math.ceil(1.5 * found.sensitivity)
    assert found.square == pytest.approx(28 * 1.5**2, rel=1e-3)


def test_draws_are_the_same_in_whatever_pieces_they_are_taken():
    stream = NoiseStream(99_000, SEED)
    pieces = np.concatenate([stream.take(count) for count in (1, 0, 4_000, 3, 996)])
    assert np.array_equal(pieces, discrete_gaussian(5_000, 99_000, SEED))


def test_both_servers_noise_stays_within_what_a_site_allows():
    found, deviations = noise(), []
    for number in range(40):
        both = sum(discrete_gaussian(28, found.deviation, bytes([number, side]) * 16) for side in (0, 1))
        assert int(np.max(np.abs(both))) < found.most_coordinate
        assert float(np.linalg.norm(both)) < found.most_length
        deviations.append(float(np.std(both)))
    assert np.mean(deviations) == pytest.approx(math.sqrt(2) * found.deviation, rel=0.1)


def test_bounds_widen_by_both_servers_noise_and_no_coordinate_is_longer_than_the_sum():
    found = noise()
    assert found.widened(10, 4.5) == (5 + found.most_coordinate, 4.5 + found.most_length)
    assert found.widened(3, 4.5)[0] == 3 + found.most_coordinate


def test_a_sum_that_does_not_fit_into_what_sites_open_is_refused():
    noise().require_room(100)
    with pytest.raises(ValueError, match="the sum of 100000 sites with noise"):
        noise().require_room(100_000)


def test_an_update_longer_than_the_noise_is_for_leaves_nothing():
    def encoded(length: float) -> list[bytes]:
        update = np.full(28, length / math.sqrt(28))
        return list(encode_update(update, [("all", 28)], 1.0, PARAMETERS, SEED).pieces)

    for length in (0.5, 1.0, 1e30):
        assert list(no_longer(iter(encoded(length)), noise().sensitivity)) == encoded(length)
    wide = np.array([2**62, 0], np.int64).tobytes()
    long = np.full(2, 60_000, np.int64).tobytes()
    for pieces in ([wide], [long], [np.full(1, 60_000, np.int64).tobytes()] * 2):
        with pytest.raises(ProtocolViolation, match="longer than the study's noise"):
            list(no_longer(iter(pieces), noise().sensitivity))


def test_one_server_alone_makes_what_the_accountant_counts():
    """Renyi divergence of order 8 of one server's draws, whole numbers, against its value for the longest shift."""
    found, order = noise(2.0), 8
    scale = found.deviation / found.sensitivity
    assert scale >= 2.0
    x = np.arange(-60, 61)
    sigma, shift = 6, 3
    weights = np.exp(-(x**2) / (2 * sigma**2))
    moved = np.exp(-((x - shift) ** 2) / (2 * sigma**2))
    base, other = weights / weights.sum(), moved / moved.sum()
    divergence = math.log(float(np.sum(other**order * base ** (1 - order)))) / (order - 1)
    assert divergence == pytest.approx(order * shift**2 / (2 * sigma**2), rel=1e-6)
    assert epsilon_of([Steps(1.0, 2.0, 1)], 1e-5) == pytest.approx(2.2, abs=0.3)
