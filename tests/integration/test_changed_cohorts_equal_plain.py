"""A study whose cohort changed in the middle, by changes of the roster, is the plain run over the same cohorts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import LocalData
from client_agent.site.events import RoundEnd
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.studies import study_of
from harness.engine.history import RoundKind
from harness.engine.run_state import Attendance
from harness.federation.learners import torch_learner
from harness.federation.processes import FederationSpec, SiteSpec
from protocol.messages.control import RuleName
from protocol.policy.site_policy import SitePolicy
from protocol.roster.chain import Wanted, claimed
from tests.integration.agents import final_model, finished, rounds_of
from tests.integration.roster_changes import (
    chain_of,
    change_roster,
    in_force,
    renew_keys,
    slow_federation,
    write_keys,
)
from tests.kit.bounds.error_bound import bound_of_run
from tests.ports import free_ports
from tests.unit.parties import party_keys
from tests.unlimited import LONG_BREAST_CANCER, run_plain

pytestmark = pytest.mark.uncounted

ROUNDS = 7
ROUND_S = 20.0
DATA = breast_cancer_five_hospitals(0)
REQUESTER, LEAVES, RENEWS, STAYS, JOINS = (site.name for site in DATA.sites)
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2)
SPECS = {
    site.name: SiteSpec(site.name, LocalData(site.train, site.test, names=DATA.names), POLICY) for site in DATA.sites
}


def test_secure_and_plain_are_equal_over_cohorts_that_changed_in_the_middle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One hospital joins, one is revoked, one renews its keys; who took part when is what the plain run is told."""
    first = tuple(SPECS[name] for name in (REQUESTER, LEAVES, RENEWS, STAYS))
    spec = FederationSpec("changing", REQUESTER, first, 0, ports=free_ports(), bootstrap_samples=0)
    with slow_federation(spec, tmp_path, ROUND_S, torch_learner) as running:
        digest = running.parties.roster.message.digest()
        settings = replace(LONG_BREAST_CANCER, rounds=ROUNDS, least_contributors=2)
        of = study_of(settings, DATA, RuleName.FEDAVG, digest, 0).model_copy(update={"round_deadline_s": 60.0})

        def cohorts() -> list[tuple[str, ...]]:
            return [record.took_part for record in rounds_of(running, REQUESTER, of.name)]

        running.start()
        running.hand_in(of)
        running.until("a round", lambda: len(cohorts()) >= 1)
        keys = party_keys(JOINS)
        write_keys(running, keys)
        running.write_site(SPECS[JOINS])
        samples = len(SPECS[JOINS].data.train)
        change_roster(running, Wanted(given=(claimed(keys, chain_of(running).first_digest, samples=samples),)))
        running.until("the change is in force", in_force(running, 1))
        running.start(JOINS)
        running.until("it takes part", lambda: JOINS in cohorts()[-1])
        running.stop_agents(LEAVES, RENEWS)
        change_roster(running, Wanted(remove=(LEAVES,)))
        renew_keys(running, RENEWS)
        running.until("both changes are in force", in_force(running, 3))
        running.start(RENEWS)
        ends = (REQUESTER, RENEWS, STAYS, JOINS)
        running.until("the end", finished(running, of.name, *ends))
        records = rounds_of(running, REQUESTER, of.name)
        models = {final_model(running, site, of.name) for site in ends}
    took_part = [record.took_part for record in records]
    assert [record.state for record in records] == [RoundEnd.RELEASED] * ROUNDS
    assert len({frozenset(cohort) for cohort in took_part}) >= 3
    assert (JOINS in took_part[0], LEAVES in took_part[0]) == (False, True)
    assert (JOINS in took_part[-1], LEAVES in took_part[-1], RENEWS in took_part[-1]) == (True, False, True)
    missed = {
        (number, site.name)
        for number, cohort in enumerate(took_part, 1)
        for site in DATA.sites
        if site.name not in cohort
    }
    plain = run_plain(of, DATA.sites, policy=POLICY, attendance=Attendance(missed=frozenset(missed)))
    assert [record.kind for record in plain.rounds] == [RoundKind.RELEASED] * ROUNDS
    assert [{REQUESTER, *record.took_part} for record in plain.rounds] == [set(cohort) for cohort in took_part]
    (model,) = models
    difference = float(np.linalg.norm(np.frombuffer(model, dtype="<f4").astype(np.float64) - plain.final_model))
    bound = bound_of_run(plain, of, DATA.sites)
    with capsys.disabled():
        print(f"\ncohorts that changed: models differ by {difference:.2e}, bound {bound:.2e}")
    assert 0 < difference <= bound
    assert bound < 0.01 * np.linalg.norm(plain.final_model)  # it says something
