"""Enrolment: operators' cards, invitations, and questions by a site that no roster names yet.

An invitation is a line that is copied, good for one registration until it expires:

    moiety-invitation:BASE64URL.CHECK

The check finds a line that was cut off or mistyped; it keeps nobody from writing another. What makes an invitation good
is its secret of 256 bits, of which the operator's server keeps a hash, and the digest of the operator's card, which
ties everything that follows to that operator's keys.

Every question is signed with the site's key and sealed to the operator; every answer is signed by the operator and
sealed to the site. A site is known by its registration, once it has one, else by the secret of its
invitation.

A proxy that opens TLS sees lengths (padded), times and addresses. What it changes opens nowhere; what it repeats is
answered again, sealed to the same site; a question that is older than a minute is refused.

Fingerprints of public cards are read aloud over the phone: forty decimal digits in groups of five. They are SHA-256
modulo 10^40, 132 bits: whoever wants another card with the same digits tries 2^132 of them. Digits are read the same
way in every language, and need no list of words.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

from pydantic import Field, ValidationError, model_validator

from protocol.channel.envelope import padded_length
from protocol.channel.message import (
    MAX_CONTROL_BYTES,
    Digest,
    Message,
    PartyName,
    Secret32,
    Signature,
    Signed,
    StudyName,
    Version,
    pack_frame,
    unpack_frame,
)
from protocol.channel.sealing import open_small, seal_small, sealed_small_length
from protocol.channel.signing import MAX_AGE_S, MAX_SKEW_S
from protocol.configuration import explain, parse_toml
from protocol.errors import BadSignature, ConfigurationError, ErrorCode, MalformedMessage, TooLarge
from protocol.messages.control import check_signature, sign, signature_from
from protocol.messages.paths import ServerUrl
from protocol.messages.roster import MOST_CHANGES, MOST_REASON_CHARACTERS, Party, Role, Roster, RosterChange
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side
from protocol.text import INVISIBLE

PREFIX: Final = "moiety-invitation:"
_CHECK_DIGITS: Final = 8
_MOST_CHARACTERS: Final = 4096


class Invitation(Message):
    """``site`` may register at ``url`` until ``expires_at_s``; ``card`` is the digest of the operator's card."""

    KIND: ClassVar[str] = "invitation"
    federation: StudyName
    side: Side
    operator: PartyName
    url: ServerUrl
    card: Digest
    site: PartyName
    requester: bool
    expires_at_s: Annotated[int, Field(ge=0)]
    secret: Secret32


def invitation_id(secret: str) -> str:
    """Return the identifier that a server keeps in place of the secret."""
    return hashlib.sha256(b"moiety/2 invitation\x00" + bytes.fromhex(secret)).hexdigest()


def invitation_line(invitation: Invitation) -> str:
    """One line, without spaces."""
    body = base64.urlsafe_b64encode(invitation.canonical()).decode().rstrip("=")
    return f"{PREFIX}{body}.{_check(body)}"


def read_invitation(line: str) -> Invitation:
    """The inverse, of a line that a mail may have broken. Raises: ConfigurationError, without repeating the line"""
    joined = "".join(one for one in line if one not in INVISIBLE)
    body, dot, check = joined.removeprefix(PREFIX).rpartition(".")
    if not joined.startswith(PREFIX) or not dot or len(joined) > _MOST_CHARACTERS:
        raise ConfigurationError(
            f"not an invitation: one is a line that begins with {PREFIX!r}, as 'moiety server invite' printed it"
        )
    if check != _check(body):
        raise ConfigurationError(
            "the invitation is not as it was made: a part is missing or was changed; copy all of the line once more"
        )
    try:
        content = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        return Invitation.parse(content)
    except (binascii.Error, MalformedMessage):
        raise ConfigurationError(
            "the invitation cannot be read: it is of another release of moiety; ask the operator which one runs there"
        ) from None


def _check(body: str) -> str:
    return hashlib.sha256(PREFIX.encode() + body.encode()).hexdigest()[:_CHECK_DIGITS]


_PEM: Final = r"^(-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=]{1,76}\n)+-----END CERTIFICATE-----\n)+$"
MOST_CA_CHARACTERS: Final = 8192


class OperatorCard(Message):
    """``party`` runs side ``side`` of the federation; ``ca`` is the CA of its TLS certificate, PEM, where that is its
    own and not a public one."""

    KIND: ClassVar[str] = "operator_card"
    federation: StudyName
    side: Side
    party: Party
    ca: Annotated[str, Field(pattern=_PEM, max_length=MOST_CA_CHARACTERS)] | None = None

    @model_validator(mode="after")
    def _of_an_operator(self) -> OperatorCard:
        if self.party.role is not Role.OPERATOR or self.party.url is None:
            raise ValueError("a card is an operator's, with the https address of its server")
        return self

    @property
    def url(self) -> str:
        return self.party.url or ""


