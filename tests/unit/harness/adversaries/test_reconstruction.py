"""Estimating updates from sums and lists: what a system of equations gives away, and what it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from harness.adversaries.attacked_study import OpenedSum
from harness.adversaries.reconstruction import Prior, Reconstruction, equations_of, gram

SITES = ("one", "two", "three")
ROUNDS, DIMENSION = 16, 12


def moving(seed: int, step: float) -> np.ndarray:
    """Updates that drift by ``step`` of their length from round to round, float32[ROUNDS, DIMENSION]."""
    random = np.random.default_rng(seed)
    steps = random.normal(size=(ROUNDS, DIMENSION)) * step
    steps[0] = random.normal(size=DIMENSION)
    return np.cumsum(steps, axis=0).astype(np.float32)


def study(step: float, weights: np.ndarray, alike: bool = False) -> list[OpenedSum]:
    """Sums of a requester and three sites, float64[DIMENSION]; ``weights`` float64[ROUNDS, 3], 0 keeps a site out."""
    updates = {name: moving(0 if alike else place, step) for place, name in enumerate(("asks", *SITES))}
    sums = []
    for row in range(ROUNDS):
        used = {"asks": 1.0} | {name: float(w) for name, w in zip(SITES, weights[row], strict=True) if w}
        total = sum(w * updates[name][row].astype(np.float64) for name, w in used.items())
        sums.append(OpenedSum(row + 1, "asks", used, np.asarray(total), {name: updates[name][row] for name in used}))
    return sums


def changing() -> np.ndarray:
    return np.random.default_rng(7).integers(1, 33, (ROUNDS, 3)) / 32


def worst(errors: dict[str, tuple[float | None, ...]]) -> float:
    return max(error for one in errors.values() for error in one if error is not None)


@pytest.mark.parametrize("prior", [Prior.OWN, Prior.FITTED, Prior.TRUE])
def test_lists_that_change_over_updates_that_hardly_move_give_every_update_away(prior: Prior) -> None:
    assert worst(Reconstruction(("asks",), prior).errors(study(1e-3, changing()))) < 0.02


def test_a_listed_site_can_do_what_the_requester_can_and_has_the_requesters_updates_too() -> None:
    errors = Reconstruction(("two",), Prior.TRUE).errors(study(1e-3, changing()))
    assert set(errors) == {"asks", "one", "three"}
    assert worst(errors) < 0.02


def test_with_a_list_that_stays_nobody_knows_more_than_the_average() -> None:
    sums = study(0.1, np.ones((ROUNDS, 3)))
    average = Reconstruction(("asks",), Prior.AVERAGE).errors(sums)
    for prior in (Prior.OWN, Prior.FITTED):
        errors = Reconstruction(("asks",), prior).errors(sums)
        for site in SITES:
            assert errors[site] == pytest.approx(average[site], rel=0.05)


def test_updates_that_are_drawn_afresh_are_not_found() -> None:
    sums = study(1.0, changing())
    fresh = [
        OpenedSum(one.round, one.requester, one.weights, np.asarray(total), updates)
        for one in sums
        for updates in [
            {
                name: np.random.default_rng([one.round, place]).normal(size=DIMENSION).astype(np.float32)
                for place, name in enumerate(one.updates)
            }
        ]
        for total in [sum(one.weights[name] * update.astype(np.float64) for name, update in updates.items())]
    ]
    errors = Reconstruction(("asks",), Prior.FITTED).errors(fresh)
    assert all(np.median(np.array(errors[site])) > 0.4 for site in SITES)


def test_two_who_collude_leave_the_third_nothing_when_it_is_the_last_one() -> None:
    errors = Reconstruction(("asks", "one", "two"), Prior.AVERAGE).errors(study(0.1, changing()))
    assert worst(errors) < 1e-5


def test_a_round_without_a_site_has_no_error_for_it_and_a_colluder_who_was_away_takes_nothing_out() -> None:
    weights = changing()
    weights[3, 0] = 0.0
    sums = study(0.01, weights)
    assert Reconstruction(("asks",), Prior.OWN).errors(sums)["one"][3] is None
    equations = equations_of(sums, ("asks", "one"))
    rest = sums[3].total - sums[3].updates["asks"]
    np.testing.assert_allclose(equations.sums[3], rest, atol=1e-6)
    assert gram(sums, "one")[3, 3] == 0


def test_where_all_sites_send_the_same_the_average_is_it() -> None:
    sums = study(0.1, changing(), alike=True)
    assert worst(Reconstruction(("asks",), Prior.AVERAGE).errors(sums)) < 1e-5
