"""The chain of a federation's rosters: demands on every further link, making one, and its text (docs/protocol.md 20).

A name belongs to one party for ever, and so does a key: what was removed or replaced never comes back, so that words
signed with it once can never be another's, and lists and sums that name a site mean one site for ever.

In a roster file the first roster stands as ever, and a ``[[change]]`` table for every change: what differs from the
link before. The digest that is signed shows whether it was read as it was meant. A party file may end with the party's
claim of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.configuration import explain, parse_toml, validated
from protocol.errors import BadSignature, ConfigurationError, RosterRefused, RosterUnknown
from protocol.messages.control import (
    Party,
    Roster,
    Signature,
    Signed,
    check_signature,
    require_roster,
    require_signatures,
    sign,
    with_signature,
)
from protocol.messages.roster import MOST_CHANGES, KeyClaim, RosterChange
from protocol.roster.keyfile import PartyKeys, PartyTable, RosterTable, dump_party, dump_roster, table_text


@dataclass(frozen=True)
class RosterChain:
    """The first roster and all changes since, oldest first; ``require_chain`` says whether it is valid.

    ``extended_by`` keeps a valid chain valid. A study pins ``first_digest``, an announcement names ``head_digest``.
    """

    first: Signed[Roster]
    changes: tuple[Signed[RosterChange], ...] = ()

    @property
    def head(self) -> Roster:
        """The roster in force."""
        return self.rosters[-1]

    @property
    def first_digest(self) -> str:
        return self.digests[0]

    @property
    def head_digest(self) -> str:
        return self.digests[-1]

    @property
    def number(self) -> int:
        return len(self.changes)

    @cached_property
    def rosters(self) -> tuple[Roster, ...]:
        """The roster at each link, the first one's at place 0."""
        return (self.first.message, *(change.message.roster for change in self.changes))

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """The digest of each link: the first is its roster's; a change's own binds all links before it."""
        return (self.first.message.digest(), *(change.message.digest() for change in self.changes))

    @cached_property
    def founding_keys(self) -> dict[str, str]:
        """The first signing key of everybody who was ever in the chain: who it is across changes of its keys."""
        found: dict[str, str] = {}
        for roster in self.rosters:
            for party in roster.parties:
                found.setdefault(party.name, party.signing_key)
        return found

    def roster_of(self, digest: str) -> Roster:
        """The roster of a link. Raises: RosterUnknown, for one that this chain does not hold"""
        return self.rosters[self.digests.index(self._known(digest))]

    def _known(self, digest: str) -> str:
        if digest not in self.digests:
            raise RosterUnknown(
                f"link {digest[:16]} of the roster is not known here; the newest one here is change {self.number}, "
                f"{self.head_digest[:16]}: fetch the roster, or wait until its newest change has come here"
            )
        return digest

    def place_of(self, link: str | None) -> int:
        """Return the place of an announcement's ``roster_head``, 0 for the first link. Raises: RosterUnknown"""
        return 0 if link is None else self.digests.index(self._known(link))

    def roster_under(self, link: str | None) -> Roster:
        """The roster of a round whose announcement names this ``roster_head``. Raises: RosterUnknown"""
        return self.rosters[self.place_of(link)]

    def newest_with(self, name: str) -> Roster:
        """The newest roster that has the party; the head, where none ever had it."""
        return next((roster for roster in reversed(self.rosters) if roster.party(name) is not None), self.head)

    @property
    def named_head(self) -> str | None:
        """Return the head as an announcement names it: None while it is the first link, as before there were others."""
        return self.head_digest if self.changes else None

    def up_to(self, number: int) -> RosterChain:
        """The chain as it was after that many changes."""
        return RosterChain(self.first, self.changes[:number])

    def is_extension_of(self, older: RosterChain) -> bool:
        """Return whether this chain holds all links of ``older``, in their places; a chain extends itself."""
        return self.digests[: len(older.digests)] == older.digests

    def extended_by(self, signed: Signed[RosterChange]) -> RosterChain:
        """With one more link, which is checked; this chain is valid. Raises: RosterRefused, BadSignature"""
        require_follows(self, signed.message)
        require_signatures(signed, self.head, signers(self.head))
        return RosterChain(self.first, (*self.changes, signed))

    def removed(self) -> Iterator[tuple[Party, Signed[RosterChange]]]:
        """Everybody who is in it no more, as it last was, with the change that removed it."""
        for before, change in zip(self.rosters, self.changes, strict=False):
            yield from ((party, change) for party in before.parties if change.message.roster.party(party.name) is None)


def signers(roster: Roster) -> tuple[str, str, str]:
    """Return the parties that must sign the change after this roster, with their keys in it."""
    return (*roster.operators, roster.requester)


def require_chain(chain: RosterChain) -> RosterChain:
    """The chain, once every link is valid after the one before. Raises: RosterRefused, BadSignature"""
    require_roster(chain.first)
    valid = RosterChain(chain.first)
    for change in chain.changes:
        valid = valid.extended_by(change)
    return chain


def require_extension(newer: RosterChain, held: RosterChain) -> RosterChain:
    """``newer``, once it is valid and holds every link of ``held``, which is valid; its new links are checked alone.

    Raises: RosterRefused, for a fork, a shorter or a foreign chain; BadSignature
    """
    if newer.first_digest != held.first_digest:
        raise RosterRefused(
            f"this is another federation's roster: it begins with {newer.first_digest[:16]}, the one here with "
            f"{held.first_digest[:16]}"
        )
    if held.is_extension_of(newer) and newer.number < held.number:
        raise RosterRefused(
            f"the roster shown ends with change {newer.number}, an older one than change {held.number}, which is known "
            "here: take the newest roster file"
        )
    if not newer.is_extension_of(held):
        at = next(
            place for place, pair in enumerate(zip(newer.digests, held.digests, strict=False)) if len({*pair}) > 1
        )
        raise RosterRefused(
            f"the roster shown is a fork: its change {at} is {newer.digests[at][:16]}, the one known here is "
            f"{held.digests[at][:16]}; somebody signed two changes after the same link: compare 'moiety roster show' "
            "with both operators and the requester by phone"
        )
    extended = held
    for change in newer.changes[held.number :]:
        extended = extended.extended_by(change)
    return extended


