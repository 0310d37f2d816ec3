"""Models that a requester keeps beside the last one, in its journal of a study.

federated.json, federated-000007.safetensors   the last model of the shared part, when this site goes on alone
best.json, best-000004.safetensors             of the shared part's, the one of least loss on its validation part

The facts (.json) are written last and say which file of values counts.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_agent.site.journal import StudyJournal
from host.files import write_durably
from protocol.errors import ConfigurationError

_MODEL: Final = "model"


class Kept(StrEnum):
    """The kept one of a study's models."""

    FEDERATED = "federated"
    BEST = "best"


class KeptModel(BaseModel):
    """``version`` of the shared model, and its mean loss on the validation examples where that chose it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: int
    validation_loss: float | None = None


def kept_model(journal: StudyJournal, which: Kept) -> KeptModel | None:
    """Return the kept model; None before there is one. Raises: ConfigurationError"""
    return journal.read(_facts(journal, which), KeptModel)


def save_kept(journal: StudyJournal, which: Kept, facts: KeptModel, model: NDArray[np.float32]) -> None:
    """Values first, then the facts. Shapes: float32[D]"""
    from safetensors.numpy import save

    write_durably(_values(journal, which, facts.version), save({_MODEL: model}))
    journal.write(_facts(journal, which), facts)
    for path in journal.folder.glob(f"{which.value}-*.safetensors"):
        if path != _values(journal, which, facts.version):
            path.unlink()


def load_kept(journal: StudyJournal, which: Kept, facts: KeptModel) -> NDArray[np.float32]:
    """float32[D]. Raises: ConfigurationError where the file is missing"""
    from safetensors.numpy import load_file

    path = _values(journal, which, facts.version)
    if not path.exists():
        raise ConfigurationError(f"{path} is missing although the journal says it is there; restore it from a backup")
    return np.asarray(load_file(path)[_MODEL], dtype=np.float32)


def _values(journal: StudyJournal, which: Kept, version: int) -> Path:
    return journal.folder / f"{which.value}-{version:06d}.safetensors"


def _facts(journal: StudyJournal, which: Kept) -> Path:
    return journal.folder / f"{which.value}.json"
