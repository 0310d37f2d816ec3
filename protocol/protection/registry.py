"""The known protections, chosen by a round's announcement, for servers and sites alike (docs/protocol.md 3, 9, 11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.errors import MalformedMessage
from protocol.messages import bodies
from protocol.messages.bodies import Part, content_bytes
from protocol.messages.control import Announcement, OutputHeader, Purpose, ReleaseSet, Roster, ShareKind, Study
from protocol.messages.purpose import StudyProtection
from protocol.parameters import TAG_COORDINATES
from protocol.protection.ckks import Ciphertexts
from protocol.protection.interface import Protection
from protocol.protection.shares import Shares
from protocol.sharing import Side

_KNOWN: Final[Mapping[StudyProtection, Protection]] = {
    StudyProtection.SHARES: Shares(),
    StudyProtection.CKKS: Ciphertexts(),
}


def protection_of(announcement: Announcement) -> Protection:
    """That of one round."""
    return _KNOWN[announcement.protection]


def expected(study: Study, announcement: Announcement, attempt: int, site: str, roster: Roster, side: Side) -> Part:
    """Return one server's part of a site's contribution. Raises: MalformedMessage, when it gets nothing"""
    part = protection_of(announcement).parts(study, announcement, attempt, site, roster).get(side)
    if part is None:
        raise MalformedMessage(
            f"the round is one of ciphertexts, which go to side A alone; this server is side {side.value.upper()}"
        )
    return part


def encoded_bytes(study: Study, announcement: Announcement) -> int:
    """Return the length of a round's encoded vector before it is split, without tags, which differ by attempt.

    It is signed numbers of 64 bits, whatever ring its shares are in.
    """
    kind, length = protection_of(announcement).whole(study, announcement.purpose)
    kind = ShareKind.VECTOR if kind is ShareKind.VECTOR48 else kind
    return content_bytes(kind, length - TAG_COORDINATES if announcement.tagged else length)


def most_bytes(study: Study) -> int:
    """The longest body of any contribution in any round of a study."""
    rounds = ((_KNOWN[study.protection.of(purpose)], purpose) for purpose in Purpose)
    return bodies.most_body_bytes(max(content_bytes(*known.whole(study, purpose)) for known, purpose in rounds))


def output_header(
    study: Study, announcement: Announcement, release: ReleaseSet, side: Side, recipient: str
) -> OutputHeader:
    """The public header of what a side serves of a released round; ``recipient`` is the id of the site's key.

    Raises: UnknownResource, when that side serves nothing of it
    """
    kind, length = protection_of(announcement).served(study, announcement, side)
    return OutputHeader(release_digest=release.digest(), side=side, share_kind=kind, recipient=recipient, length=length)
