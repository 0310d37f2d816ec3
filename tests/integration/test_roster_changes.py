"""The roster changes while a study runs: a hospital joins, another is revoked (docs/protocol.md 20)."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.network.held_roster import ACCEPTED
from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.errors import Unavailable, UnknownResource
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.policy.site_policy import SitePolicy
from protocol.roster.changes import Wanted, parse_chain
from protocol.sharing import Side
from tests.integration.agents import final_model, finished, rounds_of
from tests.integration.roster_changes import as_site, change_roster, in_force, newcomer, slow_federation
from tests.ports import free_ports

SITES = ("requester", "c1", "c2", "c3")
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2)
ROUNDS = 9
ROUND_S = 20.0


def federation(folder: Path) -> InMemoryFederation:
    spec = FederationSpec("changing", SITES[0], light_sites(SITES, POLICY), seed=5, ports=free_ports())
    return slow_federation(spec, folder, ROUND_S)


def study_of(running: InMemoryFederation) -> Study:
    study = light_study(running.parties, "trial", RuleSpec(name=RuleName.FEDAVG), rounds=ROUNDS)
    return study.model_copy(
        update={"parameters": study.parameters.model_copy(update={"least_contributors": 2}), "round_deadline_s": 60.0}
    )


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
