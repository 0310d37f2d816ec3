"""Rounds of their own that measure, in a run under the sites' default policies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.datasets.bundled import digits_sites
from harness.demo.studies import DIGITS, study_of
from harness.engine.history import RoundKind, RunEnd, RunHistory
from harness.engine.loop import run_plain
from harness.engine.run_state import Attendance
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, RuleSpec
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy

FEDERATION = digits_sites(0, 6)


def run(rounds: int, missed: tuple[int, ...] = (), policy: SitePolicy | None = None) -> RunHistory:
    of = study_of(replace(DIGITS, rounds=rounds, least_contributors=3), FEDERATION, RuleName.MALLOWS, "0" * 64, 0)
    rule = RuleSpec(name=RuleName.MALLOWS, measure_every=3)
    others = [site.name for site in FEDERATION.contributors[1:]]
    away = Attendance(missed=frozenset((number, name) for number in missed for name in others))
    return run_plain(of.model_copy(update={"rule": rule}), FEDERATION.sites, attendance=away, policy=policy)


def test_six_sites_with_default_policies_complete_without_a_decline() -> None:
    history = run(4)
    assert history.end is RunEnd.COMPLETED
    assert [record.kind.value for record in history.rounds] == ["measured", "released", "released"] * 2
    assert [record.declined for record in history.rounds] == [()] * 6
    assert [len(record.pairs) for record in history.rounds] == [15, 0, 0] * 2
    assert all(len(record.handed_out) >= 3 for record in history.rounds)
    assert history.rounds[0].model_norm != history.rounds[1].model_norm


def test_a_first_measurement_that_too_few_come_to_is_tried_three_times_and_a_later_one_after_the_next_sum() -> None:
    late = run(2, missed=(1,))
    assert [record.kind for record in late.rounds[:2]] == [RoundKind.SKIPPED, RoundKind.MEASURED]
    assert late.shared_rounds == 2
    never = run(2, missed=(1, 2, 3))
    assert never.end is RunEnd.LOCAL_ONLY
    assert "0 contributors have weight left" in never.reason
    again = run(4, missed=(4,))
    kinds = [record.kind.value for record in again.rounds]
    assert kinds == ["measured", "released", "released", "skipped", "released", "measured", "released"]


def test_sites_that_allow_no_pairs_are_heard_before_the_first_round() -> None:
    with pytest.raises(ConfigurationError, match="opens pairs of this site"):
        run(2, policy=SitePolicy(may_open=(Needs.NORMS,)))
