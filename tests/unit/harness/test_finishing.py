"""The local finish of a run: a record of its own, on examples that the shared rounds have not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client_agent.learning.at_requester.finish_table import FinishTable
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.studies import study_of
from harness.engine.history import RoundKind
from harness.engine.loop import run_rounds, without_held_out
from harness.engine.run_state import Conditions
from harness.engine.updates import PlainSum
from protocol.messages.control import RuleName
from protocol.policy.site_policy import SitePolicy
from tests.unlimited import LONG_BREAST_CANCER

FEDERATION = breast_cancer_five_hospitals(0)


@pytest.mark.parametrize("rule", [RuleName.FEDAVG, RuleName.LOCAL])
def test_the_finish_follows_the_rounds_of_every_rule(rule: RuleName) -> None:
    of = study_of(replace(LONG_BREAST_CANCER, rounds=2), FEDERATION, rule, "0" * 64, 0)
    table, policy = FinishTable(held_out=0.3), SitePolicy(least_isolation=0.0)
    sites, held = without_held_out(FEDERATION.sites, table, 0)
    assert len(sites[0].train) + len(held) == len(FEDERATION.requester.train)
    shared = run_rounds(of, sites, PlainSum(), Conditions(policy=policy), protection="plain")
    history = run_rounds(of, FEDERATION.sites, PlainSum(), Conditions(policy=policy, finish=table), protection="plain")
    assert history.rounds[:2] == shared.rounds
    assert [record.kind for record in history.rounds[2:]] == [RoundKind.FINISHED]
    assert "local finish with pull" in history.reason
    assert not np.array_equal(history.final_model, shared.final_model)
    assert history.rounds[-1].test_loss < shared.rounds[-1].test_loss
