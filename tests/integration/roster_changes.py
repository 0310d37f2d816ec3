"""Changes of the roster of a federation in memory, while its servers and agents run."""

from __future__ import annotations

from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import light_sites
from host.placed_files import rewrite
from protocol.policy.site_policy import SitePolicy
from protocol.wire.authentic import countersign, sign
from protocol.wire.chain.chain import RosterChain, signers
from protocol.wire.chain.file import dump_chain, parse_chain
from protocol.wire.chain.making import Given, Wanted, claimed, proposed
from protocol.wire.keyfile import PartyKeys, dump_party_keys
from protocol.wire.messages import RosterChange, Signed
from tests.unit.parties import party_keys


def chain_of(running: InMemoryFederation) -> RosterChain:
    """What the roster's file says, which both servers and all agents share here."""
    path = running.files.folder / "roster.toml"
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
    rewrite(running.files.folder / "roster.toml", dump_chain(longer))
    return longer


def newcomer(running: InMemoryFederation, name: str, policy: SitePolicy) -> Given:
    """A hospital's folder with keys and settings, and what it hands in to be added."""
    keys = party_keys(name)
    write_site(running, keys, policy)
    return claimed(keys, chain_of(running).first_digest, samples=100)


def write_site(running: InMemoryFederation, keys: PartyKeys, policy: SitePolicy) -> None:
    place = running.files.folder / keys.name
    place.mkdir(exist_ok=True)
    secret = place / "keys.toml"
    secret.touch(mode=0o600)
    secret.write_text(dump_party_keys(keys), encoding="utf-8")
    (site,) = light_sites((keys.name,), policy)
    running.files.write_site(site)
