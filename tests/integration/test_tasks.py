"""Studies of other tasks than classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_agent.learning.data import LocalData
from client_agent.learning.scores import METRICS, FinalScores, value_of
from client_agent.learning.study_file import checked_study_table, study_from_table
from client_agent.site.events import RoundEnd
from client_agent.site.journal import FINAL_SCORES
from harness.datasets.bundled import breast_cancer_survival, diabetes_five_practices
from harness.datasets.site_data import Federation
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import torch_learner
from harness.federation.processes import FederationSpec, SiteSpec
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import journal, rounds_of, run_to_end
from tests.kit.present import present
from tests.kit.small_runs import run_plain
from tests.ports import free_ports

pytestmark = pytest.mark.uncounted

ROUNDS = 2
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2)


def tables(federation: Federation, **task: Any) -> dict[str, Any]:
    return {
        "name": "tried",
        "rounds": ROUNDS,
        "seed": 3,
        "task": {"kind": federation.task.value, **task},
        "model": {"kind": "linear", "inputs": list(federation.inputs), "outputs": 1},
        "rule": {"name": "fedavg"},
        "training": {"batch_size": 256, "server_learning_rate": 0.2},
        "parameters": {"clip_norm": 8.0, "least_contributors": 4},
    }


@pytest.mark.parametrize(
    ("federation", "task"),
    [(breast_cancer_survival(0), {"ties": "breslow"}), (diabetes_five_practices(0), {"loss": "huber"})],
    ids=["survival", "regression"],
)
def test_a_study_of_another_task_runs_over_two_servers(
    tmp_path: Path, federation: Federation, task: dict[str, Any]
) -> None:
    data = {site.name: LocalData(site.train, site.test, names=federation.names) for site in federation.sites}
    names = tuple(data)
    sites = tuple(SiteSpec(name, examples, POLICY) for name, examples in data.items())
    spec = FederationSpec("tasks", names[0], sites, seed=5, ports=free_ports(), bootstrap_samples=20)
    with InMemoryFederation(spec, tmp_path, torch_learner) as running:
        roster = running.parties.roster.message
        study = study_from_table(checked_study_table(tables(federation, **task), "test"), "test", roster, None)
        running.start()
        run_to_end(running, study)
        records = {site: rounds_of(running, site, study.name) for site in names}
        own_of = {site: journal(running, site, study.name) for site in names}
        finals = {site: kept.read(kept.folder / FINAL_SCORES, FinalScores) for site, kept in own_of.items()}
    plain = run_plain(study, federation.sites, policy=POLICY)
    metric, *others = METRICS[federation.task]
    own = value_of(plain.rounds[-1].test_scores, metric)
    for site in names:
        assert [record.state for record in records[site]] == [RoundEnd.RELEASED] * ROUNDS
        assert all(record.test_accuracy is None for record in records[site])
        final = present(finals[site])
        assert value_of(final.scores, metric) == value_of(records[site][-1].test_scores, metric) is not None
        assert {score.name for score in final.scores} == {metric, *others}
        assert all(score.low is not None for score in final.scores if score.value is not None)
    assert value_of(records[names[0]][-1].test_scores, metric) == pytest.approx(own, abs=0.02)
