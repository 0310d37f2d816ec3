"""Several processes of one server on one PostgreSQL: who each is, and what they tell each other.

NAME CHANGE DIGEST ... # DIGEST ...     who changed something, the number of the change, the studies that everybody
                                        may see changed, behind the # those with a contribution that no view shows
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from dataclasses import dataclass
from typing import Final

from host.files import write_durably
from servers.settings import Role, ServerSettings

CHANNEL: Final = "moiety_changes"
EVERYTHING: Final = "*"
"""In place of digests that would not fit."""
_MOST_CHARACTERS: Final = 7500
_HELD: Final = "#"
_NAMED: Final = "shared_by_processes"
_NAME_BYTES: Final = 16
_HOST_CHARACTERS: Final = 40
"""A connection's name in PostgreSQL has 63 bytes."""
_DIGEST_CHARACTERS: Final = 8
"""The length of a digest in place of a long host name's end: clusters number what they start at the end."""


@dataclass(frozen=True)
class Beside:
    """One of them: its own name, and what names the folder that all of them share."""

    name: str
    folder: str


@dataclass(frozen=True)
class News:
    """The commits of one process."""

    name: str
    change: int
    shown: tuple[str, ...]
    held: tuple[str, ...] = ()

    def text(self) -> str:
        said = " ".join((self.name, str(self.change), *self.shown, _HELD, *self.held))
        return said if len(said) < _MOST_CHARACTERS else f"{self.name} {self.change} {EVERYTHING} {_HELD}"


def beside_of(settings: ServerSettings) -> Beside | None:
    """Return this process's number; None where a server is one. Makes its part of the shared folder once."""
    if settings.role is Role.ALL:
        return None
    named = settings.data_dir / _NAMED
    if not named.exists():
        write_durably(named, secrets.token_hex(_NAME_BYTES).encode())
    return Beside(process_name(settings), named.read_text().strip())


def process_name(settings: ServerSettings) -> str:
    """The same at its next start; no two of a server have one, as one machine's differ in their ports."""
    host = socket.gethostname()
    if len(host) > _HOST_CHARACTERS:
        digest = hashlib.sha256(host.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        host = f"{host[: _HOST_CHARACTERS - _DIGEST_CHARACTERS - 1]}-{digest}"
    return f"{settings.role.value}-{host}-{settings.port}"


def parse_news(text: str) -> News:
    """Raises: ValueError, for anything but what a process of this release sends"""
    head, _, held = text.partition(_HELD)
    name, change, *shown = head.split()
    return News(name, int(change), tuple(shown), tuple(held.split()))
