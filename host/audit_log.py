"""A party's audit log: a file that is only added to, each line chained to the one before by its hash.

An audit log is added to, by several processes beside each other, and read whole.

Whoever may write the file could write another one in its place: the chain shows that a line was changed, taken out or
put in, not that all of it was made anew. An export that lies elsewhere shows that too (``require_continued``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from host.files import add_line, is_full, private_folder
from host.frozen import Frozen
from protocol.errors import ConfigurationError, StorageFull

AGENT: Final = "software"
"""The actor where no person gave a word."""
NOTHING_BEFORE: Final = "0" * 64
_MOST_CHARACTERS: Final = 2000


class Action(StrEnum):
    """The kinds of actions. A server has neither words on studies nor models, a site neither registrations nor
    admissions.
    """

    STARTED = "started"
    STUDY_CREATED = "study_created"
    STUDY_REGISTERED = "study_registered"
    APPROVED = "approved"
    DECLINED = "declined"
    PAUSED = "paused"
    RESUMED = "resumed"
    LEFT = "left"
    ROUND = "round"
    STUDY_ENDED = "study_ended"
    MODEL_EXPORTED = "model_exported"
    DELETED = "deleted"
    ROSTER = "roster"
    ADMITTED = "admitted"


class AuditEntry(Frozen):
    """``number`` counts from 1; ``previous`` is the digest of the line before; ``time_s`` counts since 1970.

    ``actor`` is a person's name, as given with a word, or ``software``; ``version`` is the release that wrote the line.
    """

    number: Annotated[int, Field(ge=1)]
    time_s: float
    party: str
    actor: Annotated[str, Field(max_length=_MOST_CHARACTERS)]
    action: Action
    study: str = ""
    study_digest: str = ""
    round: int | None = None
    detail: Annotated[str, Field(max_length=_MOST_CHARACTERS)] = ""
    version: str
    previous: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def line(self) -> bytes:
        """As the file has it, without the line's end."""
        return self.model_dump_json(exclude_defaults=True).encode()


def digest_of(line: bytes) -> str:
    """Return the digest that the next line names: SHA-256 of this one, without its end."""
    return hashlib.sha256(b"moiety audit\x00" + line).hexdigest()


AUDIT: Final = "audit.jsonl"
_TAIL_BYTES: Final = 2**15
_MOST_CHARACTERS_KEPT: Final = 1000


@dataclass(frozen=True)
class AuditLog:
    """One party's audit log, in the folder that lasts; every entry is on disk when ``add`` returns."""

    folder: Path
    party: str
    clock: Callable[[], float] = time.time

    def add(
        self,
        action: Action,
        detail: str = "",
        *,
        actor: str = AGENT,
        study: str = "",
        study_digest: str = "",
        round_number: int | None = None,
    ) -> AuditEntry:
        """Raises: StorageFull; ConfigurationError, where the file is not one of this kind"""
        with self._alone() as file:
            last, end_bytes = _last_line(file, self.folder / AUDIT)
            entry = AuditEntry(
                number=1 if last is None else AuditEntry.model_validate_json(last).number + 1,
                time_s=self.clock(),
                party=self.party,
                actor=actor[:_MOST_CHARACTERS_KEPT],
                action=action,
                study=study,
                study_digest=study_digest,
                round=round_number,
                detail=detail[:_MOST_CHARACTERS_KEPT],
                version=_version(),
                previous=NOTHING_BEFORE if last is None else digest_of(last),
            )
            add_line(file, entry.line() + b"\n", end_bytes)
        return entry

    @contextmanager
    def _alone(self) -> Iterator[FileIO]:
        path = self.folder / AUDIT
        try:
            private_folder(self.folder)
            with path.open("a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not os.fstat(file.fileno()).st_size:
                    os.fchmod(file.fileno(), 0o600)
                yield file
        except OSError as error:
            if is_full(error):
                raise StorageFull(f"no space left for {path.name}: free space on this machine's disk") from None
            raise


def read_audit(path: Path) -> tuple[AuditEntry, ...]:
    """All entries, oldest first, once every line follows the one before. Raises: ConfigurationError"""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror})") from None
    found: list[AuditEntry] = []
    previous = NOTHING_BEFORE
    for line in content.splitlines():
        entry = _entry(line)
        if entry is None or (entry.number, entry.previous) != (len(found) + 1, previous):
            raise ConfigurationError(
                f"{path}: line {len(found) + 1} does not follow the one before it: it was changed, or lines were taken "
                "out or put in; keep the file, and compare it with the last export or a backup"
            )
        found.append(entry)
        previous = digest_of(line)
    return tuple(found)


def require_continued(entries: Sequence[AuditEntry], earlier: Sequence[AuditEntry], source: str) -> None:
    """``entries`` begin with those of an export that was made before. Raises: ConfigurationError"""
    by_number = {entry.number: entry for entry in entries}
    for entry in earlier:
        if by_number.get(entry.number) != entry:
            raise ConfigurationError(
                f"entry {entry.number} of {source} is not in this log as it was: the log was made anew or cut off "
                "after that export; keep both"
            )


def _last_line(file: FileIO, path: Path) -> tuple[bytes | None, int]:
    """And where it ends: behind that is at most what a power cut left of a line that was never acknowledged."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _TAIL_BYTES))
    tail = file.read()
    whole = tail.rpartition(b"\n")[0]
    torn = len(tail) - len(whole) - (1 if b"\n" in tail else 0)
    if not whole:
        if end - torn:
            raise ConfigurationError(f"{path} is no audit log: move it away, and keep it")
        return None, 0
    last = whole.rpartition(b"\n")[2]
    if _entry(last) is None:
        raise ConfigurationError(f"{path} is no audit log: move it away, and keep it")
    return last, end - torn


def _entry(line: bytes) -> AuditEntry | None:
    try:
        return AuditEntry.model_validate_json(line)
    except ValidationError:
        return None


@cache
def _version() -> str:
    return version("moiety")