def dump_card(card: OperatorCard) -> str:
    table = card.model_dump(mode="json", exclude_none=True)
    party = table.pop("party")
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in table.items()]
    return "".join([*lines, "\n[party]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in party.items())])


def parse_card(text: str, source: str) -> OperatorCard:
    """Raises: ConfigurationError"""
    table = parse_toml(text, source)
    try:
        return OperatorCard.parse(json.dumps(table, default=str).encode())
    except MalformedMessage as wrong:
        raise ConfigurationError(
            f"{source}: not an operator's public card ({wrong.detail}): have the file NAME.card.toml sent again"
        ) from None


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


MOST_ASKED_BYTES: Final = 2**17
MOST_ASKED_SEALED_BYTES: Final = sealed_small_length(padded_length(MOST_ASKED_BYTES))
MOST_ANSWERED_SEALED_BYTES: Final = sealed_small_length(padded_length(MAX_CONTROL_BYTES))


def close_asked(asked: Asked, keys: PartyKeys, to: OperatorCard) -> bytes:
    """Signed by the site and sealed to the operator. Raises: TooLarge"""
    framed = pack_frame(sign(asked, keys.name, keys.signing))
    if len(framed) > MOST_ASKED_BYTES:
        raise TooLarge(f"a question of enrolment has {len(framed)} bytes, at most {MOST_ASKED_BYTES} are allowed")
    return seal_small(framed.ljust(padded_length(len(framed)), b"\0"), to.party.sealing, _asked_to(to))


def open_asked(sealed: bytes, keys: PartyKeys, own: OperatorCard) -> Signed[Asked]:
    """A question for this operator, its signature unchecked. Raises: BrokenSeal, MalformedMessage, OtherVersion"""
    signed, _ = unpack_frame(open_small(sealed, keys.sealing, _asked_to(own)), Signed[Asked])
    asked = signed.message
    if asked.to != own.digest() or asked.federation != own.federation:
        raise MalformedMessage(
            f"the question is for another operator's card, or for federation {asked.federation!r}; this is "
            f"{own.party.name!r} of {own.federation!r}: join with this operator's invitation"
        )
    return signed


def require_asked_by(signed: Signed[Asked], party: Party, now_s: float) -> Asked:
    """The question, by this site and of this minute. Raises: BadSignature"""
    asked = signed.message
    check_signature(asked, signature_from(signed, party.name), party)
    early_s = asked.at_s - now_s
    if not -MAX_AGE_S <= early_s <= MAX_SKEW_S:
        raise BadSignature(
            f"the site's clock is {abs(early_s):.0f} s {'ahead of' if early_s > 0 else 'behind'} this server's: set "
            "the one that is wrong by NTP, and run the same command again"
        )
    return asked


def close_answered(answered: Answered, keys: PartyKeys, to: Party) -> bytes:
    framed = pack_frame(sign(answered, keys.name, keys.signing))
    return seal_small(framed.ljust(padded_length(len(framed)), b"\0"), to.sealing, _answer_to(answered.asked))


def open_answered(sealed: bytes, keys: PartyKeys, asked: Asked, by: OperatorCard) -> Answered:
    """The operator's answer to this very question. Raises: BrokenSeal, BadSignature, MalformedMessage, OtherVersion"""
    signed, _ = unpack_frame(open_small(sealed, keys.sealing, _answer_to(asked.digest())), Signed[Answered])
    check_signature(signed.message, signature_from(signed, by.party.name), by.party)
    if signed.message.asked != asked.digest():
        raise MalformedMessage(f"{by.party.name!r} answered another question: ask again")
    return signed.message


def _asked_to(card: OperatorCard) -> bytes:
    return f"enrolment question {card.digest()}".encode()


def _answer_to(asked_digest: str) -> bytes:
    return f"enrolment answer {asked_digest}".encode()


DIGITS: Final = 40
_GROUP: Final = 5
_BETWEEN: Final = re.compile(r"[\s.,/-]+")


def fingerprint_of(card: Message) -> str:
    """Eight groups of five digits, of everything in the card."""
    digits = f"{int(card.digest(), 16) % 10**DIGITS:0{DIGITS}d}"
    return " ".join(digits[start : start + _GROUP] for start in range(0, DIGITS, _GROUP))


def require_fingerprint(read: str, card: Message, whose: str) -> None:
    """Compare what was read over the phone, in time that does not depend on where it differs.

    Raises: ConfigurationError, with neither the digits that were expected nor where they differ
    """
    digits = _BETWEEN.sub("", read)
    if not (digits.isascii() and digits.isdigit() and len(digits) == DIGITS):
        raise ConfigurationError(
            f"option --fingerprint: {DIGITS} digits in groups of {_GROUP}, as {whose} reads them out; spaces do not "
            f"matter; found {len(digits)} characters"
        )
    if not hmac.compare_digest(digits, _BETWEEN.sub("", fingerprint_of(card))):
        raise ConfigurationError(
            f"option --fingerprint: what was read is not the fingerprint of this card of {whose}; nothing was kept. "
            "Have all the digits read once more, by a voice that you know; if they still differ, somebody put "
            "another card in its place: have it sent on another way"
        )


def first_roster(cards: tuple[OperatorCard, OperatorCard], requester: str, sites: Sequence[Party]) -> Roster:
    """Make the first roster of two operators' cards and the sites in this order. Raises: ConfigurationError, when they
    make no roster
    """
    by_side = {card.side: card for card in cards}
    if len(by_side) < len(Side) or cards[0].federation != cards[1].federation:
        raise ConfigurationError("a roster has one operator of side a and one of side b, of one federation")
    try:
        return Roster(
            federation=cards[0].federation,
            operator_a=by_side[Side.A].party,
            operator_b=by_side[Side.B].party,
            requester=requester,
            sites=tuple(sites),
        )
    except ValidationError as wrong:
        raise ConfigurationError(f"no roster can be made of these sites: {explain(Roster, wrong)}") from None
