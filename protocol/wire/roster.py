"""The roster: the parties and their keys (docs/protocol.md 1, 3)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from protocol.sharing import Side
from protocol.wire.address import ServerUrl
from protocol.wire.keys import SealingPublicKey, key_id_of
from protocol.wire.message import Digest, Message, PartyName, StudyName


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

    def party(self, name: str) -> Party | None:
        return next((p for p in self.parties if p.name == name), None)

    def operator(self, side: Side) -> Party:
        return self.operator_a if side is Side.A else self.operator_b

    def place(self, site: str) -> int:
        """The site's place in the roster: decides which server gets its vector share."""
        return next(i for i, p in enumerate(self.sites) if p.name == site)
