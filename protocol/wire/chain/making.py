"""Make a change of the roster: who claims which keys, what is proposed, who has signed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from protocol.configuration import explain
from protocol.errors import BadSignature, ConfigurationError
from protocol.wire.authentic import check_signature, sign, with_signature
from protocol.wire.chain.chain import RosterChain, renewed, require_follows, signers
from protocol.wire.chain.change import KeyClaim, RosterChange
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import Party, Roster, Signature, Signed


@dataclass(frozen=True)
class Given:
    """A party as it is to stand in the roster, with its claim where its keys are new."""

    party: Party
    claim: Signature | None = None


@dataclass(frozen=True)
class Wanted:
    """The wanted change. ``given`` are parties to add, and those in the roster whose entries are replaced."""

    given: tuple[Given, ...] = ()
    remove: tuple[str, ...] = ()


def claimed(keys: PartyKeys, first_digest: str, *, url: str | None = None, samples: int | None = None) -> Given:
    """A party's own word for its keys, for the chain that begins with ``first_digest``. Raises: ConfigurationError"""
    try:
        party = Party.model_validate(keys.party().model_dump() | {"url": url, "samples": samples})
    except ValidationError as wrong:
        raise ConfigurationError(f"{keys.name}: {explain(Party, wrong)}") from None
    signed = sign(KeyClaim(first=first_digest, party=party), keys.name, keys.signing)
    return Given(party, signed.signatures[0])


def require_claim(given: Given, first_digest: str) -> Party:
    """The party, once it has signed with these keys for this chain. Raises: BadSignature"""
    if given.claim is None:
        raise BadSignature(f"{given.party.name!r} has not signed with its new keys: 'moiety roster claim' does that")
    check_signature(KeyClaim(first=first_digest, party=given.party), given.claim, given.party)
    return given.party


def proposed(chain: RosterChain, wanted: Wanted, reason: str) -> RosterChange:
    """The change after this valid chain, which nobody has signed yet; all that a signature would not mend is checked.

    Raises: ConfigurationError, for what no change can do; RosterRefused, BadSignature
    """
    head, found = chain.head, {given.party.name: given for given in wanted.given}
    if len(found) != len(wanted.given):
        raise ConfigurationError("a party is given twice: give each once")
    after = _after(head, found, wanted.remove)
    claims = []
    for party in renewed(head, after):
        require_claim(found[party.name], chain.first_digest)
        claims.append(found[party.name].claim)
    fields: dict[str, Any] = {
        "federation": head.federation,
        "first": chain.first_digest,
        "number": chain.number + 1,
        "previous": chain.head_digest,
        "reason": reason,
        "roster": after,
        "claims": tuple(claims),
    }
    try:
        change = RosterChange(**fields)
    except ValidationError as wrong:
        raise ConfigurationError(f"no change can be made of this: {explain(RosterChange, wrong)}") from None
    require_follows(chain, change)
    return change


def signed_by(chain: RosterChain, signed: Signed[RosterChange], keys: PartyKeys) -> Signed[RosterChange]:
    """The change that may follow ``chain``, with one more signature, by keys of the roster before it.

    Raises: ConfigurationError, for keys that do not sign it; RosterRefused, BadSignature
    """
    require_follows(chain, signed.message)
    party = chain.head.party(keys.name)
    if keys.name not in signers(chain.head):
        raise ConfigurationError(f"{keys.name!r} signs no changes: {', '.join(signers(chain.head))} do")
    if party is None or party.signing_key != keys.signing.public.to_bytes().hex():
        raise ConfigurationError(
            f"these are not the keys that {keys.name!r} has in the roster before the change: a change is signed with "
            "those"
        )
    signature = sign(signed.message, keys.name, keys.signing).signatures[0]
    return with_signature(signed, signature)


def standing(chain: RosterChain, signed: Signed[RosterChange]) -> dict[str, str]:
    """Return the state of each signature that the change after ``chain`` needs: valid, not valid or none."""
    found = {}
    for name in signers(chain.head):
        signature, party = signed.signature_of(name), chain.head.party(name)
        found[name] = "none"
        if signature is not None and party is not None:
            try:
                check_signature(signed.message, signature, party)
                found[name] = "valid"
            except BadSignature:
                found[name] = "not valid"
    return found


def _after(head: Roster, given: dict[str, Given], remove: Sequence[str]) -> Roster:
    sites = {site.name for site in head.sites}
    strangers = [name for name in remove if name not in sites - {head.requester}]
    if strangers:
        raise ConfigurationError(
            f"{', '.join(strangers)}: no site that can be removed; operators and the requester stay, the others are "
            f"{', '.join(site.name for site in head.contributors)}"
        )
    if twice := sorted(set(remove) & given.keys()):
        raise ConfigurationError(f"{', '.join(twice)}: removed and given; do one")

    def of(party: Party) -> Party:
        return given[party.name].party if party.name in given else party

    added = tuple(one.party for name, one in given.items() if head.party(name) is None)
    try:
        return Roster(
            federation=head.federation,
            operator_a=of(head.operator_a),
            operator_b=of(head.operator_b),
            requester=head.requester,
            sites=(*(of(site) for site in head.sites if site.name not in remove), *added),
        )
    except ValidationError as wrong:
        raise ConfigurationError(f"no roster can be made of this: {explain(Roster, wrong)}") from None
