"""Where a run stands, on disk after its rounds: ``partial/<run>.json`` and ``partial/<run>.<0 or 1>.safetensors``.

The vectors are written first and under the other name each time, then the JSON that names them replaces the old one in
one step; so a run that is killed at any moment finds one consistent round, and goes on from it to the same bits.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Final, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter
from safetensors.numpy import load, save

from harness.engine.history import RoundRecord
from harness.engine.run_state import Progress, RunState
from host.durable import write_durably
from protocol.errors import ConfigurationError

_RECORDS: Final = TypeAdapter(tuple[RoundRecord, ...])


class _Partial(BaseModel):
    """The JSON file. ``identity`` says which study and data the run belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    identity: str
    seconds: float
    vectors: str
    vectors_sha256: str
    state: dict[str, Any]
    records: list[dict[str, Any]]


class Checkpoint:
    """The files of one run. ``every_s``: rounds that end sooner after the last writing are not written."""

    def __init__(self, folder: Path, run: str, identity: str, every_s: float = 0.0) -> None:
        self._folder = folder
        self._run = run
        self._identity = identity
        self._every_s = every_s
        self._written_s = -math.inf
        self._generation = 0

    @property
    def _json(self) -> Path:
        return self._folder / f"{self._run}.json"

    def save(self, progress: Progress, seconds: float) -> None:
        """Replace what was there. ``seconds`` is the time the run has taken so far."""
        if seconds < self._written_s + self._every_s:
            return
        self._written_s = seconds
        self._generation = 1 - self._generation
        state = {field.name: getattr(progress.state, field.name) for field in fields(progress.state)}
        vectors = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        packed = save(vectors)
        partial = _Partial(
            identity=self._identity,
            seconds=seconds,
            vectors=f"{self._run}.{self._generation}.safetensors",
            vectors_sha256=hashlib.sha256(packed).hexdigest(),
            state={
                name: _kind(name).dump_python(value, mode="json")
                for name, value in state.items()
                if name not in vectors and value is not None
            },
            records=_RECORDS.dump_python(progress.records, mode="json"),
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        write_durably(self._folder / partial.vectors, packed)
        write_durably(self._json, json.dumps(partial.model_dump()).encode())

    def load(self) -> tuple[Progress | None, float]:
        """Where the run stands and the seconds it took; None when it has not begun.

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
        read = {name: _kind(name).validate_json(json.dumps(value)) for name, value in partial.state.items()}
        state = RunState(**read, **vectors)
        return Progress(state, _RECORDS.validate_json(json.dumps(partial.records))), partial.seconds

    def _packed(self, partial: _Partial) -> bytes:
        packed = (self._folder / partial.vectors).read_bytes()
        if hashlib.sha256(packed).hexdigest() != partial.vectors_sha256:
            raise ValueError(f"{partial.vectors} is not the file that was written with it")
        return packed

    def remove(self) -> None:
        """The run is done and its line written."""
        for path in (self._json, *self._folder.glob(f"{self._run}.[01].safetensors")):
            path.unlink(missing_ok=True)


@cache
def _kind(name: str) -> TypeAdapter[Any]:
    """How a part of the state that is no vector is written."""
    return TypeAdapter(get_type_hints(RunState)[name])
