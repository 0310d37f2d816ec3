"""What the CKKS parameters allow."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from protocol.ckks.ciphertext import LARGEST_MODULUS_BITS, CkksParameters


def test_the_default_is_inside_the_standard_with_room_to_spare() -> None:
    parameters = CkksParameters()
    assert parameters.modulus.bit_length() == 40
    assert parameters.modulus.bit_length() <= LARGEST_MODULUS_BITS[parameters.ring_degree] == 54
    assert (parameters.slots, parameters.coefficient_bytes, parameters.scale) == (1024, 5, 2.0**36)


def test_a_hundred_clipped_updates_and_their_check_values_fit_nearly_twice_over() -> None:
    parameters = CkksParameters()
    assert parameters.most_sites == 100
    assert (parameters.value_slots, parameters.check_divisor) == (1020, 32.0)
    assert parameters.clipped_magnitudes == math.sqrt(1020) + 1 + 4 * (math.sqrt(2) + 1)
    assert parameters.largest_magnitudes > 1.9 * parameters.clipped_magnitudes


@pytest.mark.parametrize(
    ("sites", "dimension", "mean_weight"),
    [(3, 20_000_000, 0.45), (10, 20_000_000, 0.25), (10, 1_000_000, 0.06), (100, 20_000_000, 0.08)],
)
def test_the_error_of_the_average_stays_below_a_hundred_thousandth_of_the_clip_norm(
    sites: int, dimension: int, mean_weight: float
) -> None:
    """The whole vector's L2 error: the deviation of one value times sqrt(D n), over the sum of the weights.

    For so many values the norm is within a percent of its expectation; a tenth is left for that.
    """
    error = CkksParameters().value_deviation * math.sqrt(dimension * sites) / (mean_weight * sites)
    assert 1.1 * error < 1e-5


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ring_degree": 2000}, "ring_degree is one of"),
        ({"ring_degree": 1024}, "found|27 bits keeps"),
        ({"modulus": (1 << 54) + 4097}, "at most 54 bits"),
        ({"modulus": 1}, "at most 54 bits"),
        ({"modulus": 0xFF_FFFF_7003}, "must be 1 modulo 4096"),
        ({"scale_bits": 38}, "cannot hold the sum of 100"),
        ({"most_sites": 1000}, "cannot hold the sum of 1000"),
    ],
)
def test_what_is_insecure_or_too_small_is_refused(changes: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        CkksParameters(**changes)
