"""Figures over many seeds, as ``moiety faults --json`` writes them: while seeds run, and read again to go on after a
stop.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from harness.faults.simulation import Simulated
from harness.versions import versions
from host.output_files import rewrite
from host.settings import read_text
from protocol.errors import ConfigurationError

FORMAT: Final = "moiety-faults/2"
_EVERY: Final = 20
"""So many seeds may be lost to a stop."""


class Failure(BaseModel):
    """A seed that failed: what does not hold, and the command that shows it again.

    ``faults``: how many are left in the schedule that the command reads, of ``of_faults`` that struck.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    seed: int
    broken: tuple[str, ...]
    again: str
    faults: int
    of_faults: int


class Faults(BaseModel):
    """All seeds together; ``steps`` are the requests that were sent, ``cpu_s`` is of all processes.

    ``seeds``: which were asked for, at which ``level``; ``next_seed``: all before it have run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    level: str
    seeds: str
    next_seed: int
    runs: int = 0
    failed: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    faults_injected: dict[str, int] = {}
    ends: dict[str, int] = {}
    failures: tuple[Failure, ...] = ()
    versions: dict[str, str] = {}


class Tally:
    """Counts seeds in their order. ``file``: where the figures so far are kept, None for nowhere."""

    def __init__(self, file: Path | None, level: str, seeds: range, *, go_on: bool) -> None:
        """``go_on``: after the last seed that the file has. Raises: ConfigurationError"""
        self._file = file
        asked = f"{seeds.start}-{seeds.stop - 1}"
        begun = Faults(level=level, seeds=asked, next_seed=seeds.start, versions=_versions())
        self.found = _read(file, begun) if go_on and file is not None and file.exists() else begun
        self.left = range(self.found.next_seed, seeds.stop)

    def add(self, one: Simulated, failure: Failure | None) -> None:
        """The figures so far are in the file whenever a seed fails, and every few seeds."""
        before = self.found
        self.found = before.model_copy(
            update={
                "next_seed": one.seed + 1,
                "runs": before.runs + 1,
                "failed": before.failed + bool(one.failed),
                "steps": before.steps + one.steps,
                "cpu_s": round(before.cpu_s + one.cpu_s, 3),
                "faults_injected": _sum(before.faults_injected, one.injected),
                "ends": _sum(before.ends, Counter(end.split(":")[0] for end in one.ends)),
                "failures": before.failures if failure is None else (*before.failures, failure),
            }
        )
        if failure is not None or self.found.runs % _EVERY == 0:
            self.write()

    def write(self) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            rewrite(self._file, self.found.model_dump_json(indent=1))


def _versions() -> dict[str, str]:
    return {one.name: one.version for one in versions()}


def _sum(before: dict[str, int], more: Counter[str]) -> dict[str, int]:
    return dict(sorted((Counter(before) + more).items()))


def _read(file: Path, asked: Faults) -> Faults:
    """Raises: ConfigurationError, for figures of other seeds, another level or other versions"""
    try:
        found = Faults.model_validate_json(read_text(file))
    except ValueError as wrong:
        raise ConfigurationError(f"{file} has no figures of faults to go on with: {wrong}") from None
    for name in ("format", "level", "seeds", "versions"):
        if getattr(found, name) != getattr(asked, name):
            raise ConfigurationError(
                f"{file} has figures of other {name} ({getattr(found, name)}): name another file, or leave out --resume"
            )
    return found
