"""A site's personal layers on disk, beside the journal; they leave the site in no message.

    studies/NAME/personal-000012.safetensors    the layers after the training of round 12

The layers move on when the site trains, whether or not the round is released. The update of a round starts from the
newest layers of an earlier round, and those are kept; so an agent that is killed in the middle of a round and trains
again gives the same update.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from host.files import new_folder, write_durably
from protocol.errors import ConfigurationError

_KEPT: Final = 3


class PersonalState:
    """The files of one study; vectors are float32[P]."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before(self, round_number: int) -> NDArray[np.float32] | None:
        """The layers that a round's training starts from; None: their initial values.

        Raises: ConfigurationError for a file that cannot be read
        """
        return self._load([path for path in self._paths() if _round_of(path) < round_number])

    def latest(self) -> NDArray[np.float32] | None:
        """The newest layers; None before the first training."""
        return self._load(self._paths())

    def save(self, round_number: int, layers: NDArray[np.float32], study_digest: str) -> None:
        """Durably; older ones than the last three go. Raises: StorageFull"""
        from safetensors.numpy import save

        metadata = {"moiety": f"study {study_digest}, personal layers after round {round_number}"}
        path = new_folder(self._folder) / f"personal-{round_number:06d}.safetensors"
        write_durably(path, save({"personal": layers}, metadata=metadata))
        for old in self._paths()[:-_KEPT]:
            old.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("personal-*.safetensors"))

    def _load(self, paths: list[Path]) -> NDArray[np.float32] | None:
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
