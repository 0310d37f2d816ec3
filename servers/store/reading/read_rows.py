"""Records that every request reads, kept until anything is changed.

A contribution reads its study three times and its round four; between two contributions neither changes. Only where
one process alone writes, which is what SQLite's is held to, can it know that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from servers.store.reading.prepared import Prepared

_MOST: Final = 64


class ReadRows:
    """Safe for threads: what was read before a change is not kept after it."""

    def __init__(self, *, kept: bool) -> None:
        """``kept``: False where another process may write."""
        self._kept = kept
        self._records: dict[tuple[int, tuple[Any, ...]], Any] = {}
        self._changes = 0

    def look(self, statement: Prepared, values: Mapping[str, Any]) -> tuple[Any, int]:
        """The record, or None; and what :meth:`keep` is told with the record that was read instead."""
        return self._records.get((id(statement), tuple(values.values()))), self._changes

    def keep(self, seen: int, statement: Prepared, values: Mapping[str, Any], record: object | None) -> None:
        """Unless something changed since the look."""
        if self._kept and record is not None and seen == self._changes:
            if len(self._records) >= _MOST:
                self._records.clear()
            self._records[id(statement), tuple(values.values())] = record

    def forget(self) -> None:
        """Something has changed, or may have."""
        self._changes += 1
        self._records.clear()
