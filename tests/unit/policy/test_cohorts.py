"""Two sums of the data as they are never differ in one or two sites (docs/protocol.md 17)."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from client_agent.site.remembered_cohorts import CohortMemory
from protocol.clauses import Clause
from protocol.errors import ConfigurationError, PolicyRefusal
from protocol.policy.cohorts import Cohort, check_cohort
from protocol.policy.summed_rows import UNKNOWN_REQUESTER

SIX = tuple("abcdef")


def cohort(listed: str, least: int, study: str = "0" * 64, released: str | None = None, requester: str = "r") -> Cohort:
    given = None if released is None else tuple(released)
    return Cohort(study_digest=study, round=1, listed=tuple(listed), least=least, released=given, requester=requester)


BEFORE = cohort("abcdef", 3, "1" * 64, "abcdef")


@pytest.mark.parametrize("size", range(3, 7))
def test_allowed_are_the_same_sites_and_those_three_apart(size: int) -> None:
    for listed in combinations(SIX, size):
        new = cohort("".join(listed), size)
        if size in (6, 3):
            check_cohort(new, [BEFORE], 3)
        else:
            with pytest.raises(PolicyRefusal) as refused:
                check_cohort(new, [BEFORE], 3)
            assert refused.value.clause is Clause.COHORT


@pytest.mark.parametrize(
    ("new", "apart"),
    [
        pytest.param(cohort("abcdef", 5), 3, id="it may leave one out"),
        pytest.param(cohort("abcdefg", 7), 3, id="one more"),
        pytest.param(cohort("abc", 3), 4, id="three fewer where four are asked for"),
        pytest.param(cohort("abcdefghijklmnopqrst", 3), 3, id="more sets than can be looked at"),
    ],
)
def test_what_could_show_a_site_is_refused(new: Cohort, apart: int) -> None:
    with pytest.raises(PolicyRefusal, match="with their number as the least number"):
        check_cohort(new, [BEFORE], apart)


@pytest.mark.parametrize("requester", ["s", UNKNOWN_REQUESTER])
def test_the_same_contributors_for_another_requester_would_show_that_ones_data(requester: str) -> None:
    """r and any contributor know both sums; their difference and r's own table are s's."""
    with pytest.raises(PolicyRefusal, match="the same contributors for another requester") as refused:
        check_cohort(cohort("abcdef", 6, requester=requester), [BEFORE], 3)
    assert refused.value.clause is Clause.COHORT
    check_cohort(cohort("abc", 3, requester=requester), [BEFORE], 3)


def test_the_same_sites_may_ask_each_other_in_turn() -> None:
    check_cohort(cohort("rbcdef", 6, requester="a"), [BEFORE], 3)
    with pytest.raises(PolicyRefusal, match="2 sites more or fewer"):
        check_cohort(cohort("rbcdef", 6, requester="s"), [BEFORE], 3)


def test_a_memory_of_an_older_release_holds_no_requesters(tmp_path: Path) -> None:
    """Within a study there is one; of another study it may have been anybody."""
    memory = CohortMemory(tmp_path / "cohorts", lambda: bytes(32))
    memory.agree(cohort("abcd", 4), 3)
    path = tmp_path / "cohorts" / "rounds.json"
    path.write_text(path.read_text().replace(',"requester":"r"', ""))
    again = CohortMemory(tmp_path / "cohorts", lambda: bytes(32))
    again.agree(cohort("abcd", 4).model_copy(update={"round": 2}), 3)
    with pytest.raises(PolicyRefusal, match="another requester"):
        again.agree(cohort("abcd", 4, "2" * 64), 3)


def test_a_round_of_unknown_end_counts_as_every_sum_that_it_admits() -> None:
    check_cohort(cohort("abc", 3), [cohort("abcdef", 6, "1" * 64)], 3)
    with pytest.raises(PolicyRefusal):
        check_cohort(cohort("abc", 3), [cohort("abcdef", 4, "1" * 64)], 3)


def test_the_memory_outlives_studies_and_a_skip_takes_a_round_back(tmp_path: Path) -> None:
    memory = CohortMemory(tmp_path / "cohorts", lambda: bytes(32))
    memory.agree(cohort("abcd", 3), 3)
    memory.settle(cohort("abcd", 3).name, tuple("abcd"))
    memory.drop(cohort("abcd", 3).name)
    again = CohortMemory(tmp_path / "cohorts", lambda: bytes([1]) * 32)
    assert again.rounding_key() == bytes(32)
    with pytest.raises(PolicyRefusal):
        again.agree(cohort("abc", 3, "2" * 64), 3)
    again.agree(cohort("abcd", 4, "2" * 64), 3)
    again.agree(cohort("wxyz", 4, "3" * 64), 3)
    again.drop(("3" * 64, 1))
    assert again.rounds() == {("0" * 64, 1), ("2" * 64, 1)}
    (tmp_path / "cohorts" / "rounding.key").unlink()
    with pytest.raises(ConfigurationError, match="restore it from a backup"):
        again.rounding_key()
    (tmp_path / "cohorts" / "rounds.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="memory of cohorts"):
        CohortMemory(tmp_path / "cohorts", lambda: bytes(32))
