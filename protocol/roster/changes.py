"""Make a change of the roster, and write chains as text (docs/protocol.md 20).

A chain as a roster file's text: the first roster as ever, and a ``[[change]]`` table for every change.

A change stands there as what differs from the link before; the whole roster after it follows, and the digest that is
signed shows whether it was read as it was meant. A party file may end with the party's claim of its keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.configuration import explain, parse_toml, validated
from protocol.errors import BadSignature, ConfigurationError
from protocol.messages.control import Party, Roster, Signature, Signed, check_signature, sign, with_signature
from protocol.messages.roster import MOST_CHANGES, KeyClaim, RosterChange
from protocol.roster.chain import RosterChain, renewed, require_follows, signers
from protocol.roster.keyfile import PartyKeys, PartyTable, RosterTable, dump_party, dump_roster, table_text


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


def _replaced(before: Roster, given: Mapping[str, Party], removed: Sequence[str]) -> Roster:
    """The roster with parties in place of those of their names, or added at the end. Raises: ValidationError"""

    def of(party: Party) -> Party:
        return given.get(party.name, party)

    added = tuple(party for name, party in given.items() if before.party(name) is None)
    return Roster(
        federation=before.federation,
        operator_a=of(before.operator_a),
        operator_b=of(before.operator_b),
        requester=before.requester,
        sites=(*(of(site) for site in before.sites if site.name not in removed), *added),
    )


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

    try:
        return _replaced(head, {name: one.party for name, one in given.items()}, remove)
    except ValidationError as wrong:
        raise ConfigurationError(f"no roster can be made of this: {explain(Roster, wrong)}") from None


MOST_CHARACTERS: Final = 64 * 2**20


def dump_chain(chain: RosterChain) -> str:
    """The roster file's text, with all signatures collected so far."""
    parts = [dump_roster(chain.first)]
    for before, change in zip(chain.rosters, chain.changes, strict=False):
        parts.append(_dump_change(before, change))
    return "\n".join(parts)


def parse_chain(text: str, source: str) -> RosterChain:
    """A chain with its signatures, unchecked: ``require_chain`` says whether it is valid.

    Raises: ConfigurationError, MalformedMessage
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigurationError(f"{source}: longer than any roster ({MOST_CHARACTERS} characters at most)")
    loaded = validated(_ChainTable, parse_toml(text, source), source)
    if len(loaded.change) > MOST_CHANGES:
        raise ConfigurationError(f"{source}: {len(loaded.change)} changes, at most {MOST_CHANGES} are allowed")
    chain = RosterChain(loaded.signed())
    for table in loaded.change:
        chain = RosterChain(chain.first, (*chain.changes, table.signed(chain, source)))
    return chain


def dump_given(given: Given, first_digest: str) -> str:
    """A party file with its claim. Requires: ``given.claim`` is for the chain that begins with ``first_digest``"""
    claim = {} if given.claim is None else {"first": first_digest, "claim": given.claim.value}
    return dump_party(given.party) + table_text(claim)


def parse_given(text: str, source: str) -> Given:
    """A party file, with its claim if it has one, unchecked. Raises: ConfigurationError, MalformedMessage"""
    loaded = validated(_GivenTable, parse_toml(text, source), source)
    party = loaded.strict()
    if loaded.claim is None:
        return Given(party)
    try:
        return Given(party, Signature(signer=party.name, value=loaded.claim))
    except ValidationError as wrong:
        raise ConfigurationError(f"{source}: claim: {explain(Signature, wrong)}") from None


class _GivenTable(PartyTable):
    first: str | None = None
    claim: str | None = None


class _ChangeTable(BaseModel):
    """A change in a file; ``parties`` are those that are new or differ, in the roster's order."""

    model_config = ConfigDict(extra="forbid")
    number: int
    first: str
    previous: str
    reason: str
    removed: tuple[str, ...] = ()
    parties: tuple[PartyTable, ...] = ()
    claims: tuple[Signature, ...] = ()
    signatures: tuple[Signature, ...] = ()

    def signed(self, chain: RosterChain, source: str) -> Signed[RosterChange]:
        """Raises: ConfigurationError, MalformedMessage"""
        before, given = chain.head, {party.name: party.strict() for party in self.parties}
        try:
            change = RosterChange(
                federation=before.federation,
                first=self.first,
                number=self.number,
                previous=self.previous,
                reason=self.reason,
                roster=_replaced(before, given, self.removed),
                claims=self.claims,
            )
        except ValidationError as wrong:
            raise ConfigurationError(f"{source}: change {self.number}: {explain(RosterChange, wrong)}") from None
        return Signed[RosterChange](message=change, signatures=self.signatures)


class _ChainTable(RosterTable):
    change: tuple[_ChangeTable, ...] = ()


def _dump_change(before: Roster, signed: Signed[RosterChange]) -> str:
    change = signed.message
    head: dict[str, object] = {
        "number": change.number,
        "first": change.first,
        "previous": change.previous,
        "reason": change.reason,
    }
    gone = [site.name for site in before.sites if change.roster.party(site.name) is None]
    parts = ["[[change]]\n" + table_text(head | ({"removed": gone} if gone else {}))]
    given = [party for party in change.roster.parties if party != before.party(party.name)]
    parts += ["[[change.parties]]\n" + dump_party(party) for party in given]
    parts += ["[[change.claims]]\n" + table_text(claim.model_dump(mode="json")) for claim in change.claims]
    parts += ["[[change.signatures]]\n" + table_text(one.model_dump(mode="json")) for one in signed.signatures]
    return "\n".join(parts)
