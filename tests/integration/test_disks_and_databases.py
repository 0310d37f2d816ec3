"""A disk without room, and a database that goes back: what is refused, and how a study goes on after it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.events import RoundEnd
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.learners import light_study
from protocol.messages.control import RuleName, RuleSpec
from protocol.sharing import Side
from tests.integration.agents import rounds_of, wait_for
from tests.integration.crashes import REQUESTER, A, crash_federation, over, recorded
from tests.integration.test_server_round import NUMERATORS, expected_sum, updates
from tests.integration.test_server_round import SITES as SCRIPTED
from tests.kit.disk import fill, folder_on_disk, small_disk
from tests.kit.postgres import running_cluster
from tests.kit.processes import Federation, prepare_servers, running_servers

_DIMENSION = 20_000
_DISK_BYTES = 24 * 2**20
_RESERVE_BYTES = 4 * 2**20


@pytest.mark.parametrize("side", list(Side))
def test_a_full_disk_refuses_and_recovers(tmp_path: Path, side: Side) -> None:
    """One server has its data on a disk of 24 MB, full up to the reserve and in the next round to the last byte."""
    federation = prepare_servers(tmp_path, SCRIPTED, limits={"disk_reserve_bytes": _RESERVE_BYTES})
    data = federation.folder / OPERATOR_NAMES[side] / "data"
    with (
        small_disk(data, _DISK_BYTES) as disk,
        running_servers(federation),
        closing(ScriptedRequester(federation, make_study(federation, _DIMENSION))) as sites,
    ):
        sites.create()
        for number, leave_bytes in enumerate((_RESERVE_BYTES, 0), start=1):
            refuses_and_recovers(sites, number, side, disk, leave_bytes)


def refuses_and_recovers(
    sites: ScriptedRequester[Federation], number: int, side: Side, disk: Path, leave_bytes: int
) -> None:
    announcement = sites.announcement(number)
    sites.announce(announcement)
    x = updates(number, dimension=_DIMENSION)
    sealed = {site: sites.seal_contribution(site, x[site], announcement) for site in SCRIPTED}
    receipts = sites.contribute(SCRIPTED[0], sealed[SCRIPTED[0]], number)

    filler = fill(disk, leave_bytes)
    before = sorted(p.name for p in (disk / "shares").iterdir())
    for site in SCRIPTED[1:3]:
        answer = sites.clients[site].send(side, "PUT", sites.contribution_path(number), sealed[site][side])
        assert answer.status_code == 507, (answer.status_code, answer.text)
        assert answer.json()["code"] == "storage_full"
    assert sorted(p.name for p in (disk / "shares").iterdir()) == before
    filler.unlink()

    assert sites.contribute(SCRIPTED[0], sealed[SCRIPTED[0]], number) == receipts
    for site in SCRIPTED[1:]:
        sites.contribute(site, sealed[site], number)
    sites.release(sites.measured(number, x[sites.requester], NUMERATORS))
    sites.released(number)
    assert np.array_equal(sites.output(SCRIPTED[1], number), expected_sum(x))


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
