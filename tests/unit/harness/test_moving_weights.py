"""What is opened does not depend on whether the run is protected, whatever weights the round has."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.studies import study_of
from harness.engine.history import RoundKind, RunHistory
from harness.engine.loop import run_rounds
from harness.engine.protected_sum import secure_sum
from harness.engine.run_state import Conditions
from harness.engine.updates import PlainSum, Summing
from protocol.messages.control import RuleName, Study
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Measured, RuleState, SiteFacts, standings
from tests.unlimited import LONG_BREAST_CANCER

FEDERATION = breast_cancer_five_hospitals(0)
FACTORS = (0.9, 0.8, 0.7, 0.6)


@dataclass(frozen=True)
class Moving(FedAvg):
    """Each site's weight shrinks by a factor of its own in every round."""

    opens: Needs = Needs.PAIRS

    @property
    def needs(self) -> Needs:
        return self.opens

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        return state if state.sites else RuleState(sites=standings(sites, 1.0))

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        moved = (
            site.model_copy(update={"alpha": site.alpha * by}) for site, by in zip(state.sites, FACTORS, strict=True)
        )
        return RuleState(sites=tuple(moved))


def history(of: Study, rule: Moving, summing: Summing) -> RunHistory:
    policy = SitePolicy(least_contributors=1, largest_share=1.0, least_isolation=0.0)
    return run_rounds(of, FEDERATION.sites, summing, Conditions(policy=policy, rule=rule), protection="")


@pytest.mark.parametrize("opens", [Needs.DISTANCES, Needs.NORMS, Needs.PAIRS, Needs.INNER_PRODUCTS])
def test_moving_weights_open_the_same_in_the_open_and_protected(opens: Needs) -> None:
    of = study_of(replace(LONG_BREAST_CANCER, rounds=3), FEDERATION, RuleName.FEDAVG, "0" * 64, 0)
    assert of.parameters.exact_distances
    rule = Moving(of.parameters.weight_grid, opens=opens)
    plain, secure = history(of, rule, PlainSum()), history(of, rule, secure_sum(of, FEDERATION.sites, "dealer"))
    lists = [[weight.numerator for weight in record.handed_out] for record in plain.rounds]
    assert lists[0] == [32] * 4
    assert len(set(lists[2])) == 4
    for record, twin in zip(plain.rounds, secure.rounds, strict=True):
        assert record.kind is twin.kind is RoundKind.RELEASED
        assert record.handed_out == twin.handed_out
        ours, theirs = (
            np.array([one.value for one in (*r.distances, *r.norms, *r.inner_products)] + [p.value for p in r.pairs])
            for r in (record, twin)
        )
        assert ours.size == (10 if opens is Needs.PAIRS else 4)
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(secure.final_model, plain.final_model, atol=1e-4)
