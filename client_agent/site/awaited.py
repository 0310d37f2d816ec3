"""Sites that a requester's study waits for before its first round, for people beside the running agent.

studies/NAME/awaited.json   there while it waits
"""

from __future__ import annotations

import time
from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.site.events import Shown
from client_agent.site.journal import StudyJournal

_FILE: Final = "awaited.json"


class AwaitedSite(BaseModel):
    """``why`` as far as the site says, or what to look at there."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    site: str
    why: Shown


class Awaited(BaseModel):
    """Those that are not ready; ``since_s``, since 1970, is when the study began to wait."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    since_s: float
    sites: tuple[AwaitedSite, ...]

    @property
    def text(self) -> str:
        """The text for people."""
        return f"since {minute(self.since_s)} waiting for {', '.join(f'{one.site} ({one.why})' for one in self.sites)}"


def minute(time_s: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(time_s))} UTC"


def keep_awaited(journal: StudyJournal, awaited: Awaited | None) -> None:
    """None: the study waits no more."""
    path = journal.folder / _FILE
    if awaited is None:
        path.unlink(missing_ok=True)
    else:
        journal.write(path, awaited)


def read_awaited(journal: StudyJournal) -> Awaited | None:
    """None where the study waits for nobody. Raises: ConfigurationError"""
    return journal.read(journal.folder / _FILE, Awaited)
