"""kill -9 in the round that measures updates: opened once, or lost and said so (docs/protocol.md 8).

Some run in every test run, all of them in ``make soak``. Deaths in the sums that follow are those of any rule.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_agent.requester.state import RequesterState
from client_agent.site.events import RoundEnd
from protocol.wire.messages import Purpose, RuleName, RuleSpec, Study
from tests.integration.agents import journal
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    A,
    B,
    Kill,
    audit,
    crash_federation,
    light_study_of,
    run_killing,
)
from tests.kit.processes import Federation

QUICK = (
    Kill(A, "after_opening_stored"),
    Kill(REQUESTER, "before_opened_journalled"),
    Kill("c1", "after_shares_sealed"),
)
SLOW = (
    Kill(A, "after_correlations_marked"),
    Kill(A, "after_outcome_stored"),
    Kill(B, "before_opening_stored"),
    Kill(B, "before_outcome_stored"),
    Kill(B, "after_outcome_stored"),
    Kill(REQUESTER, "after_plan_journalled"),
    Kill(REQUESTER, "after_opened_journalled"),
    Kill(REQUESTER, "before_settled"),
    Kill("c1", "after_decision_journalled"),
    Kill("c1", "before_round_recorded"),
)


def named(kill: Kill) -> str:
    return f"{kill.party}-{kill.point}"


REST = [pytest.param(kill, id=named(kill), marks=pytest.mark.soak) for kill in SLOW]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with crash_federation(tmp_path_factory.mktemp("measuring")) as running:
        yield running


def measuring_study(federation: Federation, kill: Kill) -> Study:
    name = f"measuring-{kill.party}-{kill.point}".replace("_", "-")
    return light_study_of(federation, name).model_copy(update={"rule": RuleSpec(name=RuleName.MALLOWS)})


@pytest.mark.parametrize("kill", [pytest.param(kill, id=named(kill)) for kill in QUICK] + REST)
def test_a_model_is_measured_once_wherever_a_party_dies(federation: Federation, kill: Kill) -> None:
    study = measuring_study(federation, kill)
    outcome = run_killing(federation, study, [kill])
    audit(federation, study)
    assert len(set(outcome.models)) == 1
    assert [(r.round, r.purpose, r.state) for r in outcome.records] == [
        (1, Purpose.MEASURE, RoundEnd.CLOSED),
        *((number, Purpose.UPDATE, RoundEnd.RELEASED) for number in range(2, 2 + ROUNDS)),
    ]
    measured, *sums = outcome.records
    assert (len(measured.pairs), measured.took_part) == (6, SITES)
    assert all(record.took_part == SITES and not record.declined for record in sums)


def test_a_half_that_died_with_its_server_is_not_asked_for_again(federation: Federation) -> None:
    """B holds its half: whoever has A's too could open it, so no site is measured over this model again."""
    kill = Kill(A, "after_masked_sent")
    study = measuring_study(federation, kill)
    first, *others = run_killing(federation, study, [kill]).records
    assert (first.purpose, first.state, first.pairs) == (Purpose.MEASURE, RoundEnd.CLOSED, ())
    assert first.reason.startswith("one server lost its half of what is opened")
    assert [record.state for record in others] == [RoundEnd.ALONE] * ROUNDS
    state = journal(federation, REQUESTER, study.name).site_state()
    assert state is not None
    assert (state.finished or "").startswith("local_only: measured_twice: round 1 measured model 0 already")


@pytest.mark.parametrize("point", ["after_output_opened", pytest.param("before_settled", marks=pytest.mark.soak)])
def test_shrinkage_learns_from_a_sum_at_whose_opening_the_requester_died(federation: Federation, point: str) -> None:
    """The model has stepped, or not: what the rule needs of the sum was kept before it could."""
    name = f"shrinkage-{point}".replace("_", "-")
    study = light_study_of(federation, name).model_copy(update={"rule": RuleSpec(name=RuleName.SHRINKAGE)})
    outcome = run_killing(federation, study, [Kill(REQUESTER, point)])
    audit(federation, study)
    assert len(set(outcome.models)) == 1
    assert [record.state for record in outcome.records] == [RoundEnd.RELEASED] * ROUNDS
    (mean,) = requester_state(federation, study).rule_state.means
    assert mean.rounds == ROUNDS


def requester_state(federation: Federation, study: Study) -> RequesterState:
    own = journal(federation, REQUESTER, study.name)
    found = own.read(own.folder / "requester.json", RequesterState)
    assert found is not None
    return found
