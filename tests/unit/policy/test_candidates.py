"""The lists that a requester tries, in their order."""

from __future__ import annotations

import pytest

from protocol.errors import Clause
from protocol.messages.control import ListedWeight, RuleName, RuleSpec
from protocol.policy.clauses import foresee
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.planning import Candidate, Numerators, candidates
from protocol.rules.registry import rule_for
from tests.kit.present import present
from tests.unit.client_agent.federation import study

# --- candidates -------------------------------------------------------------------------------------------------------

NEW = (ListedWeight(site="a", numerator=1), ListedWeight(site="b", numerator=1), ListedWeight(site="c", numerator=1))
LAST = tuple(weight.model_copy(update={"numerator": 2}) for weight in NEW)


def tried(
    last: tuple[ListedWeight, ...] = LAST,
    least: int = 2,
    *,
    may_change: bool = True,
    careful: bool = True,
    too_few: bool = False,
    declined: Candidate | None = None,
) -> list[tuple[tuple[ListedWeight, ...], int]]:
    found = candidates(
        Numerators(NEW),
        Numerators(last),
        least,
        may_change=may_change,
        careful=careful,
        too_few=too_few,
        declined=declined,
    )
    return [(one.weights, one.least) for one in found]


def test_the_rules_list_comes_before_the_last_and_everybody_is_needed() -> None:
    assert tried() == [(NEW, 3), (LAST, 3)]


def test_after_a_round_without_a_sum_the_least_number_comes_first() -> None:
    assert tried(too_few=True) == [(NEW, 2), (NEW, 3), (LAST, 2), (LAST, 3)]


def test_a_list_that_is_kept_is_the_only_one_unless_there_is_none() -> None:
    assert tried(may_change=False) == [(LAST, 3)]
    assert tried(last=(), may_change=False) == [(NEW, 3)]


def test_nothing_is_tried_twice_and_nothing_that_was_declined() -> None:
    assert tried(last=NEW, least=3, too_few=True) == [(NEW, 3)]
    assert tried(declined=Candidate(NEW, 3)) == [(LAST, 3)]


def test_where_nobody_asks_for_isolation_the_least_number_is_the_only_one() -> None:
    assert tried(careful=False) == [(NEW, 2), (LAST, 2)]


def test_a_list_of_too_few_is_not_tried() -> None:
    assert tried(last=LAST[:1], careful=False) == [(NEW, 2)]
    assert tried(last=(), least=4, careful=False) == []


# --- foreseen ---------------------------------------------------------------------------------------------------------

STUDY = study()
RULES = [name for name in RuleName if name is not RuleName.LOCAL]


def foreseen(policy: SitePolicy, contributors: int, name: RuleName = RuleName.FEDAVG, least: int = 3):
    names = tuple(f"c{number}" for number in range(1, contributors + 1))
    parameters = STUDY.parameters.model_copy(update={"least_contributors": least})
    rule = rule_for(RuleSpec(name=name), batch_size=16, grid=parameters.weight_grid)
    return foresee(STUDY.model_copy(update={"parameters": parameters}), names, rule, policy)


@pytest.mark.parametrize("name", [RuleName.FEDAVG, RuleName.WEIGHT_EROSION])
def test_four_hospitals_of_which_one_colludes_cannot_federate(name: RuleName) -> None:
    """The requester and three others: three less one assumed to collude are fewer than three."""
    found = foreseen(SitePolicy(assumed_colluders=1), 3, name)
    assert found.refused is not None
    assert found.refused.clause is Clause.ENOUGH_CONTRIBUTORS
    assert "3 contributors less 1 assumed to collude leave 2, at least 3 are demanded" in found.refused.detail
    assert foreseen(SitePolicy(assumed_colluders=1), 4, name).refused is None


def test_a_share_that_equal_weights_exceed_cannot_federate() -> None:
    found = foreseen(SitePolicy(largest_share=0.3), 3)
    assert present(found.refused).clause is Clause.LARGEST_SHARE
    assert foreseen(SitePolicy(largest_share=0.3), 4).refused is None


def test_fewer_sites_than_the_study_needs() -> None:
    found = foreseen(SitePolicy(), 4, least=5)
    assert present(found.refused).detail == "enough_contributors: the study needs 5 contributors, 4 are there"


@pytest.mark.parametrize(("contributors", "spare"), [(3, 0), (4, 1), (7, 4)])
def test_how_many_may_be_missing(contributors: int, spare: int) -> None:
    assert foreseen(SitePolicy(), contributors).spare == spare


def test_the_studys_own_colluders_count_too() -> None:
    parameters = STUDY.parameters.model_copy(update={"assumed_colluders": 2})
    rule = rule_for(RuleSpec(name=RuleName.FEDAVG), batch_size=16, grid=parameters.weight_grid)
    names = ("c1", "c2", "c3", "c4")
    assert foresee(STUDY.model_copy(update={"parameters": parameters}), names, rule, SitePolicy()).refused is not None
