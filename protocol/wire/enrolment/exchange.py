"""Questions and answers of enrolment on their way: signed, framed, padded and sealed, in one piece each.

A proxy that opens TLS sees lengths (padded), times and addresses. What it changes opens nowhere; what it repeats is
answered again, sealed to the same site; a question that is older than a minute is refused.
"""

from __future__ import annotations

from typing import Final

from protocol.errors import BadSignature, MalformedMessage, TooLarge
from protocol.wire.authentic import check_signature, sign, signature_from
from protocol.wire.channel.envelope import padded_length
from protocol.wire.channel.sealing import open_small, seal_small, sealed_small_length
from protocol.wire.channel.signing import MAX_AGE_S, MAX_SKEW_S
from protocol.wire.enrolment.card import OperatorCard
from protocol.wire.enrolment.questions import Answered, Asked
from protocol.wire.keyfile import PartyKeys
from protocol.wire.message import MAX_CONTROL_BYTES, Signed
from protocol.wire.peer_messages import pack_frame, unpack_frame
from protocol.wire.roster import Party

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
    """Signed by the operator and sealed to the site."""
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
