"""The roster changes while a study runs: a hospital joins, another is revoked (docs/protocol.md 20)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from client_agent.learning.learner import Learner, Vector
from client_agent.network.held_roster import ACCEPTED
from client_agent.network.server_client import RetryPolicy, ServerClient
from client_agent.settings import AgentSettings
from harness.federation.memory.clocks import Stop, VirtualClock
from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import Odd, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.errors import Unavailable, UnknownResource
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from protocol.wire.chain.file import parse_chain
from protocol.wire.chain.making import Wanted
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import RuleName, RuleSpec, Study
from tests.integration.agents import final_model, finished, rounds_of
from tests.integration.roster_changes import change_roster, newcomer
from tests.ports import free_ports

SITES = ("requester", "c1", "c2", "c3")
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2)
ROUNDS = 9
ROUND_S = 20.0


class Slow(Odd):
    """An update takes a while on the federation's clock."""

    def __init__(self, inner: Learner, clock: VirtualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def update(self, model: Vector, round_number: int) -> Vector:
        self._clock.wait(Stop(self._clock), ROUND_S)
        return super().update(model, round_number)


def federation(folder: Path) -> InMemoryFederation:
    spec = FederationSpec("changing", SITES[0], light_sites(SITES, POLICY), seed=5, ports=free_ports())
    made: list[InMemoryFederation] = []

    def slow(settings: AgentSettings, study: Study, seed: int) -> Learner:
        return cast(Learner, Slow(light_learner(settings, study, seed), made[0].clock))

    made.append(InMemoryFederation(spec, folder, slow))
    return made[0]


def study_of(running: InMemoryFederation) -> Study:
    study = light_study(running.parties, "trial", RuleSpec(name=RuleName.FEDAVG), rounds=ROUNDS)
    return study.model_copy(
        update={"parameters": study.parameters.model_copy(update={"least_contributors": 2}), "round_deadline_s": 60.0}
    )


def in_force(running: InMemoryFederation, number: int) -> Callable[[], bool]:
    return lambda: all(app.state.server.chain.number == number for app in running.servers.apps.values())


def as_site(running: InMemoryFederation, keys: PartyKeys, side: Side) -> ServerClient:
    operator = running.parties.roster.message.operator(side)
    once = RetryPolicy(attempts=1)
    transport = running.servers.transport()
    return ServerClient(side, operator, keys, transport, retry=once, clock=running.clock.now)


def test_a_hospital_joins_a_running_study_and_another_is_revoked_in_the_middle(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        running.start()
        running.hand_in(study_of(running))
        running.until("a round", lambda: len(rounds_of(running, "requester", "trial")) >= 1)
        chain = change_roster(running, Wanted(given=(newcomer(running, "c4", POLICY),)))
        running.until("the change is in force", in_force(running, 1))
        running.start("c4")
        running.until("c4 takes part", lambda: "c4" in rounds_of(running, "requester", "trial")[-1].took_part)
        running.stop_agents("c1")
        chain = change_roster(running, Wanted(remove=("c1",)))
        running.until("the change is in force", in_force(running, 2))
        for side in Side:
            client = as_site(running, running.parties.keys_of("c1"), side)
            with pytest.raises(Unavailable, match="401"):
                client.view("trial")
            with pytest.raises(UnknownResource, match="2 changes"):
                as_site(running, running.parties.keys_of("c2"), side).roster_change(3)
        running.until("the end", finished(running, "trial", "requester", "c2", "c3", "c4"))
        records = rounds_of(running, "requester", "trial")
        cohorts = [set(record.took_part) for record in records]
        assert {"c1", "c2", "c3"} <= cohorts[0]
        assert "c4" not in cohorts[0]
        assert {"c2", "c3", "c4"} <= cohorts[-1]
        assert "c1" not in cohorts[-1]
        assert len({final_model(running, site, "trial") for site in ("requester", "c2", "c3", "c4")}) == 1
        for place in (running.state("requester"), running.state("c4"), running.state("c2")):
            kept = place / ACCEPTED
            held = parse_chain(kept.read_text(), "kept") if kept.exists() else chain
            assert held.head_digest == chain.head_digest
        last = running.servers.apps[Side.A].state.server.store.current_round(study_of(running).digest())
        assert last.announcement.message.roster_head == chain.head_digest
