"""Ends of a study over its requester's signature: no other word of a server ends one (docs/protocol.md 14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import AnnouncementMismatch, RefusedMessage
from protocol.messages.control import Roster, Signed, StudyEnd, StudyView, require_signatures


@dataclass(frozen=True)
class ShownEnds:
    """The end that every view carries, None for a view without a valid one; ``refused`` says what did not hold."""

    ends: tuple[Signed[StudyEnd] | None, ...]
    refused: tuple[RefusedMessage, ...]

    @property
    def first(self) -> Signed[StudyEnd] | None:
        """One server's word is enough where the requester signed it; None while the study goes on."""
        return next((end for end in self.ends if end is not None), None)


def require_end(signed: Signed[StudyEnd], roster: Roster, study_digest: str) -> StudyEnd:
    """The end of this study that its requester signed. Raises: BadSignature, AnnouncementMismatch"""
    end = require_signatures(signed, roster, (roster.requester,))
    if end.study_digest != study_digest:
        raise AnnouncementMismatch("a server shows the end of another study as this one's; nothing has ended")
    return end


def shown_ends(views: Sequence[StudyView], roster: Roster, study_digest: str) -> ShownEnds:
    """Return the ends in the views; a forged one in one of them does not hide the other's."""
    ends: list[Signed[StudyEnd] | None] = []
    refused: list[RefusedMessage] = []
    for view in views:
        try:
            if view.end is not None:
                require_end(view.end, roster, study_digest)
        except RefusedMessage as forged:
            refused.append(forged)
            ends.append(None)
        else:
            ends.append(view.end)
    return ShownEnds(tuple(ends), tuple(refused))
