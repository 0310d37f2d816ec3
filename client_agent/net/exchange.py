"""One request and its answer; what a server refuses with becomes the error that it stands for.

Signatures live for a minute (docs/protocol.md 3), so a clock that is off has every request refused. An answer's Date
header, which nobody signed, tells a person which clock to look at; it changes nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final

import httpx

from client_agent.net.answers import PROBLEM_BYTES, Answer, LongAnswer, SessionOver, UnsignedAnswer
from client_agent.net.envelopes import Body, Closed, Enclosing, HeldSession, Method, SessionKeeper
from client_agent.net.quiet_hours import QuietNow
from host.clock import Clock
from host.network import clock_ahead_s, why_unreachable
from host.randomness import SystemRandomness
from protocol.channel.session import SessionGrant, SessionOffer
from protocol.channel.signing import MAX_AGE_S, MAX_SKEW_S
from protocol.errors import (
    CLASS_OF_CODE,
    BadSignature,
    BrokenSeal,
    MoietyError,
    RefusedMessage,
    TooLarge,
    Unavailable,
)
from protocol.messages import paths
from protocol.messages.control import MAX_CONTROL_BYTES, Party
from protocol.roster.keyfile import PartyKeys
from protocol.text import printable

_PAUSE_S: Final = 10.0
_MOST_ASKED_S: Final = 60.0
_STEP_S: Final = 1
"""A Date header has whole seconds, and the request took some time."""


class WrongClock(Unavailable):
    """Nothing gets through until a clock is set; then the agent goes on by itself."""


def pause_after(error: MoietyError, usual_s: float) -> float:
    """Return how long to wait before the next try: a clock is set by a person, quiet hours end by themselves."""
    if isinstance(error, QuietNow):
        return min(error.wait_s, _MOST_ASKED_S)
    return _PAUSE_S if isinstance(error, WrongClock) else usual_s


def asked_pause_s(retry_after: str | None, now_s: float) -> float | None:
    """Read a Retry-After header, in seconds or as a date; None where it asks for nothing that can be read.

    Nobody signed it: it is kept to at most a minute, and to no more than the time that a request is tried for.
    """
    if retry_after is None:
        return None
    text = retry_after.strip()[:64]
    if text.isascii() and text.isdigit():
        return min(float(text), _MOST_ASKED_S)
    ahead_s = clock_ahead_s(text, now_s)
    return None if ahead_s is None else min(max(-ahead_s, 0.0), _MOST_ASKED_S)


def wrong_clock(date: str | None, now_s: float, server: str) -> WrongClock | None:
    """Return the remedy when server's and machine's clocks differ by more than a signature lives; else None."""
    ahead_s = clock_ahead_s(date, now_s)
    if ahead_s is None or -MAX_AGE_S + _STEP_S <= ahead_s <= MAX_SKEW_S:
        return None
    how = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
    return WrongClock(
        f"this machine's clock is {how} that of server {server!r}, which takes requests up to {MAX_AGE_S} s old and "
        f"{MAX_SKEW_S} s early: compare both with a third one (NTP) and set the one that is wrong; this agent waits, "
        "and goes on by itself"
    )


WAITS_S: Final = {"connect": 30.0, "read": 120.0, "write": 30.0, "pool": 30.0}
_LONG_POLL_GRACE_S: Final = 30.0
_UNAUTHORIZED: Final = 401
_TRY_AGAIN: Final = frozenset({429, 502, 503, 504, 507})
_FIRST_ERROR: Final = 400
_ALTERED: Final = (BadSignature, BrokenSeal)
"""Refusals of a body that is not, as a whole, the one whose digest was signed."""


class Way:
    """One site's requests to one server, over a transport as httpx has them: no cookies, no redirects.

    httpx's own client looks for both in every answer, and puts every request together from defaults; for a request of
    a few hundred bytes that was a tenth of what an agent spent on it.
    """

    def __init__(
        self, keys: PartyKeys, transport: httpx.BaseTransport, clock: Callable[[], float], waits: Clock | None
    ) -> None:
        """``waits``: the clock on which threads wait for one that opens a session; None: there are no sessions."""
        drawn = SystemRandomness()  # seeded nonces would repeat after a restart and be refused as replays
        self.is_closed = False
        self._transport = transport
        self._clock = clock
        self._enclosing = Enclosing(keys, drawn, clock)
        self._sessions = None if waits is None else SessionKeeper(keys.key_id, drawn, clock, waits)

    def close(self) -> None:
        """Requests under way fail."""
        if not self.is_closed:
            self.is_closed = True
            self._transport.close()

    @contextmanager
    def exchange(
        self, to: Party, method: Method, path: str, body: Body, purpose: str, most_bytes: int, extra_s: float = 0.0
    ) -> Iterator[Answer]:
        """One request and its answer, which may come ``extra_s`` later than usual. Control messages are enclosed.

        Raises: what the server refuses with; Unavailable
        """
        read_s = WAITS_S["read"] + extra_s + _LONG_POLL_GRACE_S * bool(extra_s)
        said: dict[str, Any] = {
            "timeout": {**WAITS_S, "read": read_s},
            "purpose": purpose,
            "study": paths.study_of(path),
        }
        answered = partial(self._answered, to, method, path, body, most_bytes, said)
        try:
            response, answer = answered(self._sessions if path != paths.SESSION else None)
        except SessionOver:
            response, answer = answered(None)
        try:
            yield answer
        except httpx.TransportError as error:
            raise _failure(to, "broke off", error) from None
        except BrokenSeal as error:
            raise UnsignedAnswer(
                f"what came from server {to.name!r} was altered on its way ({error.detail}); nothing of it was "
                "applied, and it is fetched again later"
            ) from None
        finally:
            response.close()

    def _answered(
        self,
        to: Party,
        method: Method,
        path: str,
        body: Body,
        most_bytes: int,
        said: dict[str, Any],
        sessions: SessionKeeper | None,
    ) -> tuple[httpx.Response, Answer]:
        session: HeldSession | None = None
        response: httpx.Response | None = None
        try:
            if sessions is not None:
                session = sessions.session(to.key_id, partial(self._open_session, to))
            closed = self._enclosing.closed(to, method, path, body, session)
            request = self._request(closed, said)
            if self.is_closed:  # by another thread perhaps, while a session was opened
                text = f"the connection to server {to.name!r} is closed: the agent is stopping"
                raise TransportFailure(text)  # noqa: TRY301 - ends as any failure of the request does
            try:
                response = self._transport.handle_request(request)
                answer = self._read(response, closed, to, most_bytes)
            except TooLarge as error:  # before any signature was seen: nobody vouches for it
                raise LongAnswer(error.detail) from None
            return response, _accepted(answer, closed, to)
        except BaseException as error:
            if response is not None:
                response.close()
            if session is not None and isinstance(error, UnsignedAnswer):
                session.over = True  # whatever that was: the next request needs nothing of before
            if isinstance(error, Unavailable) and response is not None:
                error.asked_pause_s = asked_pause_s(response.headers.get("retry-after"), self._clock())
            if isinstance(error, httpx.TransportError):
                raise _failure(to, "cannot be reached" if response is None else "broke off", error) from None
            raise

    def _request(self, closed: Closed, said: dict[str, Any]) -> httpx.Request:
        url = _parsed(closed.url)
        headers = [("Host", url.netloc.decode("ascii")), *closed.headers]
        return httpx.Request("POST", url, headers=headers, stream=_Content(closed.content), extensions=said)

    def _open_session(self, to: Party, offer: SessionOffer) -> SessionGrant:
        body = Body.of(offer.canonical())
        with self.exchange(to, "POST", paths.SESSION, body, "session", MAX_CONTROL_BYTES) as answer:
            return SessionGrant.parse(answer.whole(MAX_CONTROL_BYTES))

    def _read(self, response: httpx.Response, closed: Closed, to: Party, most_bytes: int) -> Answer:
        """Raises: WrongClock, when a signature is refused and the server's time explains it; as ``Answer``"""
        if response.status_code == _UNAUTHORIZED:
            wrong = wrong_clock(response.headers.get("date"), self._clock(), to.name)
            if wrong is not None:
                raise wrong
        return Answer(response, closed.asked, most_bytes, self._clock)


