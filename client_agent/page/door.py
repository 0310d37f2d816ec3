"""Access to a site's page: whoever holds the one-time token that the command printed, in one browser.

The page listens on the loopback, where every user of the machine and every web page in a browser can reach it. So a
request needs the session's cookie (SameSite=Strict), names this host and port (a name that is rebound to the loopback
names another), and, where it changes something, comes from this origin and carries the session's token in its form.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final

from host.web_page import form_token, same

COOKIE: Final = "moiety-page"
LOOPBACK: Final = "127.0.0.1"


@dataclass
class Door:
    """One token, one session; a new start of the page makes new ones."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _session: str | None = field(default=None, repr=False)

    @property
    def origin(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def enter(self, token: str) -> str | None:
        """The session's cookie for the token, once; None for another one, or a second time."""
        if self._session is not None or not same(token, self.token):
            return None
        self._session = secrets.token_urlsafe(32)
        return self._session

    def knows(self, cookie: str | None) -> bool:
        """Return whether this is the session's cookie."""
        return self._session is not None and same(cookie or "", self._session)

    def is_host(self, host: str | None) -> bool:
        return host == f"{LOOPBACK}:{self.port}"

    @property
    def form_token(self) -> str:
        """Return the token that the session's forms carry; another site's page cannot read it. Requires: a session"""
        return form_token(self._session or "")

    def is_form(self, token: str) -> bool:
        return self._session is not None and same(token, self.form_token)
