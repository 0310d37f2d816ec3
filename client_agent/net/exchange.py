"""One request and its answer; what a server refuses with becomes the error that it stands for.

Signatures live for a minute (docs/protocol.md 3), so a clock that is off has every request refused. An answer's Date
header, which nobody signed, tells a person which clock to look at; it changes nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final

import httpx

from client_agent.net.answers import PROBLEM_BYTES, Answer, LongAnswer, SessionOver, UnsignedAnswer
from client_agent.net.envelopes import Closed
from client_agent.net.quiet_hours import QuietNow
from host.network import why_unreachable
from protocol import errors
from protocol.channel.signing import MAX_AGE_S, MAX_SKEW_S
from protocol.errors import BadSignature, BrokenSeal, ErrorCode, MoietyError, RefusedMessage, TooLarge, Unavailable
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
    ahead_s = _ahead(text, now_s)
    return None if ahead_s is None else min(max(-ahead_s, 0.0), _MOST_ASKED_S)


def wrong_clock(date: str | None, now_s: float, server: str) -> WrongClock | None:
    """Return the remedy when server's and machine's clocks differ by more than a signature lives; else None."""
    ahead_s = None if date is None else _ahead(date, now_s)
    if ahead_s is None or -MAX_AGE_S + _STEP_S <= ahead_s <= MAX_SKEW_S:
        return None
    how = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
    return WrongClock(
        f"this machine's clock is {how} that of server {server!r}, which takes requests up to {MAX_AGE_S} s old and "
        f"{MAX_SKEW_S} s early: compare both with a third one (NTP) and set the one that is wrong; this agent waits, "
        "and goes on by itself"
    )


def _ahead(date: str, now_s: float) -> float | None:
    try:
        return now_s - parsedate_to_datetime(date[:64]).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None


_UNAUTHORIZED: Final = 401
_TRY_AGAIN: Final = frozenset({429, 502, 503, 504, 507})
_FIRST_ERROR: Final = 400
_ALTERED: Final = (BadSignature, BrokenSeal)
"""Refusals of a body that is not, as a whole, the one whose digest was signed."""


class Way:
    """Requests over one transport, as httpx takes and gives them, and nothing between: no cookies, no redirects.

    httpx's own client looks for both in every answer, and puts every request together from defaults; for a request of
    a few hundred bytes that was a tenth of what an agent spent on it.
    """

    def __init__(self, transport: httpx.BaseTransport, waits_s: Mapping[str, float]) -> None:
        """``waits_s``: for the connection, for reading, for writing, for a place in the pool, as httpx names them."""
        self._transport = transport
        self._waits_s = dict(waits_s)
        self.is_closed = False

    def post(
        self, url: str, headers: list[tuple[str, str]], content: Iterator[bytes], longer_s: float, **said: str | None
    ) -> httpx.Request:
        """A request whose headers state its length; its answer may take ``longer_s`` more. ``said``: for the ledger."""
        parsed = _parsed(url)
        waits = {**self._waits_s, "read": self._waits_s["read"] + longer_s}
        return httpx.Request(
            "POST",
            parsed,
            headers=[("Host", parsed.netloc.decode("ascii")), *headers],
            stream=_Content(content),
            extensions={"timeout": waits, **said},
        )

    def send(self, request: httpx.Request) -> httpx.Response:
        """Raises: RuntimeError, once it is closed; httpx.TransportError"""
        if self.is_closed:
            raise RuntimeError("the way is closed")
        return self._transport.handle_request(request)

    def close(self) -> None:
        """Requests under way fail."""
        if not self.is_closed:
            self.is_closed = True
            self._transport.close()


class _Content(httpx.SyncByteStream):
    """A body that is made while it is sent."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


_parsed = lru_cache(maxsize=16)(httpx.URL)


