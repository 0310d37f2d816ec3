"""The bounds on what is opened, term by term."""

from __future__ import annotations

import numpy as np
import pytest

from client_agent.requester.judgement import largest_product, longest_distance, longest_norm, too_long
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters

EXACT = StudyParameters(dimension=1000, clip_norm=4.0, least_contributors=3)
SKETCHED = EXACT.model_copy(update={"dimension": 5000})
SPREAD = 1 + 6 / np.sqrt(1024)


def test_a_distance_is_both_norms_and_the_rounding() -> None:
    """One unit 2^-f a coordinate for the site's, w for the requester's, a half for the query's, over the weight."""
    unit = np.sqrt(1000) / EXACT.scale
    assert longest_distance(EXACT, 32, 1.5) == pytest.approx(5.5 + 2.5 * unit, rel=1e-12)
    assert longest_distance(EXACT, 16, 1.5) == pytest.approx(5.5 + 4 * unit, rel=1e-12)


def test_a_norm_is_the_clip_norm_and_one_rounding() -> None:
    unit = np.sqrt(1000) / EXACT.scale
    assert longest_norm(EXACT, 32) == pytest.approx(4 + unit, rel=1e-12)
    assert longest_norm(EXACT, 8, 2**0.5) == pytest.approx(4 * 2**0.5 + 4 * unit, rel=1e-12)


def test_a_product_is_that_of_the_norms() -> None:
    unit = np.sqrt(1000) / EXACT.scale
    assert largest_product(EXACT, 16, 0.5) == pytest.approx((4 + 2 * unit) * (0.5 + unit), rel=1e-12)


def test_a_sketch_widens_each_of_them_by_the_same_factor() -> None:
    wide = EXACT.model_copy(update={"dimension": 2048})
    for bound in (
        lambda p: longest_distance(p, 7, 1.0),
        lambda p: longest_norm(p, 7),
        lambda p: largest_product(p, 7, 1.0),
    ):
        assert bound(SKETCHED) / bound(wide) == pytest.approx(SPREAD, rel=1e-3)


def apart(*pairs: tuple[str, str], byzantine: int) -> frozenset[str]:
    """Who is left out where these pairs are too far apart, and all others near."""
    names = ("user", "c1", "c2", "c3", "c4")
    far = 3 * EXACT.clip_norm
    sites = [
        OpenedSite(name, True, pairs=tuple((o, far if (o, name) in pairs else 1.0) for o in names[:place]))
        for place, name in enumerate(names)
    ]
    return too_long(sites, "user", 1.0, 0.0, dict.fromkeys(names, 32), EXACT, Needs.PAIRS, byzantine)


def test_of_two_contributors_too_far_apart_neither_is_blamed() -> None:
    assert apart(("c1", "c2"), byzantine=1) == frozenset()


def test_who_is_too_far_from_more_than_can_be_dishonest_is_left_out() -> None:
    assert apart(("c1", "c2"), ("c1", "c3"), byzantine=1) == {"c1"}
    assert apart(("c1", "c2"), ("c1", "c3"), byzantine=2) == frozenset()
    assert apart(("c1", "c4"), ("c2", "c4"), ("c1", "c3"), ("c2", "c3"), byzantine=1) == {"c1", "c2", "c3", "c4"}


def test_a_pair_is_as_long_as_its_weights_allow() -> None:
    """w_1 C + w_2 C = 3 between contributors, w_1 C + ||g_0|| = 2 from the requester."""

    def left_out(from_requester: float, between: float) -> frozenset[str]:
        pairs = (("user", from_requester),), (("user", 1.0), ("c1", between))
        sites = [OpenedSite("user", True), *(OpenedSite(f"c{i}", True, pairs=p) for i, p in enumerate(pairs, 1))]
        return too_long(sites, "user", 1.0, 0.0, {"user": 32, "c1": 8, "c2": 16}, EXACT, Needs.PAIRS, 0)

    assert left_out(2.0, 3.0) == frozenset()
    assert left_out(2.1, 3.0) == {"c1"}
    assert left_out(2.0, 3.1) == {"c1", "c2"}


def test_the_requester_never_blames_itself() -> None:
    assert apart(("user", "c2"), ("user", "c3"), byzantine=1) == {"c2", "c3"}


@pytest.mark.parametrize("opens", [Needs.NORMS, Needs.DISTANCES])
def test_a_requester_of_weight_0_is_not_measured(opens: Needs) -> None:
    """Some rules give all weight to the others; its own length is no question."""
    sites = [OpenedSite("user", True, distance=9.0), OpenedSite("c1", True, distance=1.0)]
    sites.append(OpenedSite("c2", True, distance=9.0))
    numerators = {"user": 0, "c1": 32, "c2": 32}
    assert too_long(sites, "user", 1.0, 0.0, numerators, EXACT, opens, 0) == {"c2"}
