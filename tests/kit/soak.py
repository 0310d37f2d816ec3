"""The counts of ``make soak``, and the folder for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

_FOLDER: Final = "MOIETY_SOAK_OUT"
INPUTS: Final = "fuzz_inputs.json"
REQUESTS: Final = "fuzz_requests.json"


def soak_file(name: str) -> Path:
    """A file of that name in ``results-out/soak``, or in the folder that MOIETY_SOAK_OUT names."""
    folder = Path(os.environ.get(_FOLDER, "results-out/soak"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def keep_counts(name: str, counts: BaseModel) -> None:
    """As JSON; a run that fails leaves its counts too."""
    soak_file(name).write_text(counts.model_dump_json(indent=1) + "\n", encoding="utf-8")


class _Count(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Crash(_Count):
    """An input that was neither taken nor refused, or took long; ``data`` as hexadecimal digits."""

    decoder: str
    what: str
    data: str


class DecoderCount(_Count):
    """The inputs that one decoder took, and those that it refused."""

    name: str
    inputs: int
    taken: int
    refused: int
    crashes: int
    slowest_s: float


class FuzzedInputs(_Count):
    """Altered inputs. ``grown_mb``: by how much the process's largest memory grew after the first inputs."""

    seed: int
    inputs: int
    taken: int
    refused: int
    crashes: int
    cpu_s: float
    grown_mb: float
    decoders: tuple[DecoderCount, ...]
    found: tuple[Crash, ...]


class FuzzedRequests(_Count):
    """Requests to running servers. ``honest_rounds``: of another study meanwhile; ``data_mb``: left on the disk."""

    seed: int
    requests: int
    by_kind: dict[str, int]
    by_answer: dict[str, int]
    errors: tuple[str, ...]
    honest_rounds: int
    seconds: float
    grown_mb: float
    data_mb: float
