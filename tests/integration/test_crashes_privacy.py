"""kill -9 around the privacy budget: what was spent counts, nothing leaves uncounted, a round has one update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from client_agent.site.budget.spent_budget import budget_memory
from client_agent.site.events import RoundEnd
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import PrivacySpec, Study
from tests.integration.crashes import ROUNDS, SITES, Kill, audit, crash_federation, light_study_of, run_killing
from tests.kit.processes import Federation

SITE: Final = "c1"
KILLS: Final = (
    Kill(SITE, "before_budget_spent", 2),
    Kill(SITE, "after_budget_spent", 2),
    Kill(SITE, "after_update_noised", 2),
)
SPENT_TWICE: Final = {"after_budget_spent"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    policy = SitePolicy(least_isolation=0.0, epsilon=60.0, delta=1e-3)
    with crash_federation(tmp_path_factory.mktemp("privacy"), policy=policy) as running:
        yield running


def noised(federation: Federation, name: str) -> Study:
    fields = light_study_of(federation, name).model_dump()
    return Study.model_validate({**fields, "privacy": PrivacySpec(record_clip=1.0, noise_multiplier=2.0)})


@pytest.mark.parametrize(
    "kill",
    [pytest.param(KILLS[1], id=KILLS[1].point)]
    + [pytest.param(kill, id=kill.point, marks=pytest.mark.soak) for kill in (KILLS[0], KILLS[2])],
)
def test_what_was_spent_before_a_death_counts(federation: Federation, kill: Kill) -> None:
    study = noised(federation, f"noised-{kill.point}".replace("_", "-"))

    outcome = run_killing(federation, study, [kill])

    audit(federation, study)
    assert [record.state for record in outcome.records] == [RoundEnd.RELEASED] * ROUNDS
    for site in SITES:
        kept = budget_memory(
            federation.state(site), federation.parties.keys_of(site).party().signing_key
        ).spent.trainings
        counted = Counter(one.round for one in kept if one.study_digest == study.digest())
        twice = site == SITE and kill.point in SPENT_TWICE
        assert counted == {1: 1, 2: 2 if twice else 1}
