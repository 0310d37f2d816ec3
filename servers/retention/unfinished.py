"""Delete leftovers of an ended study, where the process was killed or the database away between the two.

The requester has its answer, or does not ask again; rows still name shares, queries and a sum that was never served, so
no sweep of files takes them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from host import log
from protocol.errors import MoietyError
from servers import studies
from servers.server import Server

_log = log.logger("retention")


@dataclass(eq=False)
class Unfinished:
    """Each study that has ended is looked at once by a process, and again only where that did not go well."""

    server: Server
    _done: set[str] = field(default_factory=set)

    async def forget(self) -> None:
        """Requests come in between. Raises: Unavailable, where nobody can say which studies there are"""
        for record in self.server.store.studies():
            if record.state.ended and record.digest not in self._done:
                self._forget(record.digest, record.name)
                await asyncio.sleep(0)

    def _forget(self, digest: str, name: str) -> None:
        try:
            with self.server.store.alone(digest):
                studies.forget_unfinished(self.server, digest)
        except MoietyError as later:
            _log.error("end_not_finished", study=name, code=later.code, detail=later.detail)
        except Exception:
            _log.exception("end_not_finished", study=name)
        else:
            self._done.add(digest)
