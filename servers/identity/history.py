"""Tell whether this server knows all that it ever did: its own history, and what the other server holds of it.

An older ``data_dir`` or database that was put back has a server forget what it measured, signed and released. The
other server keeps the last history that this one signed (docs/protocol.md 23): whoever cannot follow its own signature
serves nothing until its operator has seen to it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final

from host import log
from protocol.errors import HistoryUnknown, RolledBack
from protocol.messages.control import Signed
from protocol.messages.peer import History
from servers.store.sql import SqlStore

_RUN_BYTES: Final = 32
_log = log.logger("history")


@dataclass
class OwnHistory:
    """The history of one start of one server. Before it is ``compared`` with the other's, nothing is done together.

    ``drives``: of several processes one speaks with the other server; the others look whether that one learned
    anything (``look``), and say nothing of themselves.
    """

    store: SqlStore
    party: str
    start: int
    compared: bool = False
    drives: bool = True
    _run: str = field(default_factory=lambda: secrets.token_hex(_RUN_BYTES))

    def __post_init__(self) -> None:
        self._began = self.store.begin_history() if self.drives else 0
        self._ever_compared = False
        self._fewer: RolledBack | None = None
        self._later = self.store.history_of(self.party)

    def count(self) -> int:
        """The database's changes, asked again and again: once they are fewer than they were nothing is served, until
        they are as many as before.

        Raises: RolledBack, Unavailable
        """
        try:
            found = self.store.changes()
        except RolledBack as fewer:
            if self._fewer is None:
                _log.error("database_went_back", detail=fewer.detail)
            self._fewer = fewer
            raise
        self._fewer = None
        return found

    def look(self) -> None:
        """Learn what the driver has learned meanwhile."""
        self._later = self.store.history_of(self.party)

    def now(self) -> History:
        """Until this start has compared it signs what it began with, and no more.

        Why: who is killed before the answer comes begins, at its next start, with what it had at this one, and could
        not follow a count that it had told from later. Uncompared, the two do nothing together.

        Raises:   RolledBack, when the database went back while this process runs
        """
        changes = self.store.changes()
        return History(
            party=self.party,
            run=self._run,
            start=self.start,
            began=self._began,
            changes=changes if self._ever_compared else self._began,
            restored_at_s=self.store.restored_at_s(),
        )

    def agreed(self) -> None:
        """Both have compared, and neither has forgotten anything that the other knows of."""
        if not self.compared:
            self.store.note_compared()
            self.compared = self._ever_compared = True

    def shown(self, signed: Signed[History]) -> None:
        """This server itself signed it, which was checked, and the other one shows it."""
        now = self.now()
        if now.follows(signed.message) or self._later is not None:
            return
        self._later = signed
        self.store.keep_history(signed)
        _log.error("rolled_back", knows=now.place, signed=signed.message.place)

    @property
    def current(self) -> bool:
        return self._later is None and self._fewer is None

    def require_current(self) -> None:
        if self._fewer is not None:
            raise RolledBack(self._fewer.detail)
        if self._later is not None:
            raise RolledBack(
                f"server {self.party!r} knows {self.now().place} and has signed {self._later.message.place}: an older "
                "database was put back, and it serves nothing. Its operator stops it, puts the newest copy of data_dir "
                "and database back and starts it; if there is none: moiety server accept-rollback"
            )

    def require_compared(self) -> None:
        """Raises: RolledBack, HistoryUnknown"""
        self.require_current()
        if not self.compared:
            raise HistoryUnknown("this server has started; it answers once the other one has told its history")
