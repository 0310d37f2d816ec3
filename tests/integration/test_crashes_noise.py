"""kill -9 around a server's noise: what it is drawn from is kept before anything depends on it, and one sum has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from client_agent.site.events import RoundEnd
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import PrivacySpec, RuleName, RuleSpec, Study
from tests.integration.crashes import ROUNDS, A, B, Kill, audit, crash_federation, light_study_of, run_killing
from tests.kit.processes import Federation

KILLS: Final = tuple(Kill(party, f"{when}_noise_stored") for party in (A, B) for when in ("before", "after"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with crash_federation(tmp_path_factory.mktemp("noise"), policy=SitePolicy(least_isolation=0.0)) as running:
        yield running


def noised(federation: Federation, name: str) -> Study:
    spec = PrivacySpec(unit="site", noise_multiplier=2.0)
    fields = light_study_of(federation, name).model_dump()
    return Study.model_validate({**fields, "rule": RuleSpec(name=RuleName.FEDAVG), "privacy": spec})


@pytest.mark.parametrize(
    "kill",
    [pytest.param(KILLS[3], id="b-after")]
    + [pytest.param(one, id=f"{one.party}-{one.point}", marks=pytest.mark.soak) for one in KILLS[:3]],
)
def test_a_server_that_dies_around_its_noise_serves_one_sum(federation: Federation, kill: Kill) -> None:
    """All sites have the same model in the end, so that nobody has two halves of two noises."""
    study = noised(federation, f"noise-{kill.party}-{kill.point}".replace("_", "-"))

    outcome = run_killing(federation, study, [kill])

    audit(federation, study)
    assert [record.state for record in outcome.records] == [RoundEnd.RELEASED] * ROUNDS
    assert len(set(outcome.models)) == 1
