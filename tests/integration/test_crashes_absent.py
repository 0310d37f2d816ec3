"""kill -9 while one site declines and one has left: no round waits for its deadline (docs/protocol.md 4).

The deadline is longer than a test may take. Before round 2 the requester is killed; c4 is paused and c5 leaves; then
the party of the case dies at its step, and everybody goes on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from client_agent.site.events import RoundEnd
from harness.federation.memory.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import finished, rounds_of, wait_for
from tests.integration.crashes import REQUESTER, A, B, Kill
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation
from tests.ports import free_ports

SITES = (REQUESTER, "c1", "c2", "c3", "c4", "c5")
DECLINES, LEFT = "c4", "c5"
ROUNDS = 3
DEADLINE_S = 3600.0
WITHIN_S = 240.0
AT_SERVERS = (
    "after_announcement_stored",
    "after_mail_stored",
    "after_receipt_stored",
    "after_lock_signed",
    "after_challenge_stored",
    "after_queries_stored",
    "after_opening_stored",
    "after_release_set_stored",
    "after_output_stored",
)
KILLS = (
    *(Kill(server, point) for server in (A, B) for point in AT_SERVERS),
    *(
        Kill("c2", point)
        for point in (
            "after_decision_journalled",
            "after_shares_sealed",
            "after_receipt_journalled",
            "after_output_opened",
        )
    ),
    *(
        Kill(REQUESTER, point)
        for point in (
            "after_announced",
            "after_shares_sealed",
            "after_queries_sent",
            "after_release_sent",
            "before_settled",
        )
    ),
)


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    policy = SitePolicy(least_isolation=0.0, least_contributors=2)
    spec = FederationSpec("absent", REQUESTER, light_sites(SITES, policy), seed=5, ports=free_ports())
    with folder_on_disk() as folder, Federation(folder, spec, light_learner) as running:
        yield running


def dies(federation: Federation, party: str) -> None:
    wait_for(f"{party} dies", lambda: federation.exit_code(party) is not None, WITHIN_S, federation.tails)
    assert federation.exit_code(party) == -signal.SIGKILL, federation.running[party].tail()


def begun(federation: Federation, name: str) -> None:
    """Round 1 is over, the requester is dead, c4 declines and c5 has left."""
    study = light_study(federation.parties, name, EROSION, rounds=ROUNDS)
    least = study.parameters.model_copy(update={"least_contributors": 2})
    federation.kill(REQUESTER)
    federation.start_party(REQUESTER, "before_plan_journalled:2")
    federation.hand_in(study.model_copy(update={"parameters": least, "round_deadline_s": DEADLINE_S}))
    dies(federation, REQUESTER)
    federation.journal(DECLINES, name).pause("scanner")
    federation.journal(LEFT, name).leave("withdrawn")


def require_no_wait(federation: Federation, name: str) -> None:
    """Every round was released, with c4's decline in each and c5's in the first after it left."""
    staying = tuple(site for site in SITES if site != LEFT)
    wait_for("the end", finished(federation, name, *staying), WITHIN_S, federation.tails)
    records = rounds_of(federation, REQUESTER, name)
    assert [record.state for record in records] == [RoundEnd.RELEASED] * ROUNDS
    assert [set(record.declined) for record in records] == [set(), {DECLINES, LEFT}, {DECLINES}]
    assert [record.took_part for record in records] == [SITES, SITES[:4], SITES[:4]]


@pytest.mark.soak
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: f"{kill.party}-{kill.point}")
def test_whoever_is_killed_no_round_waits_for_who_is_absent(federation: Federation, kill: Kill) -> None:
    name = f"{kill.party}-{kill.point}".replace("_", "-")[:60]
    begun(federation, name)
    if kill.party != REQUESTER:
        federation.kill(kill.party)
        federation.start_party(kill.party, kill.armed)
    federation.start_party(REQUESTER, kill.armed if kill.party == REQUESTER else None)
    dies(federation, kill.party)
    federation.start_party(kill.party)
    require_no_wait(federation, name)


def test_four_are_killed_at_once(federation: Federation) -> None:
    """Once c4 has declined: B, two contributors and the requester. Without c1 the round cannot go on before."""
    begun(federation, "four-at-once")
    federation.kill("c1")
    federation.start_party(REQUESTER)
    declined = federation.journal(DECLINES, "four-at-once").folder / "rounds" / "000002" / "decline.sealed"
    wait_for("the decline", declined.exists, WITHIN_S, federation.tails)
    killed = (B, "c2", REQUESTER)
    for party in killed:
        federation.kill(party)
    for party in (*killed, "c1"):
        federation.start_party(party)
    require_no_wait(federation, "four-at-once")