def _accepted(answer: Answer, closed: Closed, to: Party) -> Answer:
    if answer.status < _FIRST_ERROR:
        closed.keep(answer.enclosed)
        return answer
    error = problem_to_error(answer.status, answer.whole(PROBLEM_BYTES), to.name)
    if closed.follows and isinstance(error, _ALTERED):
        raise AlteredBody(
            f"what was sent to server {to.name!r} did not reach it as it left ({error.detail}); it is sent again: "
            "if that does not help, look for a proxy on the way that changes bodies"
        )
    raise error


class _Content(httpx.SyncByteStream):
    """A body that is made while it is sent."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


_parsed = lru_cache(maxsize=16)(httpx.URL)


def _failure(to: Party, what: str, error: httpx.TransportError) -> TransportFailure:
    return TransportFailure(f"server {to.name!r} {what}: {why_unreachable(error)}")


class AlteredBody(Unavailable):
    """The server refused a body that somebody between may have altered: that is no refusal of what was sent."""


class TransportFailure(Unavailable):
    """The server was not reached or the connection broke: nothing is known about the request."""


def problem_to_error(status: int, content: bytes, server: str) -> MoietyError:
    """The error that a problem+json answer stands for, of the same class as at the server.

    Nobody signed it: it says that a request was refused, or that this is not the time for it, and nothing else. A code
    that stands for a fault of this site, or for a broken protocol, is read as a refusal.
    """
    try:
        problem = json.loads(content)
        code, detail = str(problem.get("code", "")), printable(str(problem.get("detail", "")))
    except (ValueError, AttributeError, RecursionError):
        code, detail = "", ""
    kind = CLASS_OF_CODE.get(code, MoietyError)
    if not issubclass(kind, RefusedMessage | Unavailable):
        kind = Unavailable if status in _TRY_AGAIN or status >= 500 else RefusedMessage
    return kind(f"server {server!r} answered {status}: {detail or 'no explanation'}")
