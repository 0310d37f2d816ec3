"""The requester's new studies, on their way from the command line to the agent."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from typing import Final

from client_agent.learning.at_requester.finish_table import FinishTable
from host.files import new_folder, write_durably
from protocol.messages.control import Study

REFUSAL: Final = ".refusal.txt"
"""Beside a study in the outbox: why the agent refused it."""
PRETRAINED_SUFFIX: Final = ".pretrained"
"""Beside a study in the outbox: the model that it pins."""
FINISH_SUFFIX: Final = ".finish"
"""Beside a study in the outbox: its [finish], which stays at this site."""


def outbox(state_dir: Path) -> Path:
    """Return the folder in which the requester's new studies wait for the agent."""
    return state_dir / "outbox"


def queued(state_dir: Path, name: str) -> Path:
    """Return the place where the study of that name waits, if it does."""
    return outbox(state_dir) / f"{name}.json"


def create_study(
    state_dir: Path, study: Study, pretrained: Path | None = None, finish: FinishTable | None = None
) -> Path:
    """Queue a study; the requester's agent signs it and hands it to both servers.

    ``pretrained`` is the file of the model that the study pins, ``finish`` what this site does alone in the end.
    """
    new_folder(outbox(state_dir))
    path = queued(state_dir, study.name)
    withdraw(state_dir, study.name)
    path.with_suffix(REFUSAL).unlink(missing_ok=True)
    if finish is not None:
        write_durably(path.with_suffix(FINISH_SUFFIX), finish.model_dump_json().encode())
    if pretrained is not None:
        write_durably(path.with_suffix(PRETRAINED_SUFFIX), pretrained.read_bytes())
    write_durably(path, study.canonical())
    return path


def withdraw(state_dir: Path, name: str) -> bool:
    """The study of that name waits no longer, nor what lies beside it; whether it did wait."""
    path = queued(state_dir, name)
    with waiting(path) as content:
        for one in (path, *_beside(path)):
            one.unlink(missing_ok=True)
    return content is not None


def taken(path: Path) -> None:
    """Remove what waited at ``path``, now that it is in the journal. The study goes last: until then nobody puts
    another one there.
    """
    for one in (*_beside(path), path):
        one.unlink(missing_ok=True)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(PRETRAINED_SUFFIX), path.with_suffix(FINISH_SUFFIX)


@contextmanager
def waiting(path: Path) -> Iterator[bytes | None]:
    """The study at ``path``, which nobody else takes or withdraws while the block runs; None where none waits.

    Raises: OSError, where the file cannot be opened or read
    """
    file = _held(path)
    if file is None:
        yield None
        return
    with file:
        yield file.read()


def _held(path: Path) -> BufferedRandom | None:
    """Locked, and still the file that is at ``path``: whoever had it before may have removed or replaced it."""
    while True:
        try:
            file = path.open("r+b")
        except FileNotFoundError:
            return None
        with ExitStack() as stack:
            stack.enter_context(file)
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    stack.pop_all()
                    return file
