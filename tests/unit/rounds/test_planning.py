"""The purpose and list of the next round, by what the requester knows (docs/protocol.md 4, 9, 13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import PolicyRefusal
from protocol.messages.control import ListedWeight, Purpose, RuleName, RuleSpec
from protocol.policy.memory import ReleasedSum, SiteMemory
from protocol.rounds.planning import Candidate, Done, Numerators, Situation, candidates, lists_to_try, next_purpose
from protocol.rules.interface import MOST_MEASURE_TRIES, ListTerms, Measured, PairDistance, RuleState, SiteFacts
from protocol.rules.registry import rule_for
from tests.unit.parties import parties, study

REQUESTER, CONTRIBUTORS = "user", ("c1", "c2", "c3", "c4")
STUDY = study(parties().roster.message.digest())
GRID = STUDY.parameters.weight_grid
MALLOWS = RuleSpec(name=RuleName.MALLOWS)


def situation(spec: RuleSpec = STUDY.rule, **changes: object) -> Situation:
    rule = rule_for(spec, batch_size=8, grid=GRID, terms=ListTerms())
    facts = tuple(SiteFacts(name=name, samples=8) for name in reversed(CONTRIBUTORS))
    made = Situation(
        study=STUDY,
        rule=rule,
        rule_state=rule.admit(rule.init(()), facts),
        memory=SiteMemory(),
        contributors=CONTRIBUTORS,
        away=(),
        model_version=3,
        least_isolation=0.3,
        list_kept=0,
        exposing=None,
        too_few=False,
        measure_tries=0,
        done=Done(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def measured(of: Situation) -> RuleState:
    """Everybody one apart from everybody, and the requester's update as noisy as that."""
    names = (REQUESTER, *CONTRIBUTORS)
    pairs = tuple(
        PairDistance(first=one, second=other, distance=1.0)
        for place, other in enumerate(names)
        for one in names[:place]
    )
    found = Measured(round=1, pairs=pairs, requester_norm=1.0, variance=0.5, took_part=CONTRIBUTORS)
    return of.rule.apply(of.rule_state, found)


def listed(candidate: Candidate) -> dict[str, int]:
    return {weight.site: weight.numerator for weight in candidate.weights}


EVERYBODY = dict.fromkeys(CONTRIBUTORS, GRID)


def test_what_a_study_has_once_comes_first_in_this_order() -> None:
    done = Done(ranked=False, summarised=False, counted=False)
    order = []
    for field in ("ranked", "summarised", "counted"):
        order.append(next_purpose(situation(done=done)))
        done = replace(done, **{field: True})
    assert order == [Purpose.RANKING, Purpose.SUMMARY, Purpose.COUNTS]
    assert next_purpose(situation(done=done)) is Purpose.UPDATE
    assert next_purpose(situation(MALLOWS, done=Done(counted=False))) is Purpose.COUNTS


def test_the_first_round_of_a_rule_that_measures_is_one_and_is_tried_a_few_times() -> None:
    now = situation(MALLOWS)
    for tries in range(MOST_MEASURE_TRIES):
        assert next_purpose(replace(now, measure_tries=tries)) is Purpose.MEASURE
    given_up = replace(now, measure_tries=MOST_MEASURE_TRIES)
    assert next_purpose(given_up) is Purpose.UPDATE
    with pytest.raises(PolicyRefusal, match="0 contributors have weight left, at least 3"):
        lists_to_try(given_up)


def test_with_a_list_a_measurement_that_failed_waits_for_the_next_sum() -> None:
    now = situation(MALLOWS)
    state = measured(now)
    after = replace(now, rule_state=state)
    assert next_purpose(after) is Purpose.UPDATE
    due = replace(now, rule_state=state.model_copy(update={"since_measured": 9}))
    assert next_purpose(due) is Purpose.MEASURE
    assert next_purpose(replace(due, measure_tries=1)) is Purpose.UPDATE


def test_a_measurement_lists_everybody_who_is_not_away_with_weight_1_and_leaves_the_requesters_out() -> None:
    """Whatever a site weighed before: one of weight 0 too."""
    now = situation(MALLOWS, away=("c2",))
    (only,) = lists_to_try(now)
    assert (listed(only), only.least, only.requester) == ({s: GRID for s in CONTRIBUTORS if s != "c2"}, 3, None)


def test_the_rules_list_carries_the_requesters_weight_and_is_in_the_rosters_order() -> None:
    now = situation(MALLOWS)
    now = replace(now, rule_state=measured(now))
    first = lists_to_try(now)[0]
    assert tuple(listed(first)) == CONTRIBUTORS
    assert first.requester == GRID


def test_a_summary_leaves_out_who_declined_summaries() -> None:
    now = situation(done=Done(summarised=False), unsummarised=("c1",))
    assert listed(lists_to_try(now)[0]) == {s: GRID for s in CONTRIBUTORS if s != "c1"}
    assert listed(lists_to_try(replace(now, done=Done()))[0]) == EVERYBODY


def test_the_last_sums_list_may_come_again_unless_one_of_it_is_away() -> None:
    last = tuple(ListedWeight(site=site, numerator=GRID - 1) for site in CONTRIBUTORS)
    now = situation(memory=SiteMemory(summed_list=last, summed_requester=7), list_kept=1)
    rules, again = lists_to_try(now)
    assert (listed(rules), listed(again), again.requester) == (EVERYBODY, dict.fromkeys(CONTRIBUTORS, GRID - 1), 7)
    assert [candidate.least for candidate in (rules, again)] == [len(CONTRIBUTORS)] * 2
    (only,) = lists_to_try(replace(now, away=("c1",)))
    assert "c1" not in listed(only)
    kept = replace(now, list_kept=0)
    assert [listed(candidate) for candidate in lists_to_try(kept)] == [listed(again)]


def test_against_a_model_that_has_a_sum_there_is_exactly_that_sums_number() -> None:
    sum_of = ReleasedSum(model_version=3, weights=tuple(ListedWeight(site=s, numerator=GRID) for s in CONTRIBUTORS))
    now = situation(memory=SiteMemory(model_version=3, released=sum_of))
    assert {candidate.least for candidate in lists_to_try(now)} == {len(CONTRIBUTORS)}
    with pytest.raises(PolicyRefusal, match="3 contributors have weight left, at least 4"):
        lists_to_try(replace(now, away=("c4",)))
    newer = replace(now, model_version=4, least_isolation=0.0)
    assert {candidate.least for candidate in lists_to_try(newer)} == {STUDY.parameters.least_contributors}


# --- the lists that are tried, in their order ------------------------------------------------------------------------

NEW = (ListedWeight(site="a", numerator=1), ListedWeight(site="b", numerator=1), ListedWeight(site="c", numerator=1))
LAST = tuple(weight.model_copy(update={"numerator": 2}) for weight in NEW)


def tried(
    last: tuple[ListedWeight, ...] = LAST, least: int = 2, **changes: Any
) -> list[tuple[tuple[ListedWeight, ...], int]]:
    asked = {"may_change": True, "careful": True, "too_few": False, "declined": None} | changes
    return [(one.weights, one.least) for one in candidates(Numerators(NEW), Numerators(last), least, **asked)]


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
