"""The whole secure round in one process against sums and measurements computed directly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from harness.attack.forgeries import wrap_around_entry
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.protected_sum import (
    SecureResult,
    SecureRound,
    SiteInput,
    SourceName,
    WholeNumbers,
    correlations_from,
)
from harness.engine.updates import everybody_in_range
from protocol.arithmetic.ring import Ring
from protocol.errors import AggregateOutOfBounds
from protocol.messages.control import Announcement, Purpose
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters
from protocol.release import longest_sum
from protocol.rounds.judgement import Judgement
from protocol.rules.fedavg import counts_vector
from tests.kit.present import present

SEED = bytes(range(32))
NAMES = ("user", "north", "south", "east", "west")
ROSTER = make_parties("unit", "user", [SiteEntry(name, 40) for name in NAMES], SEED).roster.message
NUMERATORS = {"user": 16, "north": 16, "south": 12, "east": 7, "west": 1}


def parameters(dimension: int) -> StudyParameters:
    return StudyParameters(dimension=dimension, clip_norm=1.0, weight_grid=16, least_contributors=3)


def announced(opens: Needs, purpose: Purpose = Purpose.UPDATE) -> Announcement:
    return Announcement(
        study_digest="0" * 64,
        round=1,
        listed=NAMES[1:],
        least_contributors=3,
        opens=opens,
        purpose=purpose,
        model_version=0,
        model_digest="1" * 64,
        weight_list_digest="2" * 64,
        closes_at_s=1,
    )


class Recording:
    """Keeps everybody in range, and what was opened."""

    def __init__(self) -> None:
        self.opened: tuple[OpenedSite, ...] = ()

    def __call__(self, sites: Sequence[OpenedSite]) -> Judgement:
        self.opened = tuple(sites)
        return everybody_in_range(announced(Needs.NOTHING), "user")(sites)


def secure_round(
    announcement: Announcement, dimension: int, source: SourceName = "dealer", spoiled: str = ""
) -> SecureRound:
    def tamper(site: str, encoded: Ring) -> Ring:
        return wrap_around_entry(encoded) if site == spoiled else encoded

    def bound(released: tuple[str, ...]) -> int:
        total = sum(NUMERATORS[site] for site in released)
        return math.ceil(longest_sum(parameters(dimension), total, len(released)))

    draw = correlations_from(source, SEED)
    return SecureRound(ROSTER, parameters(dimension), announcement, SEED, draw, bound, tamper)


def inputs(dimension: int, sites: tuple[str, ...] = NAMES, equal: bool = False) -> tuple[SiteInput, ...]:
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(len(NAMES), dimension))
    vectors /= 2 * np.linalg.norm(vectors, axis=1, keepdims=True)
    return tuple(
        SiteInput(n, v, 16 if equal else NUMERATORS[n]) for n, v in zip(NAMES, vectors, strict=True) if n in sites
    )


def measured(
    dimension: int,
    opens: Needs,
    source: SourceName = "dealer",
    probe: np.ndarray | None = None,
    equal: bool = False,
    spoiled: str = "",
) -> tuple[SecureResult, dict[str, OpenedSite]]:
    seen = Recording()
    turn = secure_round(announced(opens), dimension, source, spoiled)
    result = turn.run(inputs(dimension, equal=equal), seen, probe)
    return result, {site.site: site for site in seen.opened}


def sums(given: Sequence[SiteInput], result: SecureResult) -> tuple[np.ndarray, np.ndarray]:
    """The weighted sum that was opened, and the real one, both in ring units."""
    scale = parameters(given[0].vector.size).scale
    expected = sum(g.vector * (g.numerator / 16) for g in given if g.site in result.released)
    return present(result.total).astype(np.float64), np.asarray(expected) * scale


@pytest.mark.parametrize(("dimension", "source"), [(20, "ot"), (20, "dealer"), (3000, "dealer")])
def test_the_sum_is_the_weighted_sum(dimension: int, source: SourceName) -> None:
    result, _ = measured(dimension, Needs.DISTANCES, source)
    assert result.skipped_because is None
    assert present(result.judgement).failed == ()
    assert result.released == NAMES
    found, expected = sums(inputs(dimension), result)
    # five sites, each coordinate rounded to a neighbouring integer
    assert np.max(np.abs(found - expected)) < 5


def tagged_round(round_number: int = 1) -> SecureRound:
    told = announced(Needs.NOTHING).model_copy(update={"round": round_number, "tag_seed_hash": "ab" * 32})
    return secure_round(told, 20)


def test_with_tags_the_sum_is_the_same_bits() -> None:
    plain, _ = measured(20, Needs.NOTHING)
    with_tags = tagged_round().run(inputs(20), Recording())
    np.testing.assert_array_equal(present(with_tags.total), present(plain.total))


@pytest.mark.parametrize("site", ["user", NAMES[2]])
def test_a_wrong_tag_leaves_no_sum_and_names_its_site(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, place = tagged_round(), iter(NAMES)
    right = SecureRound._tagged

    def wrong(self: SecureRound, encoded: np.ndarray) -> np.ndarray:
        tagged = right(self, encoded)
        tagged[-4:][:1] += np.uint64(next(place) == site)
        return tagged

    monkeypatch.setattr(SecureRound, "_tagged", wrong)
    result = turn.run(inputs(20), Recording())
    assert result.total is None
    assert result.skipped_because == "the sum's tags are wrong; nothing was opened"
    assert result.judgement is not None
    assert result.judgement.failed == (site,)
    assert result.judgement.measured.took_part == ()


@pytest.mark.parametrize("source", ["ot", "dealer"])
def test_distances_are_exact_for_small_models(source: SourceName) -> None:
    _, opened = measured(20, Needs.DISTANCES, source)
    own, *others = inputs(20)
    assert opened["user"].distance is None
    for one in others:
        expected = float(np.linalg.norm(one.vector - own.vector))
        # Rounding moves S x_i by under 2^-f and the query by under 2^-f w + 2^-(f+1) a coordinate, over w at the end.
        w = one.numerator / 16
        bound = math.sqrt(20) * (1.5 / w + 1) / parameters(20).scale
        found = present(opened[one.site].distance)
        assert abs(found - expected) < bound


def test_sketched_distances_are_close() -> None:
    _, opened = measured(3000, Needs.DISTANCES)
    own, *others = inputs(3000)
    for one in others:
        expected = float(np.linalg.norm(one.vector - own.vector))
        # Standard deviation sqrt(1/2k) = 1.6 % of a distance at k = 2048; six of them, one in 5e8.
        assert opened[one.site].distance == pytest.approx(expected, rel=6 * math.sqrt(1 / (2 * 2048)))


def test_norms_are_those_of_the_updates() -> None:
    _, opened = measured(20, Needs.NORMS)
    assert opened["user"].distance is None
    for one in inputs(20)[1:]:
        # rounding moves w g_i by under 2^-f a coordinate, over w at the end
        bound = math.sqrt(20) / parameters(20).scale / (one.numerator / 16)
        assert opened[one.site].distance == pytest.approx(float(np.linalg.norm(one.vector)), abs=bound)


@pytest.mark.parametrize("source", ["ot", "dealer"])
def test_pairs_are_the_distances_of_all_sites(source: SourceName) -> None:
    _, opened = measured(20, Needs.PAIRS, source, equal=True)
    vectors = {g.site: g.vector for g in inputs(20, equal=True)}
    for place, site in enumerate(NAMES):
        assert [other for other, _ in opened[site].pairs] == list(NAMES[:place])
        for other, found in opened[site].pairs:
            # both vectors are rounded by under 2^-f a coordinate
            expected = float(np.linalg.norm(vectors[site] - vectors[other]))
            assert found == pytest.approx(expected, abs=2 * math.sqrt(20) / parameters(20).scale)


@pytest.mark.parametrize("source", ["ot", "dealer"])
def test_inner_products_are_those_with_the_probe(source: SourceName) -> None:
    probe = np.linspace(-0.2, 0.2, 20)
    _, opened = measured(20, Needs.INNER_PRODUCTS, source, probe)
    assert opened["user"].inner_product is None
    for one in inputs(20)[1:]:
        # x = w g and v are rounded by under 2^-f a coordinate: |<x, v>| moves by under (|x| + |v| + 2^-f sqrt D) sqrt D
        # 2^-f, with |x| <= w / 2 and |v| < 0.6; over w at the end
        w, root = one.numerator / 16, math.sqrt(20) / parameters(20).scale
        bound = (w / 2 + 0.6 + root) * root / w
        assert opened[one.site].inner_product == pytest.approx(float(np.sum(one.vector * probe)), abs=bound)


def test_nothing_is_opened_where_nothing_is_needed() -> None:
    result, opened = measured(20, Needs.NOTHING)
    assert result.total is not None
    assert all(site == OpenedSite(site.site, True) for site in opened.values())


@pytest.mark.parametrize("opens", list(Needs))
def test_a_wrapped_entry_is_caught_and_left_out(opens: Needs) -> None:
    probe = np.full(20, 0.1) if opens is Needs.INNER_PRODUCTS else None
    result, opened = measured(20, opens, probe=probe, equal=True, spoiled="south")
    assert opened["south"] == OpenedSite("south", False)
    assert "south" not in [other for site in opened.values() for other, _ in site.pairs]
    assert result.released == ("user", "north", "east", "west")
    found, expected = sums(inputs(20, equal=True), result)
    # as above with four sites
    assert np.max(np.abs(found - expected)) < 4


def test_too_few_in_range_skips_the_round() -> None:
    given = [
        SiteInput(g.site, g.vector * 2.0**20, g.numerator) if g.site in ("south", "east") else g for g in inputs(20)
    ]
    result = secure_round(announced(Needs.DISTANCES), 20).run(given, Recording())
    assert result.total is None
    assert present(result.judgement).failed == ("south", "east")
    assert result.skipped_because == "too few sites are left after the checks"


def test_missing_contributions_skip_the_round() -> None:
    def reason(sites: tuple[str, ...]) -> str:
        result = secure_round(announced(Needs.DISTANCES), 20).run(inputs(20, sites), Recording())
        assert (result.total, result.judgement) == (None, None)
        return result.skipped_because or ""

    assert "requester's own" in reason(NAMES[1:])
    assert "2 contributors" in reason(NAMES[:3])


def test_class_counts_are_summed_exactly() -> None:
    counts = {name: (place, 7 * place, 100) for place, name in enumerate(NAMES)}
    given = [WholeNumbers(site, counts_vector(numbers, parameters(20))) for site, numbers in counts.items()]
    result = secure_round(announced(Needs.NOTHING, Purpose.COUNTS), 20).run(given, Recording())
    assert present(result.total).tolist() == [10, 70, 500] + [0] * 17


def test_a_sum_beyond_the_bound_is_refused() -> None:
    """Every site passes the range check by itself; the sum is far larger than honest ones can make it."""
    given = [SiteInput(g.site, np.full(20, 4.0 / math.sqrt(20)), 16) for g in inputs(20)]
    turn = secure_round(announced(Needs.NOTHING), 20)
    tight = SecureRound(ROSTER, parameters(20), turn.announcement, SEED, turn.draw, lambda released: 2**21)
    with pytest.raises(AggregateOutOfBounds):
        tight.run(given, Recording())


def test_same_seed_same_bits() -> None:
    (first, opened), (again, opened_again) = (measured(20, Needs.DISTANCES, "ot") for _ in range(2))
    assert present(first.total).tobytes() == present(again.total).tobytes()
    assert opened == opened_again
