"""The whole secure round in one process against sums and distances computed directly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.correlations import correlations_from
from harness.parties import SiteEntry, make_parties
from harness.secure_round import SecureRound, SiteInput
from protocol.parameters import StudyParameters
from protocol.wire.messages import Announcement

SEED = bytes(range(32))
NAMES = ("user", "north", "south", "east", "west")
ROSTER = make_parties("unit", "user", [SiteEntry(name, 40) for name in NAMES], SEED).roster.message
NUMERATORS = {"user": 16, "north": 16, "south": 12, "east": 7, "west": 1}


def parameters(dimension: int) -> StudyParameters:
    return StudyParameters(dimension=dimension, clip_norm=1.0, weight_grid=16, least_contributors=3)


def secure_round(dimension: int, *, measured: bool, source: str = "dealer") -> SecureRound:
    announcement = Announcement(
        study_digest="0" * 64,
        round=1,
        listed=NAMES[1:],
        least_contributors=3,
        measured=measured,
        model_version=0,
        model_digest="1" * 64,
        weight_list_digest="2" * 64,
        closes_at_s=1,
    )
    draw = correlations_from(source, SEED)
    return SecureRound(ROSTER, parameters(dimension), announcement, SEED, draw)


def inputs(dimension: int, sites: tuple[str, ...] = NAMES) -> tuple[SiteInput, ...]:
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(len(NAMES), dimension))
    vectors /= 2 * np.linalg.norm(vectors, axis=1, keepdims=True)
    return tuple(SiteInput(n, v, NUMERATORS[n]) for n, v in zip(NAMES, vectors, strict=True) if n in sites)


@pytest.mark.parametrize(("dimension", "source"), [(20, "ot"), (20, "dealer"), (3000, "dealer")])
def test_average_is_the_weighted_average(dimension: int, source: str) -> None:
    given = inputs(dimension)
    result = secure_round(dimension, measured=True, source=source).run(given)
    assert result.skipped_because is None
    assert result.failed_check == ()
    assert result.took_part == NAMES[1:]
    assert result.average is not None
    assert result.average.dtype == np.float32
    weights = sum(g.numerator for g in given)
    expected = sum(g.update * g.numerator for g in given) / weights
    # Five sites, each rounded by less than 2^-f a coordinate, over W = weights/16; then float32: half an ulp below 1.
    bound = 5 / parameters(dimension).scale / (weights / 16) + 2.0**-25
    assert np.max(np.abs(result.average - expected)) < bound


@pytest.mark.parametrize("source", ["ot", "dealer"])
def test_distances_are_exact_for_small_models(source: str) -> None:
    given = inputs(20)
    result = secure_round(20, measured=True, source=source).run(given)
    assert [site for site, _ in result.distances] == list(NAMES[1:])
    for one, (site, found) in zip(given[1:], result.distances, strict=True):
        assert one.site == site
        expected = float(np.linalg.norm(one.update - given[0].update))
        # Rounding moves S x_i by under 2^-f and the query by under 2^-f w + 2^-(f+1) a coordinate, over w at the end.
        w = one.numerator / 16
        bound = math.sqrt(20) * (1.5 / w + 1) / parameters(20).scale
        assert abs(found - expected) < bound


def test_sketched_distances_are_close() -> None:
    given = inputs(3000)
    result = secure_round(3000, measured=True).run(given)
    for one, (_, found) in zip(given[1:], result.distances, strict=True):
        expected = float(np.linalg.norm(one.update - given[0].update))
        # Standard deviation sqrt(1/2k) = 1.6 % of a distance at k = 2048; six of them, one in 5e8.
        assert abs(found / expected - 1) < 6 * math.sqrt(1 / (2 * 2048))


def test_unmeasured_round_opens_no_distance() -> None:
    result = secure_round(20, measured=False).run(inputs(20))
    assert result.distances == ()
    assert result.average is not None


def test_failed_range_check_is_left_out_of_the_sum() -> None:
    given = list(inputs(20))
    given[2] = SiteInput("south", given[2].update * 2.0**20, 12)
    result = secure_round(20, measured=True).run(tuple(given))
    assert result.failed_check == ("south",)
    assert result.took_part == ("north", "east", "west")
    kept = [g for g in given if g.site != "south"]
    weights = sum(g.numerator for g in kept)
    expected = sum(g.update * g.numerator for g in kept) / weights
    assert result.average is not None
    # As above with four sites.
    assert np.max(np.abs(result.average - expected)) < 4 / parameters(20).scale / (weights / 16) + 2.0**-25


def test_too_few_in_range_skips_the_round() -> None:
    given = [
        SiteInput(g.site, g.update * 2.0**20, g.numerator) if g.site in ("south", "east") else g for g in inputs(20)
    ]
    result = secure_round(20, measured=True).run(tuple(given))
    assert result.average is None
    assert result.failed_check == ("south", "east")
    assert result.skipped_because == "too few passed the range check"


def test_missing_contributions_skip_the_round() -> None:
    assert "requester's own" in (secure_round(20, measured=True).run(inputs(20, NAMES[1:])).skipped_because or "")
    assert "2 contributors" in (secure_round(20, measured=True).run(inputs(20, NAMES[:3])).skipped_because or "")


def test_same_seed_same_bits() -> None:
    first, again = (secure_round(20, measured=True, source="ot").run(inputs(20)) for _ in range(2))
    assert first.average is not None
    assert again.average is not None
    assert first.average.tobytes() == again.average.tobytes()
    assert first.distances == again.distances
