"""The end of a round or a study at a site, as the servers prove it: a sum, a skip, the requester's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from client_agent.net.server_client import ServerClient
from protocol.channel.keys import SealingKey
from protocol.errors import AnnouncementMismatch, RefusedMessage, UnknownParty
from protocol.messages import bodies
from protocol.messages.control import (
    OutputHeader,
    Roster,
    RoundOutcome,
    RoundState,
    RoundView,
    Signed,
    StudyEnd,
    StudyView,
    require_signatures,
)
from protocol.protection.interface import AtSite
from protocol.protection.registry import output_header, protection_of
from protocol.protection.shares import open_counts, open_summary
from protocol.rounds.evidence import PastRelease, check_release
from protocol.sharing import Side
from protocol.summary.table_one import TableOne

T = TypeVar("T")


def own_key_id(roster: Roster, site: str) -> str:
    """Return the name of this site in a header. Raises: UnknownParty, where it was removed"""
    party = roster.party(site)
    if party is None:
        raise UnknownParty(f"site {site!r} is not in the roster any more: no output is for it")
    return party.key_id


@dataclass(frozen=True)
class Outputs:
    """Opens released sums sealed to this site."""

    at: AtSite
    study_digest: str
    key: SealingKey = field(repr=False)
    clients: Mapping[Side, ServerClient]

    def open(self, past: PastRelease) -> NDArray[np.float32]:
        """The weighted average update of a released round, opened while it is received; nothing in clear is on disk.

        Shapes:   -> float32[D], without the coordinate of the sites' own weights where they weigh themselves
        Reveals:  the average, to this site
        Raises:   as :func:`check_release` and :meth:`Protection.open`
        """
        check_release(past, self.at.roster, self.study_digest)
        return protection_of(past.announcement).open(self.at, past, partial(self.fetch, past))

    def open_counts(self, past: PastRelease) -> tuple[int, ...]:
        """The class counts of all sites in a released round of counts together. Raises: as :meth:`open`"""
        check_release(past, self.at.roster, self.study_digest)
        return open_counts(self.at, past, partial(self.fetch, past))

    def open_summary(self, past: PastRelease) -> TableOne:
        """Open what all sites of a released round summarised together. Raises: as :meth:`open`"""
        check_release(past, self.at.roster, self.study_digest)
        return open_summary(self.at, past, partial(self.fetch, past))

    def fetch(self, past: PastRelease, side: Side, take: Callable[[OutputHeader, Iterator[bytes]], T]) -> T:
        """Return ``take`` of a side's output, starting again where the connection breaks."""
        study, recipient = self.at.study, own_key_id(self.at.roster, self.at.site)
        expected = output_header(study, past.announcement, past.release_set.message, side, recipient)
        return self.clients[side].fetch_output(
            study.name,
            past.announcement.round,
            lambda pieces: take(expected, bodies.read_output(expected, self.key, pieces)),
            bodies.most_output_bytes(expected),
        )


def require_outcome(
    signed: Signed[RoundOutcome], roster: Roster, study_digest: str, round_number: int, state: RoundState
) -> RoundOutcome:
    """That this study's round is skipped, ranked or closed, as both servers signed.

    Raises: BadSignature, AnnouncementMismatch
    """
    outcome = require_signatures(signed, roster, (roster.operator_a.name, roster.operator_b.name))
    named = (outcome.study_digest, outcome.round, outcome.outcome)
    if named != (study_digest, round_number, state):
        raise AnnouncementMismatch(
            f"round {round_number}: what the servers signed does not say that this study's round {round_number} is "
            f"{state.value}"
        )
    return outcome


def shown_outcome(
    a: RoundView, b: RoundView, roster: Roster, study_digest: str, state: RoundState = RoundState.SKIPPED
) -> Signed[RoundOutcome] | None:
    """The skip (or a ranking's end, or a measurement's) with both signatures, whichever view carries it; else None.

    Raises: BadSignature, AnnouncementMismatch
    """
    operators = (roster.operator_a.name, roster.operator_b.name)
    for view in (a, b):
        outcome = view.outcome
        if outcome is not None and all(outcome.signature_of(name) is not None for name in operators):
            require_outcome(outcome, roster, study_digest, view.round, state)
            return outcome
    return None


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
