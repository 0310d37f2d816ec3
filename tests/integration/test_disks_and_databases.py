"""A disk without room, and a database that goes back: what is refused, and how a study goes on after it."""

from __future__ import annotations

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
from tests.integration.crashes import REQUESTER, A, crash_federation, over, recorded
from tests.integration.test_server_round import NUMERATORS, updates
from tests.integration.test_server_round import SITES as SCRIPTED
from tests.kit.disk import fill, folder_on_disk, small_disk
from tests.kit.postgres import running_cluster
from tests.kit.processes import Federation, prepare_servers, running_servers

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


_MANY_ROUNDS = 12
_REFUSES = "moiety server accept-rollback"


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
