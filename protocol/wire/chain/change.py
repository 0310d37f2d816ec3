"""One change of the roster, as its signers sign it, and a party's word that it holds new keys (docs/protocol.md 20)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field, field_validator

from protocol.printable import printable
from protocol.wire.message import Digest, Message, Signature, StudyName
from protocol.wire.roster import Party, Roster

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
