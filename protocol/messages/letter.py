"""Letters: their topics, who may send one to whom, how long one can be, how it is sealed (docs/protocol.md 3, 4, 9).

    letter      a message in its compact form, padded in its seal; bound to kind, study, sender, recipient and number
    checkpoint  the kept vector, 4 bytes per coordinate, under a key that the welcome letter brings

The servers relay letters and cannot open them. What they can check is here, so that no site can leave more with them
than a study needs: a topic stands for one thing that was announced, and every kind has its own small cap.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.channel.encoding import (
    LENGTH_BYTES,
    pack_message,
    pad,
    shortened,
    unpack_message,
    unpad,
)
from protocol.channel.keys import SealingKey
from protocol.channel.sealing import (
    BodyReader,
    encrypt_body,
    open_small,
    seal_small,
    sealed_length,
    sealed_small_length,
)
from protocol.errors import BrokenSeal, MalformedMessage, NotListed, UnknownParty
from protocol.messages.control import MAX_CONTROL_BYTES, Message, Party, Roster, Study
from protocol.messages.paths import EVERY_SITE
from protocol.parameters import PROTOCOL_VERSION
from protocol.shared_model import state_vectors

M = TypeVar("M", bound=Message)

NOTICE_BYTES: Final = 2048
"""Every decline, refusal and hindrance, padded, inside its seal."""
ATTESTED_BYTES: Final = 256
"""Every attestation likewise: it tells no reasons."""
NOTICE_REASON_BYTES: Final = 1024
"""The most bytes of a reason as JSON: with the longest names and codes around it, it fits a notice."""
NOTICE_SEALED_BYTES: Final = sealed_small_length(NOTICE_BYTES)
"""The most bytes of such a notice that are ever read."""
ATTESTED_SEALED_BYTES: Final = sealed_small_length(ATTESTED_BYTES)
"""The most bytes of an attestation that are ever read."""
_COORDINATE_BYTES: Final = 4
_FIXED_BYTES: Final = 2**16
_SITE_BYTES: Final = 2**13
_CLASS_BYTES: Final = 32
_NUMBER: Final = r"(0|[1-9][0-9]{0,6})"


class LetterKind(StrEnum):
    """The kinds of letters; a letter's topic is its kind, then a dash and the round or model version."""

    WELCOME = "welcome"
    CHECKPOINT = "checkpoint"
    WEIGHTS = "weights"
    DECLINE = "decline"
    ATTESTED = "attested"
    REFUSAL = "refusal"
    HINDERED = "hindered"

    @property
    def numbered(self) -> bool:
        """True if the topic holds a round or model version; a letter sent once per study has none."""
        return self not in (LetterKind.REFUSAL, LetterKind.HINDERED)

    @property
    def of_a_round(self) -> bool:
        """True if the number is a round's; otherwise it is a model version, or absent."""
        return self in (LetterKind.WEIGHTS, LetterKind.DECLINE)

    @property
    def from_requester(self) -> bool:
        return self in (LetterKind.WELCOME, LetterKind.CHECKPOINT, LetterKind.WEIGHTS)

    @property
    def notice(self) -> bool:
        """True if all letters of this kind have one length."""
        return self in (LetterKind.DECLINE, LetterKind.REFUSAL, LetterKind.HINDERED, LetterKind.ATTESTED)


_TOPICS: Final = {
    kind: re.compile(f"{kind.value}-{_NUMBER}" if kind.numbered else kind.value, re.ASCII) for kind in LetterKind
}


@dataclass(frozen=True)
class Topic:
    """A kind with its round or model version; 0 where it has none."""

    kind: LetterKind
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind.value}-{self.number}" if self.kind.numbered else self.kind.value


def parse_topic(text: str) -> Topic:
    """Each topic has one spelling. Raises: MalformedMessage, which names those that there are"""
    for kind, pattern in _TOPICS.items():
        match = pattern.fullmatch(text)
        if match is not None:
            return Topic(kind, int(match[1]) if kind.numbered else 0)
    known = ", ".join(f"{kind.value}-NUMBER" if kind.numbered else kind.value for kind in LetterKind)
    raise MalformedMessage(f"{text[:80]!r} is no topic of a letter; there are {known}")


def require_route(kind: LetterKind, sender: str, recipient: str, roster: Roster) -> None:
    """Check sender and reader: a checkpoint goes to every site at once, every other letter from one site to another.

    Raises: NotListed, UnknownParty
    """
    if kind.from_requester != (sender == roster.requester):
        writer = f"the requester {roster.requester!r}" if kind.from_requester else "a contributor"
        raise NotListed(f"a letter {kind.value!r} is written by {writer}, not by {sender!r}")
    if kind is LetterKind.CHECKPOINT and recipient != EVERY_SITE:
        raise NotListed(f"a checkpoint goes to {EVERY_SITE!r}, not to {recipient!r}")
    if not kind.from_requester and recipient != roster.requester:
        raise NotListed(f"a site may write to the requester {roster.requester!r} only, not to {recipient!r}")
    if kind in (LetterKind.WELCOME, LetterKind.WEIGHTS) and recipient not in {p.name for p in roster.contributors}:
        raise UnknownParty(f"no contributor {recipient!r} in the roster")


