"""Sums of the data as they are, over the same sites each time, or as far apart as a site allows (protocol.md 17)."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from client_agent.site.remembered_cohorts import CohortMemory
from protocol.errors import Clause, ConfigurationError, PolicyRefusal
from protocol.policy.cohorts import Cohort, check_cohort
from protocol.policy.exposure import UNKNOWN_REQUESTER
from protocol.policy.site_policy import SitePolicy

SIX = tuple("abcdef")


def cohort(listed: str, least: int, study: str = "0" * 64, released: str | None = None, requester: str = "r") -> Cohort:
    given = None if released is None else tuple(released)
    return Cohort(study_digest=study, round=1, listed=tuple(listed), least=least, released=given, requester=requester)


BEFORE = cohort("abcdef", 3, "1" * 64, "abcdef")


@pytest.mark.parametrize("size", range(3, 7))
@pytest.mark.parametrize("most", [1, 2])
def test_allowed_are_the_same_sites_and_where_a_site_says_so_those_that_are_far_apart(size: int, most: int) -> None:
    for listed in combinations(SIX, size):
        new = cohort("".join(listed), size)
        if size == 6 or (size == 3 and most == 2):
            check_cohort(new, [BEFORE], 0, most)
        else:
            with pytest.raises(PolicyRefusal, match=f"most_cohorts = {most}") as refused:
                check_cohort(new, [BEFORE], 0, most)
            assert refused.value.clause is Clause.COHORT


@pytest.mark.parametrize(
    ("new", "colluders"),
    [
        pytest.param(cohort("abcdef", 5), 0, id="it may leave one out"),
        pytest.param(cohort("abcdefg", 7), 0, id="one more"),
        pytest.param(cohort("abc", 3), 1, id="one of the three that are left out may tell"),
        pytest.param(cohort("abcdghij", 8), 0, id="six differ, of eight"),
        pytest.param(cohort("abcdefghijklmnopqrst", 3), 0, id="more sets than can be looked at"),
    ],
)
def test_what_could_show_a_site_is_refused_whatever_it_allows(new: Cohort, colluders: int) -> None:
    with pytest.raises(PolicyRefusal, match="with their number as the least number"):
        check_cohort(new, [BEFORE], colluders, 9)


def test_the_larger_least_number_counts_in_either_order() -> None:
    """With two colluders among the last three the difference would be the third one's."""
    eight, five = cohort("abcdefgh", 8, "1" * 64), cohort("abcde", 5)
    for new, before in ((eight, five), (five, eight)):
        with pytest.raises(PolicyRefusal, match="3 sites more or fewer, at least 8 are demanded"):
            check_cohort(new, [before], 2, 2)


def test_three_sums_that_show_a_site_of_which_no_site_sees_more_than_two() -> None:
    """All of seven, three of them and three others: what is left is the seventh's, who was asked once."""
    seven = cohort("abcdefg", 7, "1" * 64, "abcdefg")
    for listed in ("abc", "def"):
        with pytest.raises(PolicyRefusal, match="allowed are the same sites"):
            check_cohort(cohort(listed, 3), [seven], 0, 1)


def test_a_site_that_allows_two_sets_of_sites_is_in_no_third() -> None:
    known = [cohort("abc", 3, "1" * 64, "abc"), cohort("adef", 4, "2" * 64, "adef")]
    check_cohort(cohort("adef", 4), known, 0, 2)
    with pytest.raises(PolicyRefusal, match="2 sets of sites in all"):
        check_cohort(cohort("aghijk", 6), known, 0, 2)
    check_cohort(cohort("aghijk", 6), known, 0, 3)


@pytest.mark.parametrize("requester", ["s", UNKNOWN_REQUESTER])
def test_the_same_contributors_for_another_requester_would_show_that_ones_data(requester: str) -> None:
    """r and any contributor know both sums; their difference and r's own table are s's."""
    with pytest.raises(PolicyRefusal, match="the same contributors for another requester") as refused:
        check_cohort(cohort("abcdef", 6, requester=requester), [BEFORE], 0, 2)
    assert refused.value.clause is Clause.COHORT
    check_cohort(cohort("abc", 3, requester=requester), [BEFORE], 0, 2)


def test_the_same_sites_may_ask_each_other_in_turn() -> None:
    check_cohort(cohort("rbcdef", 6, requester="a"), [BEFORE], 0, 1)
    with pytest.raises(PolicyRefusal, match="2 sites more or fewer"):
        check_cohort(cohort("rbcdef", 6, requester="s"), [BEFORE], 0, 1)


def test_a_memory_of_an_older_release_holds_no_requesters(tmp_path: Path) -> None:
    """Within a study there is one; of another study it may have been anybody."""
    memory = CohortMemory(tmp_path / "cohorts", lambda: bytes(32))
    memory.agree(cohort("abcd", 4), 0, SitePolicy())
    path = tmp_path / "cohorts" / "rounds.json"
    path.write_text(path.read_text().replace(',"requester":"r"', ""))
    again = CohortMemory(tmp_path / "cohorts", lambda: bytes(32))
    again.agree(cohort("abcd", 4).model_copy(update={"round": 2}), 0, SitePolicy())
    with pytest.raises(PolicyRefusal, match="another requester"):
        again.agree(cohort("abcd", 4, "2" * 64), 0, SitePolicy())


def test_a_round_of_unknown_end_counts_as_every_sum_that_it_admits() -> None:
    check_cohort(cohort("abcdef", 6), [cohort("abcdef", 6, "1" * 64)], 0, 1)
    with pytest.raises(PolicyRefusal):
        check_cohort(cohort("abcdef", 6), [cohort("abcdef", 4, "1" * 64)], 0, 1)


def test_the_memory_outlives_studies_and_a_skip_takes_a_round_back(tmp_path: Path) -> None:
    memory = CohortMemory(tmp_path / "cohorts", lambda: bytes(32))
    memory.agree(cohort("abcd", 3), 0, SitePolicy())
    memory.settle(cohort("abcd", 3).name, tuple("abcd"))
    memory.drop(cohort("abcd", 3).name)
    again = CohortMemory(tmp_path / "cohorts", lambda: bytes([1]) * 32)
    assert again.rounding_key() == bytes(32)
    with pytest.raises(PolicyRefusal):
        again.agree(cohort("abc", 3, "2" * 64), 0, SitePolicy())
    again.agree(cohort("abcd", 4, "2" * 64), 0, SitePolicy())
    again.agree(cohort("wxyz", 4, "3" * 64), 0, SitePolicy(most_cohorts=2))
    again.drop(("3" * 64, 1))
    assert again.rounds() == {("0" * 64, 1), ("2" * 64, 1)}
    (tmp_path / "cohorts" / "rounding.key").unlink()
    with pytest.raises(ConfigurationError, match="restore it from a backup"):
        again.rounding_key()
    (tmp_path / "cohorts" / "rounds.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="memory of cohorts"):
        CohortMemory(tmp_path / "cohorts", lambda: bytes(32))
