"""What two servers hold at one moment: CPU time, memory, open files, database, files, rows of every table."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict

from harness.bench import probe
from harness.bench.round import ServersOnly
from harness.engine.parties import OPERATOR_NAMES
from protocol.sharing import Side
from servers.store.tables import METADATA

_DATABASE: Final = "server.db"


class Sample(BaseModel):
    """Both servers together, but for ``resident_mb`` and ``open_files``, which are the larger one's.

    ``seconds``: since the first sample. ``database_bytes``: with its log. ``file_bytes``: everything else in
    ``data_dir``. ``process_log_bytes``: what both wrote to their standard output. ``agents_cpu_ns`` is the
    contributors'; memory and files of agents are the requester's too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    round: int
    seconds: float
    cpu_ns: int
    resident_mb: float
    open_files: int
    database_bytes: int
    file_bytes: int
    files: int
    process_log_bytes: int
    agents_cpu_ns: int
    agents_resident_mb: float
    agents_bytes: int


class Sampler:
    """Looks at the servers of one federation, and at the processes of its agents."""

    def __init__(self, servers: ServersOnly, requester: int, contributors: list[int]) -> None:
        self._servers = servers
        self._contributors = contributors
        self._agents = [requester, *contributors]
        self._data = [servers.folder / OPERATOR_NAMES[side] / "data" for side in Side]
        self._begun = time.monotonic()

    def sample(self, number: int) -> Sample:
        """After the round of that number."""
        files = [size for folder in self._data for path, size in _sizes(folder) if not _of_database(path)]
        return Sample(
            round=number,
            seconds=time.monotonic() - self._begun,
            cpu_ns=self._servers.cpu_ns(),
            resident_mb=max(map(probe.resident_mb, self._servers.pids)),
            open_files=max(len(os.listdir(f"/proc/{pid}/fd")) for pid in self._servers.pids),
            database_bytes=sum(s for folder in self._data for path, s in _sizes(folder) if _of_database(path)),
            file_bytes=sum(files),
            files=len(files),
            process_log_bytes=sum(running.log.stat().st_size for running in self._servers.running.values()),
            agents_cpu_ns=sum(map(probe.cpu_ns, self._contributors)),
            agents_resident_mb=sum(map(probe.resident_mb, self._agents)),
            agents_bytes=self._agents_bytes(),
        )

    def rows(self) -> dict[str, int]:
        """Rows of every table, of both servers together."""
        counted: dict[str, int] = {}
        for folder in self._data:
            with closing(sqlite3.connect(f"file:{folder / _DATABASE}?mode=ro", uri=True)) as connection:
                for table in METADATA.tables:
                    found = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()  # noqa: S608 - own names
                    counted[table] = counted.get(table, 0) + int(found[0])
        return counted

    def refusals(self) -> dict[str, int]:
        """Requests that the servers refused so far, by code."""
        counted: dict[str, int] = {}
        for side in Side:
            for family in text_string_to_metric_families(self._servers.metrics(side)):
                for sample in family.samples:
                    if sample.name == "moiety_refusals_total" and sample.value:
                        code = sample.labels["code"]
                        counted[code] = counted.get(code, 0) + int(sample.value)
        return counted

    def _agents_bytes(self) -> int:
        states = (self._servers.state(site.name) for site in self._servers.spec.sites)
        return sum(size for state in states for _, size in _sizes(state))


def _of_database(path: Path) -> bool:
    return path.name.startswith(_DATABASE)


def _sizes(folder: Path) -> list[tuple[Path, int]]:
    """Every file below a folder in which others write and delete."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            try:
                found.append((path, path.stat().st_size))
            except FileNotFoundError:
                continue
    return found
