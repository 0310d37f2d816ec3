"""Between two studies an operator's keys change: nobody's server stops, and the agents of the sites follow."""

from __future__ import annotations

from pathlib import Path

from harness.adversaries.scripted_agents import renewed_keys
from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.messages.control import RuleName, RuleSpec
from protocol.policy.site_policy import SitePolicy
from protocol.roster.changes import Wanted, claimed
from protocol.sharing import Side
from servers.server import open_server
from tests.integration.agents import final_model, finished
from tests.integration.roster_changes import chain_of, change_roster, in_force, write_keys
from tests.ports import free_ports

SITES = ("requester", "c1", "c2", "c3")
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2)


def test_an_operator_renews_its_keys_between_two_studies(tmp_path: Path) -> None:
    spec = FederationSpec("renewing", SITES[0], light_sites(SITES, POLICY), seed=5, ports=free_ports())
    with InMemoryFederation(spec, tmp_path, light_learner) as running:

        def study(name: str) -> None:
            running.hand_in(light_study(running.parties, name, RuleSpec(name=RuleName.FEDAVG), rounds=1))
            running.until(f"the end of {name}", finished(running, name, *SITES))
            assert len({final_model(running, site, name) for site in SITES}) == 1

        running.start()
        study("before")
        running.stop_agents("requester")
        for number, side in ((1, Side.A),):
            chain = chain_of(running)
            operator = chain.head.operator(side)
            keys = renewed_keys(running.parties.keys_of(operator.name), number)
            write_keys(running, keys)
            change_roster(running, Wanted(given=(claimed(keys, chain.first_digest, url=operator.url),)))
            running.until(f"change {number} is in force", in_force(running, number))
            server = running.servers.apps[side].state.server
            assert server.keys.key_id == keys.key_id == server.roster.operator(side).key_id
        running.start("requester")
        study("after")
    again = open_server(running.servers.apps[Side.A].state.server.settings)
    assert again.chain.number == 1
    again.store.close()
    again.ckks.close()
