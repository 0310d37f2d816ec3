"""The roster: the parties and their keys, and one change of it (docs/protocol.md 1, 3, 20)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, field_validator, model_validator

from protocol.channel.keys import SealingPublicKey, VerifyKey, key_id_of
from protocol.channel.message import Digest, Message, PartyName, Signature, StudyName
from protocol.messages.paths import ServerUrl
from protocol.sharing import Side
from protocol.text import printable


class Role(StrEnum):
    OPERATOR = "operator"
    SITE = "site"


class Party(Message):
    """A party's public keys and, for an operator, where its server is reached."""

    KIND: ClassVar[str] = "party"
    name: PartyName
    role: Role
    signing_key: Digest
    sealing_key: Annotated[str, Field(pattern=r"^[0-9a-f]{2432}$")]
    url: ServerUrl | None = None
    samples: Annotated[int, Field(ge=1)] | None = None

    @property
    def key_id(self) -> str:
        """The name of the signing key in requests and answers: without the party's name, which a proxy would read."""
        return key_id_of(bytes.fromhex(self.signing_key))

    @property
    def verify_key(self) -> VerifyKey:
        """The key of this party's signatures. Raises: MalformedMessage"""
        return VerifyKey.from_bytes(bytes.fromhex(self.signing_key))

    @property
    def sealing(self) -> SealingPublicKey:
        """The key to which messages for this party are sealed. Raises: MalformedMessage"""
        return SealingPublicKey.from_bytes(bytes.fromhex(self.sealing_key))


class Roster(Message):
    """Every party of a federation with its keys; signed by both operators and the requester.

    ``samples`` of a site is |S_i|, declared at enrolment (docs/protocol.md 10). ``sites`` includes the requester.
    """

    KIND: ClassVar[str] = "roster"
    federation: StudyName
    operator_a: Party
    operator_b: Party
    requester: PartyName
    sites: tuple[Party, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Roster:
        names = [self.operator_a.name, self.operator_b.name, *(site.name for site in self.sites)]
        if len(set(names)) != len(names):
            raise ValueError("two parties have the same name")
        keys = [p.signing_key for p in self.parties] + [p.sealing_key for p in self.parties]
        if len(set(keys)) != len(keys):
            raise ValueError("two parties have the same key")
        if self.requester not in {site.name for site in self.sites}:
            raise ValueError(f"the requester {self.requester!r} is not among the sites")
        if any(p.role is not Role.OPERATOR or p.url is None for p in (self.operator_a, self.operator_b)):
            raise ValueError("operator_a and operator_b need role 'operator' and a https url")
        if any(p.role is not Role.SITE or p.samples is None for p in self.sites):
            raise ValueError("every site needs role 'site' and its number of training samples")
        return self

    @property
    def parties(self) -> tuple[Party, ...]:
        return (self.operator_a, self.operator_b, *self.sites)

    @property
    def contributors(self) -> tuple[Party, ...]:
        """The sites without the requester, in roster order."""
        return tuple(site for site in self.sites if site.name != self.requester)

    @property
    def operators(self) -> tuple[str, str]:
        """Both operators' names, side A's first."""
        return self.operator_a.name, self.operator_b.name

    def party(self, name: str) -> Party | None:
        return next((p for p in self.parties if p.name == name), None)

    def operator(self, side: Side) -> Party:
        return self.operator_a if side is Side.A else self.operator_b

    def place(self, site: str) -> int:
        """The site's place in the roster: decides which server gets its vector share."""
        return next(i for i, p in enumerate(self.sites) if p.name == site)


MOST_CHANGES: Final = 1000
MOST_REASON_CHARACTERS: Final = 300


class KeyClaim(Message):
    """A party says that it holds the keys of ``party``: signed with them, for the chain that begins with ``first``.

    A signature shows the signing key, which vouches for the sealing key beside it. It depends on no link but the
    first, so a party that cannot be asked later gives it when it makes its keys.
    """

    KIND: ClassVar[str] = "key_claim"
    first: Digest
    party: Party


class RosterChange(Message):
    """The whole roster after a change, and what it follows; signed by both operators and the requester with the keys
    of the roster before it.

    ``first`` and ``previous`` are digests: of the chain's first link, a roster, and of the link before this one.
    ``number`` counts changes from 1. ``claims`` hold, for every party of ``roster`` that has a key which it had not
    before, in the roster's order, its signature over its ``KeyClaim``.
    """

    KIND: ClassVar[str] = "roster_change"
    federation: StudyName
    first: Digest
    number: Annotated[int, Field(ge=1, le=MOST_CHANGES)]
    previous: Digest
    reason: Annotated[str, Field(min_length=1, max_length=MOST_REASON_CHARACTERS)]
    roster: Roster
    claims: tuple[Signature, ...] = ()

    @field_validator("reason")
    @classmethod
    def _readable(cls, reason: str) -> str:
        if printable(reason) != reason:
            raise ValueError("is one line of printable characters")
        return reason
