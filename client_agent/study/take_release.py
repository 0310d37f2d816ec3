"""A released sum at a site: evidence checked, what servers serve fetched, the average opened (docs/protocol.md 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from client_agent.network.server_client import ServerClient
from protocol.channel.keys import SealingKey
from protocol.errors import UnknownParty
from protocol.messages import bodies
from protocol.messages.control import OutputHeader, Roster
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
