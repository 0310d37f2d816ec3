"""A site's model with its data, as a study's round asks for it, and its personal layers on disk.

This module needs no torch, so that most of the agent runs without it (client_agent.learning.torch_learner).

A site's personal layers lie beside the journal; they leave the site in no message.

    studies/NAME/personal-000012.safetensors    the layers after the training of round 12

The layers move on when the site trains, whether or not the round is released. The update of a round starts from the
newest layers of an earlier round, and those are kept; so an agent that is killed in the middle of a round and trains
again gives the same update.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.ridge import JudgingForm, Matrix
from client_agent.learning.scores import FinalScores, Score
from client_agent.learning.study_file import Finished
from host.files import new_folder, write_durably
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from client_agent.learning.update_noise import UpdateNoise

Vector = NDArray[np.float32]
_KEPT_ROUNDS: Final = 3


class Learner(Protocol):
    """A site's model with its data; vectors are float32[D] on the CPU.

    ``kept`` is the model with the server optimiser's moments behind it (protocol.shared_model).
    """

    def prepare(self) -> None: ...

    def update(self, model: Vector, round_number: int) -> Vector: ...

    def apply(self, kept: Vector, aggregate: Vector) -> Vector: ...

    def probe(self, model: Vector) -> Vector: ...

    def update_noise(self, model: Vector, round_number: int) -> UpdateNoise: ...

    def sample_count(self) -> int: ...

    def class_counts(self) -> tuple[int, ...]: ...

    def ridge(self, penalty: float) -> Matrix: ...

    def judging_form(self) -> JudgingForm: ...

    def validation_loss(self, model: Vector) -> float | None: ...

    def scores(self, model: Vector) -> tuple[Score, ...]: ...

    def final_scores(self, model: Vector, samples: int) -> FinalScores | None: ...

    def finish(self, model: Vector) -> Finished: ...


class PersonalState:
    """The files of one study; vectors are float32[P]."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before(self, round_number: int) -> Vector | None:
        """The layers that a round's training starts from; None: their initial values.

        Raises: ConfigurationError for a file that cannot be read
        """
        return self._load([path for path in self._paths() if _round_of(path) < round_number])

    def latest(self) -> Vector | None:
        """The newest layers; None before the first training."""
        return self._load(self._paths())

    def save(self, round_number: int, layers: Vector, study_digest: str) -> None:
        """Durably; older ones than the last three go. Raises: StorageFull"""
        from safetensors.numpy import save

        metadata = {"moiety": f"study {study_digest}, personal layers after round {round_number}"}
        path = new_folder(self._folder) / f"personal-{round_number:06d}.safetensors"
        write_durably(path, save({"personal": layers}, metadata=metadata))
        for old in self._paths()[:-_KEPT_ROUNDS]:
            old.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("personal-*.safetensors"))

    def _load(self, paths: list[Path]) -> Vector | None:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        if not paths:
            return None
        try:
            return np.asarray(load_file(paths[-1])["personal"], dtype=np.float32)
        except (OSError, KeyError, SafetensorError) as error:
            raise ConfigurationError(
                f"{paths[-1]} cannot be read: {error}; restore it from a backup, or leave the study"
            ) from None


def _round_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])
