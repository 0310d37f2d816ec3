"""Written ranges of a masked sum, on this server's own disk, so that a restart does none of them again."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from host.files import append_durably, new_folder, write_durably
from servers.shards.ranges import Bound


@dataclass(frozen=True)
class Written:
    """A range of a masked sum that lies in the storage, and the SHA-256 that its bytes must have."""

    start: int
    stop: int
    name: str
    digest: str


class WrittenRanges:
    """One file a pass, STUDY-DIGEST.jsonl, a line a range; what a crash left of a line counts for nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = new_folder(folder)

    def of(self, bound: Bound) -> dict[int, Written]:
        """The ranges, ordered by where they start."""
        return {one.start: one for one in self._read(self._path(bound))}

    def add(self, bound: Bound, written: Written) -> None:
        """Durable when it returns. Raises: StorageFull"""
        append_durably(self._path(bound), json.dumps(asdict(written)).encode() + b"\n")

    def drop(self, bound: Bound, start: int) -> None:
        """A range that is to be done again."""
        found = self.of(bound)
        if found.pop(start, None) is not None:
            lines = (json.dumps(asdict(one)).encode() + b"\n" for one in found.values())
            write_durably(self._path(bound), b"".join(lines))

    def forget(self, study: str, kept: Bound | None = None) -> list[str]:
        """All of a study's passes but ``kept``. -> the names in the storage that go with them"""
        over = set(self._folder.glob(f"{study}-*.jsonl")) - ({self._path(kept)} if kept else set())
        names = [one.name for path in over for one in self._read(path)]
        for path in over:
            path.unlink(missing_ok=True)
        return names

    def named(self) -> Collection[str]:
        """Every name that a pass counts on."""
        return {one.name for path in self._folder.glob("*.jsonl") for one in self._read(path)}

    def _path(self, bound: Bound) -> Path:
        return self._folder / f"{bound.study}-{bound.digest}.jsonl"

    def _read(self, path: Path) -> list[Written]:
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [one for one in map(_written, lines[:-1]) if one is not None]


def _written(line: bytes) -> Written | None:
    """Its range is done again where the line is no whole one."""
    try:
        return Written(**json.loads(line))
    except (ValueError, TypeError):
        return None
