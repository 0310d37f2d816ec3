"""What a comparison leaves on disk: a line a finished run, its last models, and where an unfinished run stands.

results.jsonl                       one ``PersonalLine`` a finished run
final/VARIANT-SEED.safetensors      the state after the last round: models, personal layers, mixing weights
partial/VARIANT-SEED.safetensors    the same after the last evaluation, with the scores so far in its metadata
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors import safe_open
from safetensors.numpy import save

from harness.personal.schemes import SchemeState
from harness.personal.scores import Scores
from host.durable import write_durably
from protocol.errors import ConfigurationError

FORMAT: Final = "moiety-personal/1"
_PROGRESS: Final = "progress"


class Evaluated(BaseModel):
    """All sites after a round; ``validation`` is None where no site keeps validation examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    round: int
    test: Scores
    validation: Scores | None = None


class Progress(BaseModel):
    """An unfinished run. ``identity`` says which file and data it belongs to; ``clipped`` sums the rounds' shares."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    identity: str
    round: int
    seconds: float
    clipped: float
    evaluated: tuple[Evaluated, ...]


class PersonalLine(BaseModel):
    """A finished run; ``protection`` is plain or secure, ``fine_tuned`` the scores after further local epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    case: str
    variant: str
    scheme: str
    seed: int
    protection: str = "plain"
    rounds: int
    sites: tuple[str, ...]
    study_digest: str
    data_digest: str
    clipped_share: float
    seconds: float
    evaluated: tuple[Evaluated, ...]
    fine_tuned: Scores | None
    versions: dict[str, str]

    @property
    def last(self) -> Scores:
        """On the test examples, after the last round and fine-tuning."""
        return self.fine_tuned or self.evaluated[-1].test


class ResultFolder:
    """The files of one comparison."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self) -> tuple[PersonalLine, ...]:
        """Raises: ConfigurationError when the file is not one of this kind"""
        path = self.folder / "results.jsonl"
        if not path.exists():
            return ()
        try:
            return tuple(PersonalLine.model_validate_json(line) for line in path.read_text("utf-8").splitlines())
        except ValueError as error:
            raise ConfigurationError(f"{path} holds a line of another kind: {error}; give another --out") from None

    def finish(self, line: PersonalLine, state: SchemeState) -> None:
        """The last state first, then the line, then the partial file goes."""
        run = _run(line.variant, line.seed)
        (self.folder / "final").mkdir(parents=True, exist_ok=True)
        write_durably(self.folder / "final" / f"{run}.safetensors", save(_arrays(state)))
        path = self.folder / "results.jsonl"
        before = path.read_bytes() if path.exists() else b""
        write_durably(path, before + line.model_dump_json().encode() + b"\n")
        (self.folder / "partial" / f"{run}.safetensors").unlink(missing_ok=True)

    def save(self, variant: str, seed: int, progress: Progress, state: SchemeState) -> None:
        """Replace what was there, in one step."""
        content = save(_arrays(state), metadata={_PROGRESS: progress.model_dump_json()})
        (self.folder / "partial").mkdir(parents=True, exist_ok=True)
        write_durably(self.folder / "partial" / f"{_run(variant, seed)}.safetensors", content)

    def load(self, variant: str, seed: int, identity: str) -> tuple[Progress, SchemeState] | None:
        """Where a run stands, None when it has not begun. Raises: ConfigurationError for a file of another case"""
        path = self.folder / "partial" / f"{_run(variant, seed)}.safetensors"
        if not path.exists():
            return None
        with safe_open(path, framework="numpy") as file:
            progress = Progress.model_validate_json((file.metadata() or {}).get(_PROGRESS, ""))
        if progress.identity != identity:
            raise ConfigurationError(
                f"{path} belongs to another file or other data than now: give another --out, or delete it"
            )
        return progress, read_state(path)

    def final_state(self, variant: str, seed: int) -> SchemeState:
        """The state after the last round of a finished run."""
        return read_state(self.folder / "final" / f"{_run(variant, seed)}.safetensors")


def read_state(path: Path) -> SchemeState:
    """Raises: ConfigurationError when the file is missing"""
    if not path.exists():
        raise ConfigurationError(f"{path} is missing: that run is not finished")
    with safe_open(path, framework="numpy") as file:
        return SchemeState(*(np.asarray(file.get_tensor(name)) for name in ("models", "personal", "own", "mixing")))


def _arrays(state: SchemeState) -> dict[str, NDArray[np.generic]]:
    """What safetensors takes."""
    arrays = {"models": state.models, "personal": state.personal, "own": state.own, "mixing": state.mixing}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _run(variant: str, seed: int) -> str:
    return f"{variant}-{seed}"
