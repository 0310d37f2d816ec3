"""The check values alone, without ciphertexts: what they are, what they show, how seldom chance makes them right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.ckks.ciphertext import CkksParameters
from protocol.ckks.scheme import Scheme, SecretKey
from protocol.ckks.update import SiteChecks, SumChecks
from protocol.errors import SumForged
from tests.unit.ckks.conftest import SEED, STUDY

PARAMETERS = CkksParameters()
ROUND, SITES = "a0" * 32, ("user", "c1", "c2", "c3")


def piece(number: int, size: int = 1020) -> np.ndarray:
    values = np.random.default_rng(number).normal(size=size)
    return values / np.linalg.norm(values)


def summed(key: SecretKey, number: int = 0, size: int = 1020, sites: tuple[str, ...] = SITES) -> np.ndarray:
    """All slots of one ciphertext of the honest sum, without noise."""
    slots = [SiteChecks(key, ROUND, site).filled(number, piece(place, size)) for place, site in enumerate(sites)]
    return np.sum(slots, axis=0)


@pytest.mark.parametrize("size", [1, 700, 1020])
@pytest.mark.parametrize("number", [0, 127, 128, 5000])
def test_the_honest_sum_passes_at_every_place(key: SecretKey, number: int, size: int) -> None:
    values = SumChecks(key, ROUND, SITES).require(number, summed(key, number, size))
    assert values.shape == (1020,)
    assert np.allclose(values[:size], sum(piece(place, size) for place in range(4)))
    assert not values[size:].any()


def test_places_may_be_asked_in_any_order(key: SecretKey) -> None:
    checks = SumChecks(key, ROUND, SITES)
    for number in (0, 1, 127, 128, 129, 3, 0):
        checks.require(number, summed(key, number))


def test_what_fails_is_overwritten(key: SecretKey) -> None:
    slots = summed(key)
    slots[-1] += 1e-5
    with pytest.raises(SumForged, match=r"ciphertext 0 of the sum is not that of the 4 released sites.*server A"):
        SumChecks(key, ROUND, SITES).require(0, slots)
    assert not slots.any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_fails(key: SecretKey, wrong: float) -> None:
    slots = summed(key)
    slots[3] = wrong
    with pytest.raises(SumForged):
        SumChecks(key, ROUND, SITES).require(0, slots)


def test_check_values_are_no_longer_than_the_parameters_allow_for(key: SecretKey) -> None:
    """The worst piece points along K; with the weight its length is at most sqrt(2)."""
    for place in range(20):
        worst = math.sqrt(2) * piece(place)
        slots = SiteChecks(key, ROUND, "c1").filled(place, worst)
        assert np.abs(slots[1020:]).sum() <= 4 * (math.sqrt(2) + 1)


def test_every_round_site_place_key_and_slot_has_its_own(key: SecretKey, scheme: Scheme) -> None:
    nothing = np.zeros(1020)
    others = [
        SiteChecks(key, ROUND, "c1").filled(0, nothing),
        SiteChecks(key, ROUND, "c1").filled(1, nothing),
        SiteChecks(key, ROUND, "c2").filled(0, nothing),
        SiteChecks(key, "a1" * 32, "c1").filled(0, nothing),
        SiteChecks(scheme.secret_key(SEED, "5e" * 32), ROUND, "c1").filled(0, nothing),
        SiteChecks(scheme.secret_key(bytes(32), STUDY), ROUND, "c1").filled(0, nothing),
    ]
    values = np.concatenate([slots[1020:] for slots in others])
    assert len(set(values.tolist())) == values.size == 24
    assert np.all(np.abs(values) <= 1)


def test_the_values_are_spread_evenly(key: SecretKey) -> None:
    """2,000 in ten bins: chi squared with 9 degrees has mean 9 and deviation 4.2."""
    nothing = np.zeros(1)
    own = SiteChecks(key, ROUND, "c1")
    values = np.concatenate([own.filled(number, nothing)[1020:] for number in range(500)])
    counts = np.histogram(values, bins=10, range=(-1, 1))[0]
    assert np.sum((counts - 200) ** 2 / 200) < 9 + 8 * 4.2


def test_chance_makes_a_multiple_right_as_seldom_as_stated(key: SecretKey) -> None:
    """n times one site's instead of the sum: a slot is within t of right with probability at most t.

    Counted at a tolerance of 0.05 in place of 1e-7 or so, 2,000 slots: at most 100 expected, 5 deviations of 10.
    """
    nothing, sites = np.zeros(1), [SiteChecks(key, ROUND, site) for site in SITES]
    right = 0
    for number in range(500):
        values = np.array([site.filled(number, nothing)[1020:] for site in sites])
        right += int(np.sum(np.abs(len(sites) * values[1] - values.sum(axis=0)) <= 0.05))
    assert 0 < right < 150
    tolerance = SumChecks(key, ROUND, [str(site) for site in range(100)]).tolerance
    assert tolerance**4 < 2.0**-89
