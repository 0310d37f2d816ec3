"""kill -9 of servers that keep their state in PostgreSQL, and accidents of the database itself, in whole studies."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from client_agent.site.events import RoundEnd
from protocol.sharing import Side
from tests.integration.agents import finished, rounds_of, wait_for
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    audit,
    crash_federation,
    light_study_of,
    outcome_of,
    run_killing,
)
from tests.integration.test_crashes import SERVER_A, SERVER_B, Case, Undisturbed, ended
from tests.kit.disk import folder_on_disk
from tests.kit.postgres import Cluster, running_cluster
from tests.kit.processes import Federation

pytestmark = pytest.mark.soak
_SERVERS = tuple(pytest.param(case, id=case.name) for case in (*SERVER_A, *SERVER_B))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def federation(cluster: Cluster) -> Iterator[Federation]:
    with folder_on_disk() as folder:
        made = crash_federation(folder)
        made.keep_in({side: cluster.new_database() for side in Side})
        with made:
            yield made


@pytest.fixture(scope="module")
def undisturbed(federation: Federation) -> Undisturbed:
    return Undisturbed(federation)


@pytest.mark.parametrize("case", _SERVERS)
def test_kill_at(federation: Federation, undisturbed: Undisturbed, case: Case) -> None:
    study = light_study_of(federation, case.name.replace("_", "-").lower()[:60].rstrip("-"), large=case.large)
    outcome = run_killing(federation, study, case.kills)
    audit(federation, study)
    assert ended(outcome) in case.ends, [(r.round, r.state.value, r.attempt, r.reason) for r in outcome.records]
    released = sum(record.state is RoundEnd.RELEASED for record in outcome.records)
    assert set(outcome.models) == {undisturbed.model_after(released, case.large)}


@pytest.mark.parametrize("accident", ["dies", "breaks connections"])
def test_the_database_has_an_accident(
    federation: Federation, undisturbed: Undisturbed, cluster: Cluster, accident: str
) -> None:
    """Nothing that was stored is lost, what was not is sent again."""
    study = light_study_of(federation, f"database-{accident.replace(' ', '-')}")
    federation.hand_in(study)
    for _ in range(3):
        time.sleep(0.7)
        if accident == "dies":
            cluster.stop()
            cluster.start()
        else:
            for url in federation.databases.values():
                cluster.break_connections(url)
    wait_for("the end", finished(federation, study.name, *SITES), 120.0, federation.site_tails)
    audit(federation, study)
    outcome = outcome_of(federation, study)
    records = rounds_of(federation, REQUESTER, study.name)
    assert [record.round for record in records] == list(range(1, ROUNDS + 1))
    released = sum(record.state is RoundEnd.RELEASED for record in records)
    assert set(outcome.models) == {undisturbed.model_after(released, large=False)}
