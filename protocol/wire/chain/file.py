"""A chain as a roster file's text: the first roster as ever, and a ``[[change]]`` table for every change.

A change stands there as what differs from the link before; the whole roster after it follows, and the digest that is
signed shows whether it was read as it was meant. A party file may end with the party's claim of its keys.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.configuration import explain, parse_toml, validated
from protocol.errors import ConfigurationError
from protocol.wire.chain.chain import RosterChain
from protocol.wire.chain.change import MOST_CHANGES, RosterChange
from protocol.wire.chain.making import Given
from protocol.wire.keyfile import PartyTable, RosterTable, dump_party, dump_roster, table_text
from protocol.wire.messages import Party, Roster, Signature, Signed

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

        def of(party: Party) -> Party:
            return given.get(party.name, party)

        added = tuple(party for name, party in given.items() if before.party(name) is None)
        sites = (*(of(site) for site in before.sites if site.name not in self.removed), *added)
        try:
            roster = Roster(
                federation=before.federation,
                operator_a=of(before.operator_a),
                operator_b=of(before.operator_b),
                requester=before.requester,
                sites=sites,
            )
            change = RosterChange(
                federation=before.federation,
                first=self.first,
                number=self.number,
                previous=self.previous,
                reason=self.reason,
                roster=roster,
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
