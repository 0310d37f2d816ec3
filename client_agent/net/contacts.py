"""When each server answered last, and how far this machine's clock is from its; for people, beside the agent that runs.

By the answers' Date header, whole seconds that nobody signed: it changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter

from host.files import write_durably
from host.frozen import Frozen
from host.network import clock_ahead_s, why_unreachable
from protocol.errors import StorageFull

CONTACTS: Final = "contacts.json"
CLOCK_ERROR_S: Final = 1.0
"""A Date header has whole seconds, and a server makes one a second: it is up to two old, the middle is taken."""
_WRITTEN_EVERY_S: Final = 30.0


class Contact(Frozen):
    """One server: its last answer, and since when and why there is none; times are since 1970.

    ``ahead_s``: by how much this machine's clock was ahead, give or take ``CLOCK_ERROR_S`` and an answer's way.
    """

    server: str
    reached_at_s: float | None = None
    ahead_s: float | None = None
    failing_since_s: float | None = None
    failure: str = ""


N = TypeVar("N", bound=BaseModel)


def read_notes(path: Path, kind: type[N]) -> tuple[N, ...]:
    """Read a file on which nothing rests: empty where it is missing or cannot be read."""
    try:
        return TypeAdapter(tuple[kind, ...]).validate_json(path.read_bytes())  # type: ignore[valid-type]  # said at run time
    except (OSError, ValueError):
        return ()


def keep_notes(path: Path, notes: Iterable[BaseModel]) -> None:
    """Replace such a file; a full disk keeps nothing else from going on."""
    with suppress(OSError, StorageFull):
        write_durably(path, f"[{','.join(one.model_dump_json() for one in notes)}]".encode())


class Contacts:
    """Both servers', kept in a file that is written when something changes, else now and then."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {one.server: one for one in read_notes(path, Contact)}
        self._written_at_s = 0.0

    def of(self, server: str) -> Contact:
        with self._lock:
            return self._known.get(server, Contact(server=server))

    def reached(self, server: str, date: str | None) -> None:
        now = self._clock()
        ahead_s = clock_ahead_s(date, now)
        with self._lock:
            known = self._known.get(server, Contact(server=server))
            ahead_s = known.ahead_s if ahead_s is None else ahead_s - CLOCK_ERROR_S
            found = Contact(server=server, reached_at_s=now, ahead_s=ahead_s)
            first = known.reached_at_s is None or known.failing_since_s is not None
            self._keep(found, at_once=first)

    def failed(self, server: str, why: str) -> None:
        with self._lock:
            known = self._known.get(server, Contact(server=server))
            since = self._clock() if known.failing_since_s is None else known.failing_since_s
            found = known.model_copy(update={"failing_since_s": since, "failure": why[:500]})
            self._keep(found, at_once=known.failure != found.failure)

    def _keep(self, found: Contact, *, at_once: bool) -> None:
        self._known[found.server] = found
        now = self._clock()
        if at_once or not 0 <= now - self._written_at_s < _WRITTEN_EVERY_S:
            self._written_at_s = now
            keep_notes(self._path, self._known.values())


class NotedTransport(httpx.BaseTransport):
    """The way to one server, every answer of which is noted."""

    def __init__(self, server: str, inner: httpx.BaseTransport, contacts: Contacts) -> None:
        self._server = server
        self._inner = inner
        self._contacts = contacts
        self._closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            answer = self._inner.handle_request(request)
        except httpx.TransportError as error:
            if not self._closed:  # what this agent breaks off as it stops is nobody's failure
                self._contacts.failed(self._server, why_unreachable(error))
            raise
        self._contacts.reached(self._server, answer.headers.get("date"))
        return answer

    def close(self) -> None:
        self._closed = True
        self._inner.close()
