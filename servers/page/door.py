"""Who may look at an operator's page: whoever knows its password, from an address that no stranger can give a name to.

The page is on the operator's own port, plain HTTP, on the loopback or inside a network; a browser there shows other
pages too. A name that a stranger owns can be made to lead here (DNS rebinding), an address cannot: a request must name
an address, or localhost.
"""

from __future__ import annotations

import ipaddress
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from host.web_page.guard import form_token, same
from protocol.errors import ConfigurationError
from servers.page.password import KeptPassword, kept_password

MOST_GUESSES: Final = 5
GUESSES_S: Final = 60.0
SESSION_S: Final = 8 * 3600.0
_MOST_SESSIONS: Final = 8


class TooManyGuesses(ConfigurationError):
    """Too many wrong passwords lately."""


@dataclass(frozen=True)
class _Session:
    cookie: str = field(repr=False)
    until_s: float
    password: KeptPassword = field(repr=False)


@dataclass
class Door:
    """Sessions under the password of ``data_dir``; they are in memory and end with the server, too."""

    data_dir: Path
    clock: Callable[[], float]
    _sessions: deque[_Session] = field(default_factory=lambda: deque(maxlen=_MOST_SESSIONS), repr=False)
    _wrong_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_GUESSES))
    _guessing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def enter(self, password: str) -> str | None:
        """A new session's cookie; None for a wrong password.

        Raises: TooManyGuesses; ConfigurationError where no password was made
        """
        with self._guessing:  # one guess after the other, from whatever thread
            return self._enter(password)

    def _enter(self, password: str) -> str | None:
        wait_s = self._wait_s()
        if wait_s > 0:
            raise TooManyGuesses(
                f"{MOST_GUESSES} wrong passwords within {GUESSES_S:.0f} s, by whoever uses this port: try again in "
                f"{wait_s:.0f} s"
            )
        kept = kept_password(self.data_dir)
        if kept is None:
            raise ConfigurationError("there is no password yet: make one with 'moiety server page-password'")
        if not kept.is_of(password):
            self._wrong_at_s.append(self.clock())
            return None
        session = _Session(secrets.token_urlsafe(32), self.clock() + SESSION_S, kept)
        self._sessions.append(session)
        return session.cookie

    def knows(self, cookie: str | None) -> bool:
        """Whether this is the cookie of a session that lasts, under the password as it is now."""
        found = [one for one in self._sessions if same(cookie or "", one.cookie)]
        return bool(found) and self.clock() < found[0].until_s and found[0].password == kept_password(self.data_dir)

    def leave(self, cookie: str | None) -> None:
        for one in [one for one in self._sessions if same(cookie or "", one.cookie)]:
            self._sessions.remove(one)

    def is_form(self, cookie: str | None, token: str) -> bool:
        """Requires: a session of that cookie"""
        return same(token, form_token(cookie or ""))

    def _wait_s(self) -> float:
        if len(self._wrong_at_s) < MOST_GUESSES:
            return 0.0
        return self._wrong_at_s[0] + GUESSES_S - self.clock()


def own_origin(host: str | None) -> str | None:
    """The origin of pages at an address that a request names as its host; None for a name that can lead anywhere."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
        name = parts.hostname or ""
        if name != "localhost":
            ipaddress.ip_address(name)
    except ValueError:
        return None
    return f"http://{host}" if parts.netloc == host and "@" not in parts.netloc else None
