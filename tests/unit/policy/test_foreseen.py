"""What a policy lets a roster do, foreseen before a study is created."""

from __future__ import annotations

import pytest

from protocol.errors import Clause
from protocol.messages.control import RuleName, RuleSpec
from protocol.policy.clauses import foresee
from protocol.policy.site_policy import SitePolicy
from protocol.rules.registry import rule_for
from tests.unit.client_agent.federation import study

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
    assert found.refused is not None
    assert found.refused.clause is Clause.LARGEST_SHARE
    assert foreseen(SitePolicy(largest_share=0.3), 4).refused is None


def test_fewer_sites_than_the_study_needs() -> None:
    found = foreseen(SitePolicy(), 4, least=5)
    assert found.refused is not None
    assert found.refused.detail == "enough_contributors: the study needs 5 contributors, 4 are there"


@pytest.mark.parametrize(("contributors", "spare"), [(3, 0), (4, 1), (7, 4)])
def test_how_many_may_be_missing(contributors: int, spare: int) -> None:
    assert foreseen(SitePolicy(), contributors).spare == spare


def test_the_studys_own_colluders_count_too() -> None:
    parameters = STUDY.parameters.model_copy(update={"assumed_colluders": 2})
    rule = rule_for(RuleSpec(name=RuleName.FEDAVG), batch_size=16, grid=parameters.weight_grid)
    names = ("c1", "c2", "c3", "c4")
    assert foresee(STUDY.model_copy(update={"parameters": parameters}), names, rule, SitePolicy()).refused is not None