def most_bytes(kind: LetterKind, study: Study, sites: int) -> int:
    """The longest sealed letter of a kind in a study with so many sites, the requester included.

    A checkpoint has exactly this length, and so has a notice. A welcome and a weight list carry the evidence of past
    releases: a weight, a commitment and a name or two for every site; the skips since, and the classes' totals.
    """
    if kind is LetterKind.CHECKPOINT:
        return sealed_length(_kept_bytes(study))
    if kind.notice:
        return sealed_small_length(_notice_bytes(kind))
    totals = _CLASS_BYTES * study.model.classes if study.rule.name.counts_classes else 0
    return sealed_small_length(min(_FIXED_BYTES + _SITE_BYTES * sites + totals, MAX_CONTROL_BYTES))


def require_length(kind: LetterKind, found: int, most: int) -> None:
    """MalformedMessage unless a letter whose kind has one length has it; ``most`` is ``most_bytes``."""
    if (kind.notice or kind is LetterKind.CHECKPOINT) and found != most:
        raise MalformedMessage(
            f"a letter {kind.value!r} of this study has {most} bytes, this one has {found}: a sender pads it to that"
        )


# --- written and read by sites ----------------------------------------------------------------------------------------


def letter_info(kind: str, study_digest: str, sender: str, recipient: str, number: int) -> bytes:
    """Return the context that a letter's seal is bound to; names hold no spaces."""
    return f"{PROTOCOL_VERSION} letter {kind} {study_digest} {sender} {recipient} {number}".encode()


def padded_bytes(content: bytes, kind: str) -> int:
    """Return a letter's length inside its seal: fixed for a notice, else computed from what servers know."""
    named = LetterKind(kind)
    return _notice_bytes(named) if named.notice else LENGTH_BYTES + len(content)


def _notice_bytes(kind: LetterKind) -> int:
    return ATTESTED_BYTES if kind is LetterKind.ATTESTED else NOTICE_BYTES


def seal_letter(message: Message, kind: str, study_digest: str, sender: str, recipient: Party, number: int) -> bytes:
    """Seal a letter to one site; ``number`` is its round or model version.

    Reveals: to the relaying servers, its kind and what its compact form's length follows from
    Raises:  MalformedMessage, when a notice's text does not fit
    """
    content = pack_message(message)
    padded = pad(content, padded_bytes(content, kind))
    return seal_small(padded, recipient.sealing, letter_info(kind, study_digest, sender, recipient.name, number))


def open_letter(
    sealed: bytes,
    form: type[M],
    kind: str,
    study_digest: str,
    sender: str,
    recipient: str,
    number: int,
    key: SealingKey,
) -> M:
    """The inverse of ``seal_letter``.

    Raises: BrokenSeal, MalformedMessage, also for a letter that is not padded or not written like every other
    """
    padded = open_small(sealed, key, letter_info(kind, study_digest, sender, recipient, number))
    content = unpad(padded)
    text = unpack_message(content)
    message = form.parse(text)
    expected = padded_bytes(content, kind)
    if len(padded) != expected or text != message.canonical():
        raise MalformedMessage(
            f"a letter has {len(padded)} bytes inside its seal, its kind and content take {expected}, with every field "
            "spelled: its sender must write and pad it like every other"
        )
    return message


def told(reason: str) -> str:
    """As much of a reason as a notice holds."""
    return shortened(reason, NOTICE_REASON_BYTES)


def seal_checkpoint(kept: bytes, content_key: bytes) -> bytes:
    """The kept vector under a key that the welcomes bring. Requires: ``content_key`` fresh, for this version alone"""
    return b"".join(encrypt_body(content_key, [kept]))


def open_checkpoint(sealed: bytes, content_key: bytes, digest: str, study: Study) -> NDArray[np.float32]:
    """The kept vector whose SHA-256 the welcome names. Raises: BrokenSeal"""
    reader = BodyReader(content_key)
    data = b"".join(reader.feed(sealed)) + reader.finish()
    if not hmac.compare_digest(hashlib.sha256(data).hexdigest(), digest):
        raise BrokenSeal("the checkpoint is not the one that the welcome names")
    expected = _kept_bytes(study)
    if len(data) != expected:
        raise BrokenSeal(f"the checkpoint holds {len(data)} bytes, expected {expected}")
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


def _kept_bytes(study: Study) -> int:
    """Return the bytes of the model that a site keeps: its coordinates, then the server optimiser's moments."""
    return _COORDINATE_BYTES * study.model_dimension * state_vectors(study.rule.name)
