"""Full disks and accidents of a server's database: a study is only delayed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.events import RoundEnd
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.federation.learners import light_study
from protocol.messages.control import RuleName, RuleSpec
from protocol.sharing import Side
from tests.integration.agents import rounds_of, wait_for
from tests.integration.crash_modes import CrashProcesses
from tests.integration.crashes import (
    POSTGRESQL,
    REQUESTER,
    ROUNDS,
    SQLITE,
    A,
    B,
    End,
    audit,
    crash_federation,
    ended,
    light_study_of,
    over,
    recorded,
    run_killing,
)
from tests.integration.test_server_round import NUMERATORS, updates
from tests.integration.test_server_round import SITES as SCRIPTED
from tests.kit.disk import fill, folder_on_disk, small_disk
from tests.kit.postgres import running_cluster
from tests.kit.processes import Federation, prepare_servers, running_servers

# --- full disks -------------------------------------------------------------------------------------------------------


def test_a_full_disk_only_delays_the_study(crash_processes: CrashProcesses) -> None:
    """A share meets a full disk at B: refused with 507 and nothing stored; the site sends the same bytes again."""
    of = crash_processes.of("plain", SQLITE)
    federation, reference = of.federation, of.run(large=False)
    federation.kill(B)
    federation.start_party(B, "disk_full:2")
    study = light_study_of(federation, "disk-full")
    outcome = run_killing(federation, study)
    audit(federation, study)
    assert ended(outcome) is End.REPLAYED
    assert outcome.models == reference.models
    refused = [
        line for line in (federation.folder / B / "process.log").read_text().splitlines() if "storage_full" in line
    ]
    assert len(refused) == 1
    assert "nothing was stored" in refused[0]
    federation.kill(B)
    federation.start_party(B)


_DIMENSION = 20_000
_DISK_BYTES = 24 * 2**20
_RESERVE_BYTES = 4 * 2**20


@pytest.fixture(params=list(Side))
def sites(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScriptedRequester]:
    """Both servers, one of them with its data on a disk of 24 MB."""
    federation = prepare_servers(tmp_path, SCRIPTED, limits={"disk_reserve_bytes": _RESERVE_BYTES})
    with small_disk(data_of(federation, request.param), _DISK_BYTES), running_servers(federation):
        made = ScriptedRequester(federation, make_study(federation, _DIMENSION))
        made.create()
        yield made
        made.close()


def data_of(federation: Federation, side: Side) -> Path:
    return federation.folder / f"operator-{side.value}" / "data"


@pytest.mark.parametrize("leave_bytes", [_RESERVE_BYTES, 0], ids=["reserve", "nothing"])
def test_a_full_disk_refuses_and_recovers(
    sites: ScriptedRequester, request: pytest.FixtureRequest, leave_bytes: int
) -> None:
    side = next(s for s in Side if (data_of(sites.federation, s)).is_mount())
    disk = data_of(sites.federation, side)
    announcement = sites.announcement(1)
    sites.announce(announcement)
    x = updates(1, dimension=_DIMENSION)
    sealed = {site: sites.seal_contribution(site, x[site], announcement) for site in SCRIPTED}
    receipts = sites.contribute(SCRIPTED[0], sealed[SCRIPTED[0]], 1)
    path = sites.contribution_path(1)

    filler = fill(disk, leave_bytes)
    before = sorted(p.name for p in (disk / "shares").iterdir())
    for site in SCRIPTED[1:3]:
        answer = sites.clients[site].send(side, "PUT", path, sealed[site][side])
        assert answer.status_code == 507, (answer.status_code, answer.text)
        assert answer.json()["code"] == "storage_full"
    assert sorted(p.name for p in (disk / "shares").iterdir()) == before
    filler.unlink()

    assert sites.contribute(SCRIPTED[0], sealed[SCRIPTED[0]], 1) == receipts
    for site in SCRIPTED[1:]:
        sites.contribute(site, sealed[site], 1)
    sites.release(sites.measured(1, x[sites.requester], NUMERATORS))
    sites.released(1)
    assert np.array_equal(sites.output(SCRIPTED[1], 1), sum(x.values()))


# --- accidents of a server's database ---------------------------------------------------------------------------------

_MANY_ROUNDS = 12
_REFUSES = "moiety server accept-rollback"


@pytest.mark.soak
@pytest.mark.parametrize("accident", ["dies", "breaks connections"])
def test_the_database_has_an_accident(crash_processes: CrashProcesses, accident: str) -> None:
    """Nothing that was stored is lost, what was not is sent again."""
    undisturbed = crash_processes.of("plain", POSTGRESQL)
    federation, cluster = undisturbed.federation, crash_processes.cluster
    assert cluster is not None
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
    outcome = over(federation, study)
    assert [record.round for record in outcome.records] == list(range(1, ROUNDS + 1))
    released = sum(record.state is RoundEnd.RELEASED for record in outcome.records)
    assert set(outcome.models) == {undisturbed.model_after(released, large=False)}


@pytest.mark.soak
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
            recorded(federation, study, 1)
            replica = of_a.replica()
            recorded(federation, study, len(rounds_of(federation, REQUESTER, study.name)) + 2)
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
            outcome = over(federation, study, 240.0)
            told = [(one.round, one.state.value, one.attempt, one.reason) for one in outcome.records]
            assert [number for number, *_ in told] == list(range(1, _MANY_ROUNDS + 1)), told
            assert sum(end == RoundEnd.RELEASED for _, end, *_ in told) >= _MANY_ROUNDS - 2, told
            assert len(set(outcome.models)) == 1
