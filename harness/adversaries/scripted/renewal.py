"""Sites with other keys, by a change of the roster that both operators and the requester signed."""

from __future__ import annotations

from dataclasses import replace

from harness.adversaries.scripted.there import there
from harness.engine.parties import Parties
from host.randomness import SeededRandomness
from protocol.wire.authentic import countersign, sign
from protocol.wire.chain.chain import RosterChain, signers
from protocol.wire.chain.making import Wanted, claimed, proposed
from protocol.wire.keyfile import PartyKeys
from protocol.wire.keys import SEALING_KEY_BYTES, SIGNING_KEY_BYTES, generate_sealing_key, generate_signing_key
from protocol.wire.messages import RosterChange, Signed


def renewed_keys(keys: PartyKeys, number: int) -> PartyKeys:
    """Other keys under the same name, for the change of that number."""
    drawn = SeededRandomness(bytes(32))
    signing = drawn.bytes(SIGNING_KEY_BYTES, f"signing key of {keys.name} {number}")
    sealing = drawn.bytes(SEALING_KEY_BYTES, f"sealing key of {keys.name} {number}")
    return replace(keys, signing=generate_signing_key(signing), sealing=generate_sealing_key(sealing))


def renewed(chain: RosterChain, parties: Parties, sites: tuple[PartyKeys, ...]) -> RosterChain:
    """The chain with one more change, under which these sites have these keys."""

    def given(keys: PartyKeys) -> int | None:
        return there(chain.head.party(keys.name), keys.name).samples

    wanted = Wanted(given=tuple(claimed(keys, chain.first_digest, samples=given(keys)) for keys in sites))
    first, *others = signers(chain.head)
    change: Signed[RosterChange] = sign(
        proposed(chain, wanted, "keys are renewed"), first, parties.keys_of(first).signing
    )
    for name in others:
        change = countersign(change, name, parties.keys_of(name).signing)
    return chain.extended_by(change)
