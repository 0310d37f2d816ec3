"""The sessions that sites have with this server: in memory alone, few for each site, none after a restart."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocol.channel.encoding import EarlierAnswers
from protocol.channel.session import (
    ID_BYTES,
    MOST_COUNTER,
    SECRET_BYTES,
    CounterWindow,
    SessionGrant,
    SessionHead,
    SessionKeys,
    SessionOffer,
    granted,
    read_head,
    require_head,
)
from protocol.channel.signing import require_time
from protocol.errors import SessionUnknown
from protocol.messages.control import Party

LIVES_S: Final = 3600
MOST_OF_A_SITE: Final = 8
"""An agent, and commands beside it; the one that was not used for longest makes room."""


@dataclass
class Session:
    """One site's session, with the keys that both parties had when it began."""

    party: Party
    server: str
    keys: SessionKeys = field(repr=False)
    ends_s: float
    counters: CounterWindow = field(default_factory=CounterWindow, repr=False)
    answers: EarlierAnswers = field(default_factory=EarlierAnswers, repr=False)


class Sessions:
    """Every session of one server; the event loop's alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._of)

    def grant(self, party: Party, server: str, offer: SessionOffer) -> SessionGrant:
        """A new session of ``party``, which signed the request with the offer; ``server`` is this one's key id.

        Raises: MalformedMessage
        """
        name = secrets.token_bytes(ID_BYTES)
        secret = secrets.token_bytes(SECRET_BYTES)
        grant, keys = granted(offer, secret, name, LIVES_S, caller=party.key_id, server=server)
        self._make_room(party)
        self._of[name] = Session(party, server, keys, self._clock() + LIVES_S)
        return grant

    def take(self, tagged: bytes, is_site: Callable[[Party], bool], server: str) -> tuple[Session, SessionHead]:
        """Return the session of the request with this head; its counter is used up.

        Raises: SessionUnknown; BadSignature, for a head that its owner did not make, or not now, or that came before;
                TooLarge
        """
        head = read_head(tagged)
        session = self._of.get(head.session)
        if session is None:
            raise _unknown("there is none of this id")
        if not is_site(session.party) or session.server != server:
            del self._of[head.session]
            raise _unknown("keys have changed")
        require_head(session.keys, tagged)
        if self._clock() >= session.ends_s or head.counter >= MOST_COUNTER:
            del self._of[head.session]
            raise _unknown("its time is over")
        require_time(head.created, int(self._clock()))
        session.counters.take(head.counter)
        self._of[head.session] = self._of.pop(head.session)  # the last used one stands last
        return session, head

    def _make_room(self, party: Party) -> None:
        now = self._clock()
        over = [name for name, session in self._of.items() if now >= session.ends_s]
        mine = [name for name, session in self._of.items() if session.party.name == party.name and name not in over]
        for name in over + mine[: max(0, len(mine) + 1 - MOST_OF_A_SITE)]:
            del self._of[name]


def _unknown(why: str) -> SessionUnknown:
    return SessionUnknown(
        f"the session that this request came in is over here ({why}): ask again in an envelope, and open another"
    )
