"""A site's objections to sums that it may not know of, by whose question it was and who is in them."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import PolicyRefusal
from protocol.policy.clauses import check_isolation
from protocol.policy.exposure import Exposure, KnownSum, SummedRow, exposure, linked_error, told_of_all
from protocol.policy.site_policy import SitePolicy
from tests.unit.policy.test_sums import row as summed

LENGTH = 64
UPDATE = np.eye(LENGTH)[0]
ELSEWHERE = np.eye(LENGTH)[1]


def row(sites: str, study: str = "new", *, requester: str = "r", version: int = 0, settled: bool = True) -> SummedRow:
    released = sites if settled else None
    return summed(sites, study=study, dimension=LENGTH, released=released, requester=requester, model_version=version)


def error(past: SummedRow, new: SummedRow, colluders: int = 0, *, told: bool = True) -> float:
    """With the same update in both."""
    return linked_error([past], new, np.stack([UPDATE, UPDATE]), colluders=colluders, told=told)


@pytest.mark.parametrize("requester", ["r", ""])
@pytest.mark.parametrize("settled", [True, False])
def test_the_same_update_over_other_sites_in_another_study_is_known(requester: str, *, settled: bool) -> None:
    assert error(row("abc", "old", requester=requester, settled=settled), row("bcdef")) == 0


def test_over_the_same_sites_or_none_of_them_nothing_is_linked() -> None:
    assert error(row("abc", "old"), row("abc")) == np.inf
    assert error(row("abc", "old"), row("def")) == np.inf


def test_another_requester_counts_where_colluders_do() -> None:
    assert error(row("abc", "old", requester="s"), row("bcdef")) == np.inf
    assert error(row("abc", "old", requester="s"), row("bcdef"), colluders=1) == 0


def test_in_one_study_sums_count_until_every_earlier_round_is_accounted_for() -> None:
    assert error(row("abc", "new"), row("bcdef"), told=True) == np.inf
    assert error(row("abc", "new"), row("bcdef"), told=False) == 0
    assert linked_error([row("abc", "new")], row("bcdef"), np.stack([UPDATE, UPDATE]), colluders=0) == 0, "not proven"


def test_told_of_all_is_a_matter_of_round_numbers_and_of_none_beside_them() -> None:
    fourth = row("bcdef").model_copy(update={"round": 4})
    assert told_of_all(row("abc"), set())
    assert told_of_all(fourth, {1, 2, 3})
    assert not told_of_all(fourth, {1, 3, 5, 6, 7})


def padded(*, versions: tuple[int, ...], rounds: tuple[int, ...], **changes: object) -> list[SummedRow]:
    return [
        row("abc", "new", version=version).model_copy(update={"round": number, **changes})
        for version, number in zip(versions, rounds, strict=True)
    ]


def linked(past: list[SummedRow], new: SummedRow, accounted: set[int]) -> float:
    """As a site finds it whose update never changes."""
    updates = np.stack([UPDATE] * (len(past) + 1))
    return exposure([KnownSum(one, UPDATE) for one in past], new, updates[-1], told=told_of_all(new, accounted)).linked


def test_a_sum_that_was_discarded_and_asked_again_makes_no_site_less_blind() -> None:
    """{a, b, c} on version 0, discarded, then again; {d, e, f} likewise behind its back; at last {b, ..., f}.

    Two settled sums, two versions: a count of either would be content.
    """
    past = padded(versions=(0, 0), rounds=(1, 2))
    last = row("bcdef", "new", version=2).model_copy(update={"round": 5})
    assert linked(past, last, {1, 2}) == pytest.approx(0, abs=1e-6)
    assert linked(past, last, {1, 2, 3, 4}) == np.inf


def test_a_hidden_discarded_sum_blinds_though_no_version_is_missing() -> None:
    """The other sites' sum on version 1 was discarded, so that no model came of it."""
    past = padded(versions=(0,), rounds=(1,))
    last = row("bcdef", "new", version=1).model_copy(update={"round": 3})
    assert linked(past, last, {1}) == pytest.approx(0, abs=1e-6)


def test_an_honest_study_goes_on_whether_its_sums_step_the_model_or_not() -> None:
    """Rounds 2 and 4 were skipped, round 3 discarded; everybody knows of all."""
    past = padded(versions=(0, 1), rounds=(1, 3))
    assert linked(past, row("abc", "new", version=1).model_copy(update={"round": 5}), {1, 2, 3, 4}) == np.inf
    other = row("bcdef", "new", version=1).model_copy(update={"round": 5})
    assert linked(past, other, {1, 2, 3, 4}) == np.inf


def test_the_error_grows_with_what_is_new_and_with_the_number_of_sites() -> None:
    past, new = row("abc", "old"), row("bcdef")
    newest = 0.8 * UPDATE + 0.6 * ELSEWHERE
    found = linked_error([past], new, np.stack([UPDATE, newest]), colluders=0)
    assert found == pytest.approx(0.6 * np.sqrt(5))


def test_a_combination_of_two_updates_is_not_new() -> None:
    past = [row("abc", "old"), row("abc", "older")]
    updates = np.stack([UPDATE, UPDATE + 1e-3 * ELSEWHERE, 2 * UPDATE - ELSEWHERE])
    assert linked_error(past, row("bcdef"), updates, colluders=0) < 1e-6


def test_many_random_updates_leave_a_random_one_new() -> None:
    random = np.random.default_rng(5)
    updates = random.normal(size=(201, LENGTH))
    past = [row("abc", f"study {number}") for number in range(200)]
    assert linked_error(past, row("bcdef"), updates, colluders=0) > 1


def test_however_short_updates_are_their_directions_count() -> None:
    updates = np.stack([1e-12 * UPDATE, np.zeros(LENGTH), UPDATE])
    past = [row("abc", "old"), row("abc", "older")]
    assert linked_error(past, row("bcdef"), updates, colluders=0) == 0
    assert linked_error(past[:1], row("bcdef"), updates[1:], colluders=0) == pytest.approx(np.sqrt(5))


def test_what_is_no_number_counts_as_known() -> None:
    bad = np.full(LENGTH, np.nan)
    assert linked_error([row("abc", "old")], row("bcdef"), np.stack([UPDATE, bad]), colluders=0) == 0
    assert linked_error([row("abc", "old")], row("bcdef"), np.zeros((2, LENGTH)), colluders=0) == 0


def test_an_empty_list_sums_nothing() -> None:
    assert error(row("abc", "old"), row("")) == np.inf


def test_a_site_refuses_by_its_demand_and_tells_the_requester_no_figure() -> None:
    found = Exposure({"a": 3.0}, 3.0, "a", linked=0.25)
    check_isolation(found, row("bcdef"), SitePolicy(least_isolation=0.25))
    with pytest.raises(PolicyRefusal, match=r"relative error of 0\.250, this site demands 0\.26") as refused:
        check_isolation(found, row("bcdef"), SitePolicy(least_isolation=0.26))
    assert "0.250" not in refused.value.told
    assert "this site demands 0.26: list the sites of that sum again" in refused.value.told


def test_a_newcomer_has_no_update_in_the_sums_that_it_was_not_in() -> None:
    """Its newest one stands in for it, and would be nothing new against itself."""
    away = row("abc", "new").model_copy(update={"away": True})
    assert error(away, row("bcdef"), told=False) == np.inf
    assert error(away.model_copy(update={"study_digest": "old"}), row("bcdef"), told=False) == 0