class Exchange:
    """One request and its answer; an answer that is anything but a success raises it."""

    def __init__(
        self,
        http: Way,
        close: Callable[[bool], tuple[httpx.Request, Closed]],
        server: str,
        most_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """``close`` makes the request, in a session if there is one and it may be."""
        self._http = http
        self._close_request = close
        self._clock = clock
        self._server = server
        self._most_bytes = most_bytes
        self._response: httpx.Response | None = None

    def __enter__(self) -> Answer:
        if self._http.is_closed:
            raise self._stopping()
        try:
            return self._answered(self._close_request(True))
        except SessionOver:
            self._close()
            self._response = None
        return self._answered(self._close_request(False))

    def _answered(self, made: tuple[httpx.Request, Closed]) -> Answer:
        request, closed = made
        try:
            return self._accepted(self._received(request, closed), closed)
        except BaseException as error:
            self._close()
            if closed.session is not None and isinstance(error, UnsignedAnswer):
                closed.session.over = True  # whatever that was: the next request needs nothing of before
            if isinstance(error, Unavailable) and self._response is not None:
                error.asked_pause_s = asked_pause_s(self._response.headers.get("retry-after"), self._clock())
            if isinstance(error, httpx.TransportError):
                raise self._failure(error) from None
            if isinstance(error, RuntimeError) and self._http.is_closed:  # since it was looked at, by another thread
                raise self._stopping() from None
            raise

    def _received(self, request: httpx.Request, closed: Closed) -> Answer:
        """Raises: LongAnswer, also for what is too large before any signature was seen: nobody vouches for it"""
        try:
            self._response = self._http.send(request)
            self._require_clock(self._response)
            return Answer(self._response, closed.asked, self._most_bytes, self._clock)
        except TooLarge as error:
            raise LongAnswer(error.detail) from None

    def _stopping(self) -> TransportFailure:
        return TransportFailure(f"the connection to server {self._server!r} is closed: the agent is stopping")

    def _require_clock(self, response: httpx.Response) -> None:
        """Raises: WrongClock, when a signature is refused and the server's time explains it"""
        if response.status_code != _UNAUTHORIZED:
            return
        wrong = wrong_clock(response.headers.get("date"), self._clock(), self._server)
        if wrong is not None:
            raise wrong

    def _accepted(self, answer: Answer, closed: Closed) -> Answer:
        if answer.status >= _FIRST_ERROR:
            error = problem_to_error(answer.status, answer.whole(PROBLEM_BYTES), self._server)
            if closed.follows and isinstance(error, _ALTERED):
                raise AlteredBody(
                    f"what was sent to server {self._server!r} did not reach it as it left ({error.detail}); it is "
                    "sent again: if that does not help, look for a proxy on the way that changes bodies"
                )
            raise error
        closed.keep(answer.enclosed)
        return answer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._close()
        if isinstance(error, httpx.TransportError):
            raise self._failure(error) from None
        if isinstance(error, BrokenSeal):
            raise UnsignedAnswer(
                f"what came from server {self._server!r} was altered on its way ({error.detail}); nothing of it was "
                "applied, and it is fetched again later"
            ) from None

    def _close(self) -> None:
        if self._response is not None:
            self._response.close()

    def _failure(self, error: httpx.TransportError) -> TransportFailure:
        what = "cannot be reached" if self._response is None else "broke off"
        return TransportFailure(f"server {self._server!r} {what}: {why_unreachable(error)}")


class AlteredBody(Unavailable):
    """The server refused a body that somebody between may have altered: that is no refusal of what was sent."""


class TransportFailure(Unavailable):
    """The server was not reached or the connection broke: nothing is known about the request."""

    code = ErrorCode.UNAVAILABLE


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
    text = f"server {server!r} answered {status}: {detail or 'no explanation'}"
    kind = _CLASS_OF_CODE.get(code, Unavailable if status in _TRY_AGAIN or status >= 500 else RefusedMessage)
    return kind(text)


def _leaves(kind: type[MoietyError]) -> Iterator[type[MoietyError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _leaves(child)


_CLASS_OF_CODE: Final = {  # children come after their parents
    kind.code.value: kind
    for kind in _leaves(MoietyError)
    if isinstance(kind.__dict__.get("code"), ErrorCode) and issubclass(kind, (RefusedMessage, Unavailable))
}
