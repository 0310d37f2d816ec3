"""Requests as they leave a site: their bodies, signed and in an envelope or in a session."""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from client_agent.net.answers import Asked, AskedInSession
from host.clock import SYSTEM, Clock
from host.randomness import Randomness
from protocol.channel import session as in_session
from protocol.channel.encoding import KEPT, worth_keeping
from protocol.channel.envelope import SEALED_TYPE, Correspondence, EnclosedRequest, sign_enclosed
from protocol.channel.keys import SEALING_KEY_BYTES, generate_sealing_key
from protocol.channel.session import MOST_BACK, SECRET_BYTES, SessionGrant, SessionKeys, SessionOffer, accepted, offered
from protocol.channel.signing import DigestField
from protocol.errors import RefusedMessage
from protocol.messages import paths
from protocol.messages.control import Party
from protocol.roster.keyfile import PartyKeys

PIECE_BYTES: Final = 2**18
_ENCLOSED_OF_FILES: Final = 2**12
_ENCLOSED_WHOLE_BYTES: Final = 2**20
"""A server takes no envelope that is longer than a control message can be; the queries of 300 sites are."""


@dataclass(frozen=True)
class Body:
    """A request's body: a few bytes, or a file of which the digest is known."""

    data: bytes | Path
    digest: bytes
    length: int
    after_piece: Callable[[], None] = field(default=lambda: None, repr=False)
    digest_field: DigestField = DigestField.CONTENT
    start: int = 0
    """The place in a file where it begins; ``digest`` is then the whole file's."""
    is_sealed: bool = False

    @classmethod
    def of(cls, data: bytes) -> Body:
        return cls(data, hashlib.sha256(data).digest(), len(data))

    @classmethod
    def sealed(cls, data: bytes) -> Body:
        """Bytes that nobody on the way can read anyway: what is long of them need not be enclosed."""
        return replace(cls.of(data), is_sealed=True)

    @classmethod
    def file(cls, path: Path, digest: bytes) -> Body:
        return cls(path, digest, path.stat().st_size)

    @classmethod
    def contribution(cls, path: Path, digest: bytes, after_piece: Callable[[], None] = lambda: None) -> Body:
        """A sealed share and its message digest; ``after_piece`` is called whenever a piece is on its way."""
        return cls(path, digest, path.stat().st_size, after_piece, DigestField.SEALED)

    def part(self, start: int, size: int) -> Body:
        """``size`` bytes of a file from ``start`` on, or what is left of them, under the digest of the whole."""
        assert isinstance(self.data, Path), "only a file is sent in parts"
        return replace(self, start=start, length=min(size, self.length - start))

    def beginning(self) -> bytes:
        """Return the part for the envelope: a few bytes whole; else what may hold a public header."""
        if isinstance(self.data, bytes):
            follows = self.is_sealed and self.length > _ENCLOSED_WHOLE_BYTES
            return self.data[:_ENCLOSED_OF_FILES] if follows else self.data
        if self.start:
            return b""
        with self.data.open("rb") as file:
            return file.read(min(_ENCLOSED_OF_FILES, self.length))

    def pieces(self, after: int = 0) -> Iterator[bytes]:
        """Yield what follows the first ``after`` bytes."""
        if isinstance(self.data, bytes):
            for start in range(after, len(self.data), PIECE_BYTES):
                yield self.data[start : start + PIECE_BYTES]
                self.after_piece()
            return
        left = self.length - after
        with self.data.open("rb") as file:
            file.seek(self.start + after)
            while left and (piece := file.read(min(PIECE_BYTES, left))):
                left -= len(piece)
                yield piece
                self.after_piece()


_RENEWED_BEFORE_S: Final = 300.0
_SOON_S: Final = 60.0
"""A session that is over sooner than so after it began was not ended by a restart."""
_LEFT_ALONE_S: Final = 600.0
_WAITS_S: Final = 5.0
"""The wait for another thread that opens a session; after it, envelopes will do."""

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


_NONCE_BYTES: Final = 18
_NO_COMPRESSION: Final = ("Accept-Encoding", "identity")
Method = Literal["GET", "POST", "PUT"]


def _forgets(_: bytes) -> None:
    """Nothing is deflated against answers outside sessions."""


@dataclass(frozen=True)
class Closed:
    """One request: where it goes, its headers and content, and what its answer must belong to."""

    url: str
    headers: list[tuple[str, str]]
    content: Iterator[bytes]
    asked: Asked
    follows: bool
    """Some of the body is behind what is sealed, where others can reach it."""
    session: HeldSession | None = None
    keep: Callable[[bytes], None] = _forgets
    """Takes an answer against which the next one from this address can be deflated."""


class Enclosing:
    """Closes one site's requests to one server; nothing is closed twice alike."""

    def __init__(self, keys: PartyKeys, randomness: Randomness, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._randomness = randomness
        self._clock = clock

    def closed(self, to: Party, method: Method, path: str, body: Body, session: HeldSession | None = None) -> Closed:
        """A request to the server ``to``, which has an address; in its session where there is one."""
        enclosed = body.beginning()
        asked = EnclosedRequest(
            method=method,
            target=path,
            body_digest=body.digest.hex(),
            digest_field=body.digest_field,
            enclosed_bytes=len(enclosed),
            body_bytes=body.length,
        )
        keep: Callable[[bytes], None] = _forgets
        if session is None:
            front, headers, stated = self._in_envelope(to, asked, enclosed)
        else:
            counter = session.next_counter()
            front, headers, stated = self._in_session(to, session, asked, enclosed, counter)
            if method == "GET":
                keep = partial(session.keep, _without_query(path), counter)
        length = ("Content-Length", str(len(front) + body.length - len(enclosed)))
        content = chain([front], body.pieces(len(enclosed)))
        follows = body.length > len(enclosed)
        return Closed(_address(to), [_NO_COMPRESSION, *headers, length], content, stated, follows, session, keep)

    def _in_envelope(
        self, to: Party, request: EnclosedRequest, enclosed: bytes
    ) -> tuple[bytes, list[tuple[str, str]], Asked]:
        nonce = base64.urlsafe_b64encode(self._randomness.bytes(_NONCE_BYTES, "request nonce")).decode()
        between = Correspondence(self._keys.key_id, to.key_id, nonce)
        envelope, signature = sign_enclosed(
            request, enclosed, to.sealing, between, _address(to), self._keys.signing, int(self._clock())
        )
        stated = Asked(to, self._keys.sealing, between, dict(signature)["Signature"])
        return envelope, [*signature, ("Content-Type", SEALED_TYPE)], stated

    def _in_session(
        self, to: Party, session: HeldSession, request: EnclosedRequest, enclosed: bytes, counter: int
    ) -> tuple[bytes, list[tuple[str, str]], Asked]:
        back, earlier = 0, b""
        if request.method == "GET":
            back, earlier = session.earlier(_without_query(request.target), counter)
        now = int(self._clock())
        closed = in_session.close_request(session.keys, session.name, counter, now, request, enclosed, back)
        head = in_session.read_head(closed[: in_session.HEAD_BYTES])
        between = Correspondence(self._keys.key_id, to.key_id, str(counter))
        stated = Asked(to, self._keys.sealing, between, "", AskedInSession(session.keys, head, earlier))
        return closed, [("Content-Type", in_session.SESSION_TYPE)], stated


def _without_query(path: str) -> str:
    return path.partition("?")[0]


def _address(to: Party) -> str:
    return (to.url or "") + paths.SEALED
