"""The folder of a case's results: lines of finished runs, and checkpoints of the others.

Pages, benchmarks and servers are left out, so that a page may be mended without running anything again.

The vectors are written first and under the other name each time, then the JSON that names them replaces the old one in
one step; so a run that is killed at any moment finds one consistent round, and goes on from it to the same bits.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, get_type_hints

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from safetensors.numpy import load, save

from harness.engine.history import RoundRecord
from harness.engine.run_state import Reached, S
from harness.simulate.case import Case
from harness.simulate.run_line import RunKey, RunLine
from host.files import write_durably
from host.frozen import Frozen
from protocol.errors import ConfigurationError

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = (
    "protocol",
    "host",
    "client_agent",
    "harness/datasets",
    "harness/engine",
    "harness/simulate",
)


@cache
def code_digest() -> str:
    """SHA-256 over names and bytes of every Python file of ``SOURCES``; read once a process."""
    return digest_of_code(ROOT, SOURCES)


def digest_of_code(root: Path, folders: Collection[str]) -> str:
    """Over the Python files below ``folders``, sorted by name, each with its length in front."""
    found = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def require_same_code(digest: str, folder: Path) -> None:
    """Results of two versions of the code are not put into one table. Raises: ConfigurationError"""
    if digest != code_digest():
        made = f"code {digest[:12]}" if digest else "a version that did not say which code it was"
        raise ConfigurationError(
            f"{folder} holds runs made by {made}, this is code {code_digest()[:12]}, and runs of two versions are not "
            "mixed in one table: give another --out, or go on with the version that made them"
        )


B = TypeVar("B", bound=BaseModel)


def read_lines(path: Path, kind: type[B]) -> tuple[B, ...]:
    """Every whole line; a last one that a crash cut off is not there.

    Raises: ConfigurationError for a file that holds something else
    """
    if not path.is_file():
        return ()
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    try:
        return tuple(kind.model_validate_json(line) for line in whole.splitlines())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path} holds a line that is no {kind.__name__}: {error}; give another --out"
        ) from None


def append_line(path: Path, line: BaseModel) -> None:
    """Add a line, on disk before this returns; what a crash left of an earlier one is dropped first."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


_RECORDS: Final = TypeAdapter(tuple[RoundRecord, ...])


class _Partial(Frozen):
    """The JSON file. ``identity`` says which study and data the run belongs to."""

    identity: str
    seconds: float
    vectors: str
    vectors_sha256: str
    state: dict[str, Any]
    records: list[dict[str, Any]]


class Checkpoint(Generic[S]):
    """The files of one run, whose state is a dataclass of this ``kind``.

    ``every_s``: rounds that end sooner after the last writing are not written.
    """

    def __init__(self, folder: Path, run: str, identity: str, kind: type[S], every_s: float = 0.0) -> None:
        self._state: type[Any] = kind
        self._folder, self._run, self._json = folder, run, folder / f"{run}.json"
        self._identity = identity
        self._every_s = every_s
        self._written_s = -math.inf
        self._generation = 0

    def save(self, progress: Reached[S], seconds: float) -> None:
        """Replace what was there. ``seconds`` is the time the run has taken so far."""
        if seconds < self._written_s + self._every_s:
            return
        self._written_s = seconds
        self._generation = 1 - self._generation
        state = {field.name: getattr(progress.state, field.name) for field in fields(self._state)}
        vectors = {n: np.ascontiguousarray(value) for n, value in state.items() if isinstance(value, np.ndarray)}
        packed = save(vectors)
        partial = _Partial(
            identity=self._identity,
            seconds=seconds,
            vectors=f"{self._run}.{self._generation}.safetensors",
            vectors_sha256=hashlib.sha256(packed).hexdigest(),
            state={
                name: self._kind(name).dump_python(value, mode="json")
                for name, value in state.items()
                if name not in vectors and value is not None
            },
            records=_RECORDS.dump_python(progress.records, mode="json"),
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        write_durably(self._folder / partial.vectors, packed)
        write_durably(self._json, json.dumps(partial.model_dump()).encode())

    def load(self) -> tuple[Reached[S] | None, float]:
        """Load the run's state and the seconds it took; None when it has not begun.

        Raises: ConfigurationError when the files belong to another study or other data, or cannot be read
        """
        if not self._json.is_file():
            return None, 0.0
        try:
            partial = _Partial.model_validate_json(self._json.read_bytes())
            vectors = load(self._packed(partial))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{self._json} cannot be read: {error}; delete it to begin this run again"
            ) from None
        if partial.identity != self._identity:
            raise ConfigurationError(
                f"{self._json} is a run of another study or of other data than now: give another --out, or delete it"
            )
        self._generation = int(partial.vectors.split(".")[-2])
        read = {n: self._kind(n).validate_json(json.dumps(value)) for n, value in partial.state.items()}
        state = self._state(**read, **vectors)
        return Reached(state, _RECORDS.validate_json(json.dumps(partial.records))), partial.seconds

    def _kind(self, name: str) -> TypeAdapter[Any]:
        return TypeAdapter(get_type_hints(self._state)[name])

    def _packed(self, partial: _Partial) -> bytes:
        packed = (self._folder / partial.vectors).read_bytes()
        if hashlib.sha256(packed).hexdigest() != partial.vectors_sha256:
            raise ValueError(f"{partial.vectors} is not the file that was written with it")
        return packed


def forget_checkpoint(folder: Path, run: str) -> None:
    """Delete a run's checkpoint, where there is one."""
    for path in (folder / f"{run}.json", *folder.glob(f"{run}.[01].safetensors")):
        path.unlink(missing_ok=True)


RESULTS: Final = "results.jsonl"
PARTIAL: Final = "partial"


class Results:
    """The contents of a results folder; the folder is made when it is first held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RESULTS

    @property
    def partial(self) -> Path:
        """The folder of unfinished runs' checkpoints."""
        return self.folder / PARTIAL

    def lines(self) -> tuple[RunLine, ...]:
        """Every finished run. Raises: ConfigurationError for a file that is no results file"""
        return read_lines(self._path, RunLine)

    def append(self, line: RunLine) -> None:
        append_line(self._path, line)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only one process writes here. Raises: ConfigurationError while another one does"""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"{self.folder}: another simulation writes there; wait for it, or give another --out"
                ) from None
            yield


def finished(lines: tuple[RunLine, ...], case: Case, protection: str, folder: Path) -> dict[RunKey, RunLine]:
    """The runs that need not be done again.

    Raises: ConfigurationError when a line comes from this case as it was before a change, or with other protection, or
            from other code
    """
    done: dict[RunKey, RunLine] = {}
    for line in lines:
        if line.case != case.name:
            raise ConfigurationError(f"{folder} holds runs of {line.case!r}, not of {case.name!r}: give another --out")
        if line.protection != protection:
            raise ConfigurationError(
                f"{folder} holds runs with --protection {line.protection}, now it is {protection}: give another --out"
            )
        require_same_code(line.code_digest, folder)
        if line.variant in case.names:
            require_unchanged(line.study_digest, case, line.variant, folder)
        done[line.key] = line
    return done


def require_unchanged(digest: str, case: Case, variant: str, folder: Path) -> None:
    """Raises: ConfigurationError when ``digest`` was made before the variant was changed"""
    if digest != case.variant(variant).digest:
        raise ConfigurationError(
            f"{case.source}: variant {variant!r} is not what it was when the runs in {folder} were made, and two "
            "studies are not mixed in one table: give another --out, or undo the change"
        )
