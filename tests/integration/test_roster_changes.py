"""The roster changes between studies and in the middle of one: renewed keys, a revoked contributor, CKKS, a fork."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from client_agent.learning.learner import Learner
from client_agent.net.server_client import ServerClient
from client_agent.settings import AgentSettings
from client_agent.site.events import EventKind, RoundEnd
from client_agent.site.identity import ACCEPTED
from client_agent.site.sum_memory import sum_memory
from harness.attack.scripted_agents import renewed_keys
from harness.federation.clocks import Stop
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import Learners, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.errors import Unavailable, UnknownResource
from protocol.messages.control import RosterChange, Signed, Study
from protocol.messages.purpose import StudyProtection
from protocol.policy.site_policy import SitePolicy
from protocol.roster.chain import Wanted, claimed, parse_chain
from protocol.sharing import Side
from servers.server import open_server
from tests.integration.agents import FEDAVG, changed, final_model, finished, in_memory, party_of, rounds_of, run_to_end
from tests.integration.roster_changes import (
    Waits,
    as_site,
    chain_of,
    change_roster,
    in_force,
    newcomer,
    renew_keys,
    signed_by_all,
    slow_federation,
    write_keys,
)
from tests.ports import free_ports

# --- roster changes ---------------------------------------------------------------------------------------------------

SITES = ("requester", "c1", "c2", "c3")
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2, allow_ckks=True)
ROUNDS = 9
ROUND_S = 20.0


def federation(folder: Path) -> InMemoryFederation:
    spec = FederationSpec("changing", SITES[0], light_sites(SITES, POLICY), seed=5, ports=free_ports())
    return slow_federation(spec, folder, ROUND_S)


def study_of(running: InMemoryFederation, rounds: int, *, least: int = 2, deadline_s: float = 60.0) -> Study:
    study = light_study(running.parties, "trial", FEDAVG, rounds=rounds)
    return changed(study, least_contributors=least, round_deadline_s=deadline_s)


def test_a_hospital_joins_a_running_study_and_another_is_revoked_in_the_middle(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        running.start()
        running.hand_in(study_of(running, ROUNDS))
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
        last = running.servers.apps[Side.A].state.server.store.current_round(study_of(running, ROUNDS).digest())
        assert last.announcement.message.roster_head == chain.head_digest


# --- roster changes mid round -----------------------------------------------------------------------------------------


def holds_round_2(running: InMemoryFederation, gate: Stop) -> Learners:
    """A learner that waits in round 2 until the gate is opened."""

    def held(settings: AgentSettings, study: Study, seed: int) -> Learner:
        return cast(Learner, Waits(light_learner(settings, study, seed), running.clock, ROUND_S, gate, 2))

    return held


def until_contributed(running: InMemoryFederation, *sites: str) -> None:
    """Until these sites have contributed to round 2."""
    running.until(
        f"{sites} have contributed to round 2",
        lambda: (
            {(site, 2) for site in sites}
            <= {(event.site, event.round) for event in running.events if event.text == "contributed"}
        ),
    )


def took_part(running: InMemoryFederation) -> list[tuple[str, ...]]:
    return [record.took_part for record in rounds_of(running, "requester", "trial")]


def test_a_site_renews_its_keys_in_a_running_study_and_is_the_same_site(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        running.start()
        running.hand_in(study_of(running, 6))
        running.until("a round with c2", lambda: any("c2" in cohort for cohort in took_part(running)))
        running.stop_agents("c2")
        before, came_with = len(took_part(running)), running.parties.keys_of("c2").party().signing_key
        renew_keys(running, "c2")
        running.until("the change is in force", in_force(running, 1))
        with pytest.raises(Unavailable, match="401"):
            as_site(running, running.parties.keys_of("c2"), Side.A).view("trial")
        running.start("c2")
        running.until("c2 takes part", lambda: any("c2" in cohort for cohort in took_part(running)[before + 1 :]))
        running.until("the end", finished(running, "trial", *SITES))
        declined = [text for text in running.texts(EventKind.DECLINED, "c2") if text]
        assert all("other keys than when the round was announced" in text for text in declined)
        assert len({final_model(running, site, "trial") for site in SITES}) == 1
        (folder,) = (running.state("c2") / "sums").iterdir()
        rows = sum_memory(running.state("c2"), came_with, lambda: bytes(32)).known()
    assert folder.name == came_with[:32]
    named = {weight.site for known in rows for weight in known.row.weights}
    assert named == {running.parties.keys_of(site).party().signing_key for site in SITES[1:]}


def test_who_is_revoked_after_contributing_is_in_that_sum_and_in_no_later_one(tmp_path: Path) -> None:
    """In a round under way what it contributed before stays; all else of it is refused from that moment on."""
    with federation(tmp_path) as running:
        gate = Stop(running.clock)
        running.start("requester", "c1", "c2")
        running.start("c3", learner=holds_round_2(running, gate))
        running.hand_in(study_of(running, 4, deadline_s=3000.0))
        until_contributed(running, "c1", "c2")
        running.stop_agents("c1")
        change_roster(running, Wanted(remove=("c1",)))
        running.until("the change is in force", in_force(running, 1))
        for side in Side:
            with pytest.raises(Unavailable, match="401"):
                as_site(running, running.parties.keys_of("c1"), side).view("trial")
        assert len(took_part(running)) == 1
        gate.set()
        running.until("the end", finished(running, "trial", "requester", "c2", "c3"))
        cohorts = took_part(running)
        assert len({final_model(running, site, "trial") for site in ("requester", "c2", "c3")}) == 1
        behind = rounds_of(running, "c1", "trial")
    assert cohorts == [SITES, SITES, ("requester", "c2", "c3"), ("requester", "c2", "c3")]
    assert [record.round for record in behind] == [1]  # the second sum it is in, and cannot fetch


def test_who_is_revoked_before_contributing_costs_no_deadline(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        gate = Stop(running.clock)
        running.start("requester", "c2", "c3")
        running.start("c1", learner=holds_round_2(running, gate))
        running.hand_in(study_of(running, 2, deadline_s=3000.0))
        until_contributed(running, "requester", "c2", "c3")
        change_roster(running, Wanted(remove=("c1",)))
        began = running.clock.monotonic()
        running.until("the end", finished(running, "trial", "requester", "c2", "c3"))
        assert running.clock.monotonic() - began < 1000.0
        assert took_part(running) == [SITES, ("requester", "c2", "c3")]
        gate.set()


def test_a_hospital_joins_a_running_study_under_ckks(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    with federation(tmp_path) as running:
        running.start()
        running.hand_in(changed(study_of(running, 5), protection=StudyProtection.CKKS))
        running.until("a round", lambda: len(took_part(running)) >= 1)
        change_roster(running, Wanted(given=(newcomer(running, "c4", POLICY),)))
        running.until("the change is in force", in_force(running, 1))
        running.start("c4")
        running.until("the end", finished(running, "trial", *SITES, "c4"))
        cohorts = took_part(running)
        assert len({final_model(running, site, "trial") for site in (*SITES, "c4")}) == 1
    assert "c4" not in cohorts[0]
    assert set(cohorts[-1]) == {*SITES, "c4"}


def test_a_fork_that_one_server_shows_stops_whoever_was_shown_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server A shows c2 another change after the first roster, with all three signatures, than everybody else."""
    honestly = ServerClient.roster_change
    with federation(tmp_path) as running:
        chain = chain_of(running)
        fork = signed_by_all(running, chain, Wanted(given=(newcomer(running, "c5", POLICY),)))

        lied: list[int] = []

        def shown(client: ServerClient, number: int) -> Signed[RosterChange]:
            """c2 hears of it from server A first: who holds the honest link already takes no other one."""
            if party_of(client) != "c2":
                return honestly(client, number)
            if client.side is Side.A:
                lied.append(number)
                return fork
            if not lied:
                raise Unavailable("the answer is late")
            return honestly(client, number)

        monkeypatch.setattr(ServerClient, "roster_change", shown)
        running.start()
        running.hand_in(study_of(running, 60, least=3))  # it ends before its last
        running.until("a round", lambda: len(took_part(running)) >= 1)
        honest = change_roster(running, Wanted(given=(newcomer(running, "c4", POLICY),)))

        def named() -> list[str]:
            return [text for text in running.texts(EventKind.PROBLEM, "c2") if honest.head_digest[:16] in text]

        running.until("c2 names the link that it was not shown", lambda: bool(named()))

        def forked() -> list[str]:
            return [text for text in running.texts(EventKind.PROBLEM, "c2") if text.startswith("the roster is a fork")]

        running.until("c2 names who shows what", lambda: bool(forked()))

        def without_sum() -> bool:
            return any(record.state is not RoundEnd.RELEASED for record in rounds_of(running, "requester", "trial"))

        running.until("a round under the new link ends without c2", without_sum)
        records = rounds_of(running, "requester", "trial")
    assert fork.message.digest()[:16] in named()[0]
    a, b = (running.parties.roster.message.operator(side).name for side in Side)
    said = f"{a} shows {fork.message.digest()[:16]}; {b} shows {honest.head_digest[:16]}"
    assert [said in text for text in forked()] == [True]
    assert all(record.took_part == SITES for record in records if record.state is RoundEnd.RELEASED)


# --- server keys renewed ----------------------------------------------------------------------------------------------


def test_an_operator_renews_its_keys_between_two_studies(tmp_path: Path) -> None:
    with in_memory(tmp_path, SITES, POLICY) as running:

        def study(name: str) -> None:
            run_to_end(running, light_study(running.parties, name, FEDAVG, rounds=1))
            assert len({final_model(running, site, name) for site in SITES}) == 1

        running.start()
        study("before")
        running.stop_agents("requester")
        chain = chain_of(running)
        operator = chain.head.operator(Side.A)
        keys = renewed_keys(running.parties.keys_of(operator.name), 1)
        write_keys(running, keys)
        change_roster(running, Wanted(given=(claimed(keys, chain.first_digest, url=operator.url),)))
        running.until("the change is in force", in_force(running, 1))
        server = running.servers.apps[Side.A].state.server
        assert server.keys.key_id == keys.key_id == server.roster.operator(Side.A).key_id
        running.start("requester")
        study("after")
    again = open_server(running.servers.apps[Side.A].state.server.settings)
    assert again.chain.number == 1
    again.store.close()
    again.ckks.close()
