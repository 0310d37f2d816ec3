"""Questions to an operator by a site that no roster names yet, and their answers.

Every question is signed with the site's key and sealed to the operator; every answer is signed by the operator and
sealed to the site (``exchange``). A site is known by its registration, once it has one, else by the secret of its
invitation.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from protocol.errors import ErrorCode
from protocol.wire.chain.change import MOST_CHANGES, MOST_REASON_CHARACTERS, RosterChange
from protocol.wire.enrolment.card import OperatorCard
from protocol.wire.message import Digest, Message, PartyName, Secret32, Signature, Signed, StudyName, Version
from protocol.wire.roster import Party, Roster

MOST_SITES: Final = 400
"""That register at one operator, so that questions and answers stay short."""
_MOST_DETAIL_CHARACTERS: Final = 4000


class Registration(Message):
    """The site's public card, with the secret of the invitation by which it comes."""

    KIND: ClassVar[str] = "registration"
    secret: Secret32
    party: Party


class StandingQuestion(Message):
    """The progress of the asking site at this operator, with the link of the roster's chain that it wants (0: the
    first).

    ``claim`` is the site's word for its keys, which it gives once it knows the first link (``KeyClaim``).
    """

    KIND: ClassVar[str] = "standing_question"
    link: Annotated[int, Field(ge=0, le=MOST_CHANGES)] = 0
    claim: Signature | None = None


class NamedSite(Message):
    """A site by its name and the digest of its public card."""

    KIND: ClassVar[str] = "named_site"
    name: PartyName
    party: Digest


class Founding(Message):
    """The requester proposes the first roster: of these sites, in this order, with this digest. The server makes the
    roster itself, of what its own people admitted.

    ``signatures`` are those that there are so far, the requester's among them.
    """

    KIND: ClassVar[str] = "founding"
    roster: Digest
    sites: Annotated[tuple[NamedSite, ...], Field(min_length=1, max_length=MOST_SITES)]
    signatures: Annotated[tuple[Signature, ...], Field(max_length=3)]


class Changing(Message):
    """The requester proposes change ``number`` of the roster, with this digest: these sites are added, in this order,
    or get the keys that they renewed; those in ``remove`` are removed. The server makes the change itself, of what its
    own people admitted and let be removed.

    ``signatures`` are those that there are so far, the requester's among them.
    """

    KIND: ClassVar[str] = "changing"
    number: Annotated[int, Field(ge=1, le=MOST_CHANGES)]
    change: Digest
    reason: Annotated[str, Field(min_length=1, max_length=MOST_REASON_CHARACTERS)]
    sites: Annotated[tuple[NamedSite, ...], Field(max_length=MOST_SITES)]
    remove: Annotated[tuple[PartyName, ...], Field(max_length=MOST_SITES)] = ()
    signatures: Annotated[tuple[Signature, ...], Field(max_length=3)]


class Asked(Message):
    """One question by the site called ``name``; ``to`` is the digest of the card of the operator that it is for."""

    KIND: ClassVar[str] = "enrolment_asked"
    version: Version = "moiety/2"
    federation: StudyName
    to: Digest
    name: PartyName
    at_s: Annotated[int, Field(ge=0)]
    question: Registration | StandingQuestion | Founding | Changing


class Registrant(Message):
    """A site that registered here; ``admitted`` once this operator's people compared its fingerprint."""

    KIND: ClassVar[str] = "registrant"
    party: Party
    requester: bool
    admitted: bool
    claim: Signature | None = None


class Standing(Message):
    """The progress of the asking site at one operator.

    ``waits_for`` says to people what is still to be done. ``peer`` is the other operator's card as this one compared
    it. ``registrants`` are shown to the requester alone, once it is admitted. ``links`` counts the links of the
    roster's chain at this server; of them ``roster`` is the first, ``change`` a later one, whichever was asked for.
    ``renews``: the site came by an invitation to renew its keys, so the roster has others of it until they are changed.
    """

    KIND: ClassVar[str] = "standing"
    admitted: bool
    waits_for: tuple[str, ...]
    peer: OperatorCard | None
    registrants: tuple[Registrant, ...]
    links: Annotated[int, Field(ge=0)] = 0
    renews: bool = False
    roster: Signed[Roster] | None = None
    change: Signed[RosterChange] | None = None


class Founded(Message):
    """This operator's signature under what was proposed; ``in_place``: the server goes on under that roster."""

    KIND: ClassVar[str] = "founded"
    signature: Signature
    in_place: bool


class Refused(Message):
    """Why not."""

    KIND: ClassVar[str] = "enrolment_refused"
    code: ErrorCode
    detail: Annotated[str, Field(max_length=_MOST_DETAIL_CHARACTERS)]


class Answered(Message):
    """The answer to the question with this digest."""

    KIND: ClassVar[str] = "enrolment_answered"
    version: Version = "moiety/2"
    asked: Digest
    answer: Standing | Founded | Refused
