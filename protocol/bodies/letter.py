"""The kinds of letters: their topics, who may send one to whom, and how long one can be (docs/protocol.md 3, 4, 9).

The servers relay letters and cannot open them. What they can check is here, so that no site can leave more with them
than a study needs: a topic stands for one thing that was announced, and every kind has its own small cap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.errors import MalformedMessage, NotListed, UnknownParty
from protocol.rules.server_optimiser import state_vectors
from protocol.wire.channel.sealing import sealed_length, sealed_small_length
from protocol.wire.messages import MAX_CONTROL_BYTES, Roster, Study
from protocol.wire.paths import EVERY_SITE

NOTICE_BYTES: Final = 2048
"""Every decline, refusal and attestation, padded, inside its seal."""
NOTICE_REASON_BYTES: Final = 1024
"""Of a reason as JSON: with the longest names and codes around it, it fits a notice."""
_COORDINATE_BYTES: Final = 4
_FIXED_BYTES: Final = 2**16
_SITE_BYTES: Final = 2**13
_CLASS_BYTES: Final = 32
_NUMBER: Final = r"(0|[1-9][0-9]{0,6})"


class LetterKind(StrEnum):
    """What a letter is; its topic is the kind, and the round or model version behind a dash."""

    WELCOME = "welcome"
    CHECKPOINT = "checkpoint"
    WEIGHTS = "weights"
    DECLINE = "decline"
    ATTESTED = "attested"
    REFUSAL = "refusal"

    @property
    def numbered(self) -> bool:
        """Whether a round or model version belongs to the topic; a refusal stands alone."""
        return self is not LetterKind.REFUSAL

    @property
    def of_a_round(self) -> bool:
        """Whether the number is a round's; else it is a model version, or there is none."""
        return self in (LetterKind.WEIGHTS, LetterKind.DECLINE)

    @property
    def from_requester(self) -> bool:
        return self in (LetterKind.WELCOME, LetterKind.CHECKPOINT, LetterKind.WEIGHTS)

    @property
    def notice(self) -> bool:
        """Whether all letters of this kind have one length."""
        return self in (LetterKind.DECLINE, LetterKind.REFUSAL, LetterKind.ATTESTED)


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
    """Who writes what to whom: a checkpoint goes to every site at once, every other letter between two sites.

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
        return sealed_length(_COORDINATE_BYTES * study.model_dimension * state_vectors(study.rule.name))
    if kind.notice:
        return sealed_small_length(NOTICE_BYTES)
    totals = _CLASS_BYTES * study.model.classes if study.rule.name.counts_classes else 0
    return sealed_small_length(min(_FIXED_BYTES + _SITE_BYTES * sites + totals, MAX_CONTROL_BYTES))


def require_length(kind: LetterKind, found: int, most: int) -> None:
    """MalformedMessage unless a letter whose kind has one length has it; ``most`` is ``most_bytes``."""
    if (kind.notice or kind is LetterKind.CHECKPOINT) and found != most:
        raise MalformedMessage(
            f"a letter {kind.value!r} of this study has {most} bytes, this one has {found}: a sender pads it to that"
        )
