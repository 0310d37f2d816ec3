"""How a joined site stands at both operators, and the roster, taken once both show the same and all have signed it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from client_agent.joining.asking import Asking, Send
from client_agent.joining.folder import Joined
from host.durable import write_durably
from protocol.errors import RosterRefused
from protocol.wire.authentic import require_roster
from protocol.wire.enrolment.questions import Standing
from protocol.wire.keyfile import dump_roster
from protocol.wire.messages import Roster, Signed


@dataclass(frozen=True)
class Together:
    """What both operators say, side a first; ``roster`` is in this site's folder."""

    standings: tuple[Standing, Standing]
    roster: Signed[Roster] | None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """What both wait for, each thing once; empty when there is nothing left to wait for."""
        found = dict.fromkeys(what for one in self.standings for what in one.waits_for)
        return tuple(found)


def look(joined: Joined, send: Send, clock: Callable[[], float] = time.time) -> Together:
    """Ask both; put the roster into the folder if both have it in place and it is the one that the cards promise.

    Raises: RosterRefused, BadSignature, Unavailable, StorageFull, and what an operator refuses with
    """
    first, second = (Asking(card, joined.keys, joined.party, send, clock).standing() for card in joined.cards)
    _require_one_pair(joined, (first, second))
    signed = _common(joined, first.roster, second.roster)
    if signed is not None and not joined.roster.exists():
        write_durably(joined.roster, dump_roster(signed).encode())
    return Together((first, second), signed)


def _require_one_pair(joined: Joined, standings: tuple[Standing, Standing]) -> None:
    """Each operator is paired with the card that the other's invitation named. Raises: RosterRefused"""
    for own, standing, other in zip(joined.cards, standings, reversed(joined.cards), strict=True):
        if standing.peer is not None and standing.peer != other:
            raise RosterRefused(
                f"{own.party.name} is paired with another card of {other.party.name} than the one that invited this "
                "site; nothing was taken: tell both operators by phone, who compare their fingerprints again"
            )


def _common(joined: Joined, first: Signed[Roster] | None, second: Signed[Roster] | None) -> Signed[Roster] | None:
    if first is None or second is None:
        return None
    if first.message != second.message:
        raise RosterRefused(
            "the two operators show different rosters; neither was taken: tell both, and the requester, by phone"
        )
    roster = require_roster(first)
    if (roster.operator_a, roster.operator_b) != tuple(card.party for card in joined.cards):
        raise RosterRefused(
            "the roster names other operators, or other keys of theirs, than the invitations did; it was not taken: "
            "compare both operators' fingerprints by phone"
        )
    own = roster.party(joined.party.name)
    if own is not None and own != joined.party:
        raise RosterRefused(
            f"the roster has another public card for {joined.party.name!r} than this site's; it was not taken: "
            "somebody put another key in its place: tell both operators and the requester by phone"
        )
    return first if own is not None else None
