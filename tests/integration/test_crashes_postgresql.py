"""kill -9 of servers that keep their state in PostgreSQL, and accidents of the database itself, in whole studies."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from client_agent.site.events import RoundEnd
from harness.federation.memory.learners import light_study
from protocol.sharing import Side
from protocol.wire.messages import RuleName, RuleSpec, Study
from tests.integration.agents import finished, rounds_of, wait_for
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    A,
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
_MANY_ROUNDS = 12
_REFUSES = "moiety server restored"
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


@pytest.mark.timeout(600)
def test_a_replica_that_lags_takes_over_and_the_newest_database_goes_on() -> None:
    """Side A's database goes back by a round under a running server, and under one that starts on it: it refuses, and
    says what to do; with the newest database back the study goes on.
    """
    with running_cluster() as of_a, running_cluster() as of_b, folder_on_disk() as folder:
        federation = crash_federation(folder)
        federation.keep_in({Side.A: of_a.new_database(), Side.B: of_b.new_database()})
        with federation:
            rule = RuleSpec(name=RuleName.FEDAVG)  # under which no weight erodes, however many rounds there are
            study = light_study(federation.parties, "lagging-replica", rule, rounds=_MANY_ROUNDS)
            federation.hand_in(study)
            _recorded(federation, study, 1)
            replica = of_a.replica()
            _recorded(federation, study, len(rounds_of(federation, REQUESTER, study.name)) + 2)
            of_a.fail_over(replica)
            log = federation.folder / A / "process.log"
            wait_for("a running server refuses", lambda: _REFUSES in log.read_text(), 60.0, federation.tails)
            federation.kill(A)
            said = log.read_text().count(_REFUSES)
            federation.start_party(A)
            wait_for("a new start refuses", lambda: log.read_text().count(_REFUSES) > said, 60.0, federation.tails)
            federation.kill(A)
            of_a.fail_over(of_a.folder / "data")
            federation.start_party(A)
            wait_for("the end", finished(federation, study.name, *SITES), 240.0, federation.site_tails)
            audit(federation, study)
            outcome = outcome_of(federation, study)
            told = [(one.round, one.state.value, one.attempt, one.reason) for one in outcome.records]
            assert [number for number, *_ in told] == list(range(1, _MANY_ROUNDS + 1)), told
            assert sum(end == RoundEnd.RELEASED for _, end, *_ in told) >= _MANY_ROUNDS - 2, told
            assert len(set(outcome.models)) == 1


def _recorded(federation: Federation, study: Study, rounds: int) -> None:
    wait_for(f"round {rounds}", lambda: len(rounds_of(federation, REQUESTER, study.name)) >= rounds, 60.0)
