"""Changes of the roster of a federation in memory, while its servers and agents run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from client_agent.learning.learner import Learner, Vector
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.settings import AgentSettings
from harness.attack.scripted_agents import renewed_keys
from harness.federation.clocks import Stop, VirtualClock
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import Learners, Odd, light_learner, light_sites
from harness.federation.processes import FederationSpec
from host.output_files import rewrite
from protocol.messages.control import RosterChange, Signed, Study, countersign, sign
from protocol.policy.site_policy import SitePolicy
from protocol.roster.chain import Given, RosterChain, Wanted, claimed, dump_chain, parse_chain, proposed, signers
from protocol.roster.keyfile import PartyKeys, dump_party_keys
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.parties import party_keys


class Waits(Odd):
    """An update takes a while on the federation's clock; in one round it takes until ``gate`` is set."""

    def __init__(self, inner: Learner, clock: VirtualClock, wait_s: float, gate: Stop | None, held_round: int) -> None:
        super().__init__(inner)
        self._clock = clock
        self._wait_s = wait_s
        self._gate = gate
        self._held_round = held_round

    def update(self, model: Vector, round_number: int) -> Vector:
        self._clock.wait(Stop(self._clock), self._wait_s)
        if self._gate is not None and round_number == self._held_round:
            self._clock.wait(self._gate, 1e6)
        return super().update(model, round_number)


def slow_federation(
    spec: FederationSpec, folder: Path, wait_s: float, learner: Learners = light_learner
) -> InMemoryFederation:
    """Every update takes ``wait_s`` on the clock, so that a change comes in the middle of a study."""
    made: list[InMemoryFederation] = []

    def slow(settings: AgentSettings, study: Study, seed: int) -> Learner:
        return cast(Learner, Waits(learner(settings, study, seed), made[0].clock, wait_s, None, 0))

    made.append(InMemoryFederation(spec, folder, slow))
    return made[0]


def in_force(running: InMemoryFederation, number: int) -> Callable[[], bool]:
    return lambda: all(app.state.server.chain.number == number for app in running.servers.apps.values())


def as_site(running: InMemoryFederation, keys: PartyKeys, side: Side) -> ServerClient:
    """Whoever has these keys, with one attempt for each request."""
    operator = running.parties.roster.message.operator(side)
    transport = running.servers.transport()
    return ServerClient(side, operator, keys, transport, retry=RetryPolicy(attempts=1), clock=running.clock.now)


def chain_of(running: InMemoryFederation) -> RosterChain:
    """The chain in the roster's file, which both servers and all agents share here."""
    path = running.folder / "roster.toml"
    return parse_chain(path.read_text(encoding="utf-8"), str(path))


def signed_by_all(running: InMemoryFederation, chain: RosterChain, wanted: Wanted) -> Signed[RosterChange]:
    first, *others = signers(chain.head)
    change: Signed[RosterChange] = sign(
        proposed(chain, wanted, "a test"), first, running.parties.keys_of(first).signing
    )
    for name in others:
        change = countersign(change, name, running.parties.keys_of(name).signing)
    return change


def change_roster(running: InMemoryFederation, wanted: Wanted) -> RosterChain:
    """The chain with one change more, in the file; the servers look at it every few seconds of their clock."""
    chain = chain_of(running)
    longer = chain.extended_by(signed_by_all(running, chain, wanted))
    rewrite(running.folder / "roster.toml", dump_chain(longer))
    return longer


def newcomer(running: InMemoryFederation, name: str, policy: SitePolicy) -> Given:
    """A hospital's folder with keys and settings, and what it hands in to be added."""
    keys = party_keys(name)
    write_site(running, keys, policy)
    return claimed(keys, chain_of(running).first_digest, samples=100)


def renew_keys(running: InMemoryFederation, site: str) -> PartyKeys:
    """Other keys of a site whose agent stands still, in its folder and in the roster."""
    keys = renewed_keys(running.parties.keys_of(site), 1)
    chain = chain_of(running)
    party = present(chain.head.party(site))
    change_roster(running, Wanted(given=(claimed(keys, chain.first_digest, samples=party.samples),)))
    write_keys(running, keys)
    return keys


def write_keys(running: InMemoryFederation, keys: PartyKeys) -> None:
    place = running.folder / keys.name
    place.mkdir(exist_ok=True)
    secret = place / "keys.toml"
    secret.touch(mode=0o600)
    secret.write_text(dump_party_keys(keys), encoding="utf-8")


def write_site(running: InMemoryFederation, keys: PartyKeys, policy: SitePolicy) -> None:
    write_keys(running, keys)
    (site,) = light_sites((keys.name,), policy)
    running.write_site(site)
