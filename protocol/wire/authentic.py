"""Signatures over control messages: who signed, over what, and who must have (docs/protocol.md 3, 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from protocol.errors import BadSignature, UnknownParty
from protocol.wire.channel.signing import sign_message, verify_message
from protocol.wire.keys import SigningKey, VerifyKey
from protocol.wire.messages import Message, Party, Roster, Signature, Signed

M = TypeVar("M", bound=Message)


def signature_by(signer: str, key: SigningKey, message: Message) -> Signature:
    """Ed25519 over the message's domain and canonical bytes."""
    return Signature(signer=signer, value=sign_message(message.KIND, message.canonical(), key).hex())


def sign(message: M, signer: str, key: SigningKey) -> Signed[M]:
    """The message with one signature."""
    envelope = cast(type[Signed[M]], Signed[type(message)])  # type: ignore[misc]  # made of a value's class
    return envelope(message=message, signatures=(signature_by(signer, key, message),))


def with_signature(signed: Signed[M], signature: Signature) -> Signed[M]:
    """The same message with one more signature; a second one of the same signer replaces the first."""
    kept = tuple(s for s in signed.signatures if s.signer != signature.signer)
    return signed.model_copy(update={"signatures": (*kept, signature)})


def countersign(signed: Signed[M], signer: str, key: SigningKey) -> Signed[M]:
    return with_signature(signed, signature_by(signer, key, signed.message))


def check_signature(message: Message, signature: Signature, party: Party) -> None:
    """BadSignature unless ``party`` made this signature over this message."""
    if signature.signer != party.name:
        raise BadSignature(f"{message.KIND}: signed by {signature.signer!r}, expected {party.name!r}")
    key = VerifyKey.from_bytes(bytes.fromhex(party.signing_key))
    verify_message(message.KIND, message.canonical(), bytes.fromhex(signature.value), key)


def signature_from(signed: Signed[M], signer: str) -> Signature:
    """The signer's signature, unchecked. Raises: BadSignature, when it is missing"""
    signature = signed.signature_of(signer)
    if signature is None:
        raise BadSignature(f"{signed.message.KIND}: the signature of {signer!r} is missing")
    return signature


def require_signatures(signed: Signed[M], roster: Roster, signers: Sequence[str]) -> M:
    """The message, once every one of ``signers`` has validly signed it; BadSignature or UnknownParty otherwise."""
    for name in signers:
        party = roster.party(name)
        if party is None:
            raise UnknownParty(f"{name!r} is not in the roster")
        check_signature(signed.message, signature_from(signed, name), party)
    return signed.message


def require_roster(signed: Signed[Roster]) -> Roster:
    """A roster is valid once both operators and the requester have signed it."""
    roster = signed.message
    names = (roster.operator_a.name, roster.operator_b.name, roster.requester)
    return require_signatures(signed, roster, names)
