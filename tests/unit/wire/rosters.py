"""Changes of the small federation's roster, made and signed."""

from __future__ import annotations

from typing import Any

from protocol.messages.control import Role, Signed, countersign, sign
from protocol.messages.roster import RosterChange
from protocol.roster.chain import Given, RosterChain, Wanted, claimed, proposed
from protocol.roster.keyfile import PartyKeys
from tests.unit.parties import REQUESTER, parties, party_keys

PARTIES = parties()
SIGNERS = ("operator-a", "operator-b", REQUESTER)
CHAIN = RosterChain(PARTIES.roster)
URLS = {"operator-a": "https://127.0.0.1:8441", "operator-b": "https://127.0.0.1:8442"}


def renewed_keys(name: str) -> PartyKeys:
    """Other keys of a party, under its name."""
    fresh = party_keys(f"{name}-renewed")
    role = Role.OPERATOR if name in URLS else Role.SITE
    return PartyKeys(name=name, role=role, signing=fresh.signing, sealing=fresh.sealing)


def given(keys: PartyKeys, **changes: Any) -> Given:
    """The party's claim in ``CHAIN``, with 100 samples or the operator's usual address."""
    usual: dict[str, Any] = {"url": URLS[keys.name]} if keys.name in URLS else {"samples": 100}
    return claimed(keys, CHAIN.first_digest, **(usual | changes))


def joins(name: str = "hospital-4") -> Wanted:
    return Wanted(given=(given(party_keys(name)),))


def signed_change(change: RosterChange, keys: dict[str, PartyKeys] | None = None) -> Signed[RosterChange]:
    """Signed by all three, with their first keys where ``keys`` has no others."""
    held = PARTIES.keys | (keys or {})
    signed: Signed[RosterChange] = sign(change, SIGNERS[0], held[SIGNERS[0]].signing)
    for name in SIGNERS[1:]:
        signed = countersign(signed, name, held[name].signing)
    return signed


def changed(chain: RosterChain, wanted: Wanted, reason: str = "a reason", *others: PartyKeys) -> RosterChain:
    """The chain with one more change; ``others`` are keys with which their parties sign instead of their first."""
    held = {keys.name: keys for keys in others}
    return chain.extended_by(signed_change(proposed(chain, wanted, reason), held))
