"""This site's session with one server: opened when one is needed, left when it is over."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from host.clock import SYSTEM, Clock
from host.randomness import Randomness
from protocol.channel.encoding import KEPT, worth_keeping
from protocol.channel.keys import SEALING_KEY_BYTES, generate_sealing_key
from protocol.channel.session import MOST_BACK, SECRET_BYTES, SessionGrant, SessionKeys, SessionOffer, accepted, offered
from protocol.errors import RefusedMessage

_RENEWED_BEFORE_S: Final = 300.0
_SOON_S: Final = 60.0
"""A session that is over sooner than so after it began was not ended by a restart."""
_LEFT_ALONE_S: Final = 600.0
_WAITS_S: Final = 5.0
"""For another thread that opens one; then envelopes will do."""

Ask = Callable[[SessionOffer], SessionGrant]
"""Hands the offer in, in an envelope. Raises: what a request raises"""


@dataclass
class HeldSession:
    """A session as its site holds it: every counter is given out once."""

    name: bytes
    keys: SessionKeys = field(repr=False)
    began_s: float
    ends_s: float
    server: str
    over: bool = False
    counters: Iterator[int] = field(default_factory=itertools.count, repr=False)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict, repr=False)

    def next_counter(self) -> int:
        return next(self.counters)

    def keep(self, path: str, counter: int, body: bytes) -> None:
        """The answer from this address, which the next one from there can be deflated against."""
        if worth_keeping(body):
            answers = {known: held for known, held in self.answers.items() if known != path}
            self.answers = {**dict([*answers.items()][-(KEPT - 1) :]), path: (counter, body)}

    def earlier(self, path: str, counter: int) -> tuple[int, bytes]:
        """Return the last answer from this address, and how many requests before ``counter`` it lies; or nothing."""
        before, body = self.answers.get(path, (counter, b""))
        back = counter - before
        return (back, body) if 0 < back <= MOST_BACK else (0, b"")


class SessionKeeper:
    """At most one session with one server at a time."""

    def __init__(self, caller: str, randomness: Randomness, clock: Callable[[], float], waits: Clock = SYSTEM) -> None:
        """``waits``: the clock on which a thread waits for another one that opens a session."""
        self._caller = caller
        self._randomness = randomness
        self._clock = clock
        self._waits = waits
        self._held: HeldSession | None = None
        self._opened_or_not = threading.Condition()
        self._opening = False
        self._not_before_s = 0.0

    def session(self, server: str, ask: Ask) -> HeldSession | None:
        """The session with the server of this key id, opened if need be; None while there can be none.

        Raises: what ``ask`` raises where the server cannot be reached, or has no time
        """
        found = self._usable(server)
        if found is not None or self._clock() < self._not_before_s:
            return found
        if not self._begin_opening():
            return None
        try:
            found = self._usable(server)
            if found is None and self._clock() >= self._not_before_s:
                found = self._held = self._opened(server, ask, self._clock())
            return found
        finally:
            with self._opened_or_not:
                self._opening = False
                self._opened_or_not.notify_all()

    def _begin_opening(self) -> bool:
        """Wait until no other thread opens a session, but not for long."""
        with self._opened_or_not:
            if not self._waits.wait_for(self._opened_or_not, lambda: not self._opening, _WAITS_S):
                return False
            self._opening = True
            return True

    def _usable(self, server: str) -> HeldSession | None:
        held, now = self._held, self._clock()
        if held is None:
            return None
        if held.over and now - held.began_s < _SOON_S:
            self._held, self._not_before_s = None, now + _LEFT_ALONE_S
        return None if held.over or now >= held.ends_s or held.server != server else held

    def _opened(self, server: str, ask: Ask, now: float) -> HeldSession | None:
        key = generate_sealing_key(self._randomness.bytes(SEALING_KEY_BYTES, "session key"))
        offer = offered(self._randomness.bytes(SECRET_BYTES, "session secret"), key)
        try:
            grant = ask(offer)
            keys = accepted(offer, key, grant, caller=self._caller, server=server)
        except RefusedMessage:
            self._not_before_s = now + _LEFT_ALONE_S  # a server of before, or one that grants none
            return None
        ends_s = now + max(grant.lives_s - _RENEWED_BEFORE_S, grant.lives_s / 2)
        return HeldSession(bytes.fromhex(grant.session), keys, now, ends_s, server)
