"""Files that a crash left behind, deleted while other processes of the server take uploads.

A share is written before a row names it, so a file without a row may be one of those that are being stored. Who has had
no row at two looks half an hour apart, and was not written to meanwhile, gets none any more.
"""

from __future__ import annotations

import asyncio
from typing import Final

from host import log
from servers.server import Server

_FILES_LOOKED_AT_EVERY_S: Final = 1800.0
_files_log = log.logger("strays")


class Strays:
    """Files that had no row at the last look, with the time at which each was last written to."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen: dict[str, float] = {}
        self._seen_in_storage: set[str] = set()

    async def keep_away(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                self.look()
            except Exception:
                _files_log.exception("not_swept")
            await asyncio.sleep(_FILES_LOOKED_AT_EVERY_S)

    def look(self) -> int:
        """-> how many were deleted"""
        files, named = self._server.files, self._server.store.files()
        found = {name: written_s for name, written_s in files.written().items() if name not in named}
        gone = [name for name, written_s in found.items() if self._seen.get(name) == written_s]
        files.delete(gone)
        self._seen = {name: written_s for name, written_s in found.items() if name not in gone}
        return len(gone) + self._look_into_storage(named)

    def _look_into_storage(self, named: set[str]) -> int:
        shards = self._server.shards
        if shards is None:
            return 0
        strays = {*shards.strays(named)}
        gone = strays & self._seen_in_storage
        shards.storage.delete(gone)
        self._seen_in_storage = strays - gone
        return len(gone)
