"""What a site holds against sums that it may not know of, by whose question it was and who is in them."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import PolicyRefusal
from protocol.policy.clauses import check_isolation
from protocol.policy.linked import linked_error, linked_error_with_noise
from protocol.policy.site_policy import SitePolicy
from protocol.policy.summed_rows import SummedRow, SummedWeight
from protocol.policy.sums import Exposure

LENGTH = 64
UPDATE = np.eye(LENGTH)[0]
ELSEWHERE = np.eye(LENGTH)[1]


def row(sites: str, study: str = "new", *, requester: str = "r", version: int = 0, settled: bool = True) -> SummedRow:
    return SummedRow(
        study_digest=study,
        round=1,
        dimension=LENGTH,
        weights=tuple(SummedWeight(site=site, weight=1.0) for site in sites),
        least=len(sites),
        released=tuple(sites) if settled else None,
        requester=requester,
        model_version=version,
    )


def error(past: SummedRow, new: SummedRow, colluders: int = 0) -> float:
    """With the same update in both."""
    return linked_error([past], new, np.stack([UPDATE, UPDATE]), colluders=colluders)


@pytest.mark.parametrize("requester", ["r", ""])
@pytest.mark.parametrize("settled", [True, False])
def test_the_same_update_over_other_sites_in_another_study_is_known(requester: str, *, settled: bool) -> None:
    assert error(row("abc", "old", requester=requester, settled=settled), row("bcdef")) == 0


def test_over_the_same_sites_or_none_of_them_nothing_is_linked() -> None:
    assert error(row("abc", "old"), row("abc")) == np.inf
    assert error(row("abc", "old"), row("def")) == np.inf


def test_with_noise_of_servers_what_is_left_is_the_noise_of_all_linked_sums() -> None:
    def noisy(one: SummedRow, square: float = 3.0) -> SummedRow:
        return one.model_copy(update={"servers_noise": square})

    past, new = [noisy(row("abc", "old")), noisy(row("abc", "older"))], noisy(row("bcdef"))
    assert linked_error_with_noise(past, new, colluders=0) == pytest.approx(np.sqrt(3 / (3 + 3)))
    assert linked_error_with_noise([noisy(row("abc", "old"))], noisy(row("abc")), colluders=0) == np.inf
    assert linked_error_with_noise([row("abc", "old")], new, colluders=0) == 0


def test_another_requester_counts_where_colluders_do() -> None:
    assert error(row("abc", "old", requester="s"), row("bcdef")) == np.inf
    assert error(row("abc", "old", requester="s"), row("bcdef"), colluders=1) == 0


def test_in_one_study_only_sums_that_were_not_told_count() -> None:
    assert error(row("abc", "new"), row("bcdef", version=1)) == np.inf
    assert error(row("abc", "new"), row("bcdef", version=2)) == 0


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
