"""The requester's new studies, on their way from the command line to the agent's journal."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.study_file import FinishTable
from client_agent.net.watch import words_of
from client_agent.site.context import SiteContext
from client_agent.site.journal import FINISH, StudyJournal
from host.files import new_folder, write_durably
from protocol.errors import ConfigurationError, MoietyError, StorageFull
from protocol.messages.control import Signed, Study, sign
from protocol.policy.site_policy import check_study_allowed

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
    """Remove what is in the journal now. The study goes last: until then nobody puts another one there."""
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


PRETRAINED: Final = "pretrained.npy"


def load_pretrained(path: Path, dimension: int) -> NDArray[np.float32]:
    """The shared layers' values, one after the other, from a file of numpy's own format.

    Shapes: -> float32[dimension]
    Raises: ConfigurationError when the file holds anything else
    """
    try:
        model = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"pretrained model {path} cannot be read: {error}") from None
    whole = isinstance(model, np.ndarray) and model.dtype == np.float32 and model.shape == (dimension,)
    if not whole or not np.isfinite(model).all():
        found = f"{model.dtype}{list(model.shape)}" if isinstance(model, np.ndarray) else type(model).__name__
        raise ConfigurationError(f"pretrained model {path}: found {found}, expected float32[{dimension}], all finite")
    return np.asarray(model)


def take_from_outbox(context: SiteContext, path: Path, report: Callable[[str, str], None]) -> None:
    """Sign the study at ``path`` into its journal, or put it aside and ``report`` why, with the study's name first.

    One that was withdrawn meanwhile (cancelled, or about to be written anew) is left alone; one that is being taken is
    withdrawn once it is in the journal.
    Raises: OSError, StorageFull, where a file cannot be read or written: the study waits on
    """
    with waiting(path) as content:
        if content is None:
            return
        try:
            _sign_into_journal(context, path, Study.parse(content))
        except StorageFull:
            raise
        except MoietyError as refused:
            report(path.stem, words_of(refused))
            write_durably(path.with_suffix(REFUSAL), words_of(refused).encode())
            path.replace(path.with_suffix(".refused"))
        else:
            taken(path)


def _sign_into_journal(context: SiteContext, path: Path, study: Study) -> None:
    """With what lies beside it. Raises: MoietyError, for a study that is refused; StorageFull, OSError"""
    context.held.require_pinned(study)
    check_study_allowed(study, context.policy)
    journal = StudyJournal(context.state_dir, study.name)
    known = journal.read(journal.folder / "study.json", Signed[Study])
    if known is not None and known.message != study:
        raise ConfigurationError(f"a study named {study.name!r} is here already; choose another name")
    if known is None:
        for suffix, name in ((PRETRAINED_SUFFIX, PRETRAINED), (FINISH_SUFFIX, FINISH)):
            beside = path.with_suffix(suffix)
            if beside.exists():
                beside.replace(journal.folder / name)
        journal.write(journal.folder / "study.json", sign(study, context.site, context.keys.signing))