def require_follows(chain: RosterChain, change: RosterChange) -> None:
    """Require that ``change`` may follow this valid chain, whoever has signed it so far. Raises: RosterRefused,
    BadSignature, for a claim that is missing or wrong
    """
    expected = (chain.head.federation, chain.first_digest, chain.number + 1, chain.head_digest)
    if (change.federation, change.first, change.number, change.previous) != expected:
        raise RosterRefused(
            f"change {change.number} of federation {change.federation!r} after link {change.previous[:16]} does not "
            f"follow change {chain.number} of {chain.head.federation!r}, link {chain.head_digest[:16]}: propose the "
            "change again from the newest roster"
        )
    if chain.number >= MOST_CHANGES:
        raise RosterRefused(f"a roster has at most {MOST_CHANGES} changes: begin a new one, which names this one's end")
    _require_kept(chain.head, change.roster)
    _require_never_back(chain, change.roster)
    _require_claims(chain, change)


def require_same_servers(newer: RosterChain, held: RosterChain) -> None:
    """Require that only contributors differ: what studies under way were signed with stays. Raises: RosterRefused

    Both chains are valid, and ``newer`` holds all links of ``held``.
    """
    before = held.head
    for number, roster in enumerate(newer.rosters[held.number :], held.number):
        for name in signers(before):
            if roster.party(name) != before.party(name):
                raise RosterRefused(
                    f"change {number} gives {name!r} another key, address or number of examples, and studies that are "
                    "under way were begun with the one before: end them first, then start both servers and the agents "
                    "again with this roster"
                )


def renewed(before: Roster, after: Roster) -> tuple[Party, ...]:
    """Everybody in ``after`` with a key that it had not ``before``, new parties among them, in the roster's order."""
    old = {party.name: (party.signing_key, party.sealing_key) for party in before.parties}
    return tuple(party for party in after.parties if old.get(party.name) != (party.signing_key, party.sealing_key))


def _require_kept(before: Roster, after: Roster) -> None:
    if after == before:
        raise RosterRefused("the change changes nothing: leave it out")
    if (after.federation, *signers(after)) != (before.federation, *signers(before)):
        raise RosterRefused(
            "a change keeps the federation's, both operators' and the requester's names: another of these is a new "
            "federation, with a roster of its own"
        )
    stay = [site.name for site in before.sites if after.party(site.name) is not None]
    if [site.name for site in after.sites][: len(stay)] != stay:
        raise RosterRefused("sites that stay keep their order, and new ones come after them")


def _require_never_back(chain: RosterChain, after: Roster) -> None:
    before = chain.head
    for party in after.parties:
        if party.name in chain.founding_keys and before.party(party.name) is None:
            raise RosterRefused(f"{party.name!r} was removed and never comes back: give the site another name")
    ever = {
        key for roster in chain.rosters for party in roster.parties for key in (party.signing_key, party.sealing_key)
    }
    for party in renewed(before, after):
        had = before.party(party.name)
        kept = () if had is None else (had.signing_key, had.sealing_key)
        if any(key in ever and key not in kept for key in (party.signing_key, party.sealing_key)):
            raise RosterRefused(f"a key of {party.name!r} was in the roster before and never comes back: make new keys")


def _require_claims(chain: RosterChain, change: RosterChange) -> None:
    expected = renewed(chain.head, change.roster)
    if [claim.signer for claim in change.claims] != [party.name for party in expected]:
        names = ", ".join(party.name for party in expected) or "nobody"
        raise RosterRefused(f"the change needs a claim of everybody with new keys, in the roster's order: {names}")
    for claim, party in zip(change.claims, expected, strict=True):
        check_signature(KeyClaim(first=chain.first_digest, party=party), claim, party)


def in_words(before: Roster, after: Roster) -> tuple[str, ...]:
    """A line for everything that differs; keys by the first 16 digits of the signing key."""
    lines = [
        f"{site.name} is removed: its requests are refused, no announcement lists it"
        for site in before.sites
        if after.party(site.name) is None
    ]
    for party in after.parties:
        had = before.party(party.name)
        if had is None:
            samples = f"with {party.samples} training examples and "
            lines.append(f"{party.name} is added, {samples}signing key {party.signing_key[:16]}")
        elif had != party:
            lines += [f"{party.name}: {what}" for what in _differences(had, party)]
    return tuple(lines)


def _differences(had: Party, has: Party) -> list[str]:
    found = []
    if had.signing_key != has.signing_key:
        found.append(f"a new signing key, {has.signing_key[:16]} in place of {had.signing_key[:16]}")
    if had.sealing_key != has.sealing_key:
        found.append(f"a new sealing key, {has.sealing_key[:16]} in place of {had.sealing_key[:16]}")
    if had.url != has.url:
        found.append(f"the address {has.url} in place of {had.url}")
    if had.samples != has.samples:
        found.append(f"{has.samples} training examples in place of {had.samples}")
    return found


# --- making a change --------------------------------------------------------------------------------------------------


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


# --- files ------------------------------------------------------------------------------------------------------------


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
