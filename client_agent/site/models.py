"""Models that a requester keeps beside the shared one, in its journal of a study.

finish.json            the study's [finish], from the outbox
finished.safetensors   the model that this site has finished alone
finished.json          how it was finished; without it the finish is done again, to the same bits
shared_scores.json     the shared model's metrics, as scores.json has those of the finished one
federated.json, federated-000007.safetensors   the last model of the shared part, when this site goes on alone
best.json, best-000004.safetensors             of the shared part's, the one of least loss on its validation part

The facts (.json) are written last and say which file of values counts.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.study_file import FinishTable
from client_agent.site.journal import MODEL, StudyJournal, read_tensors, write_tensors
from host.frozen import Frozen

FINISH: Final = "finish.json"
SHARED_SCORES: Final = "shared_scores.json"
_FACTS: Final = "finished.json"
_VALUES: Final = "finished.safetensors"


class FinishedModel(Frozen):
    """The finish of the model ``shared_version``: ``pull``, None where it stayed as it is, chosen by ``choose``.

    ``seen`` and ``held`` count the training examples that the shared rounds had and had not. ``failed``: why there is
    no finished model.
    """

    choose: Literal["held_out", "leave_one_out"]
    shared_version: int
    pull: float | None = None
    seen: int = 0
    held: int = 0
    failed: str = ""

    @property
    def text(self) -> str:
        if self.failed:
            return f"no local finish: {self.failed}"
        by = f"{self.held} examples held out" if self.held else f"leaving each of {self.seen} examples out"
        if self.pull is None:
            return f"the local finish kept the shared model, by {by}"
        return f"local finish with pull {self.pull:.2g}, chosen by {by}"


def finish_table(journal: StudyJournal) -> FinishTable | None:
    """The study's [finish]; None where it has none, or this site is not its requester. Raises: ConfigurationError"""
    return journal.read(journal.folder / FINISH, FinishTable)


def finished_model(journal: StudyJournal) -> FinishedModel | None:
    return journal.read(journal.folder / _FACTS, FinishedModel)


def save_finished(journal: StudyJournal, facts: FinishedModel, vector: NDArray[np.float32] | None) -> None:
    """Values first, then the facts that say they are whole. Shapes: float32[D]"""
    if vector is not None:
        write_tensors(journal.folder / _VALUES, {MODEL: vector})
    journal.write(journal.folder / _FACTS, facts)


def load_finished(journal: StudyJournal) -> NDArray[np.float32]:
    """The finished model, float32[D]. Raises: ConfigurationError where it is missing"""
    return read_tensors(journal.folder / _VALUES)[MODEL]


class Kept(StrEnum):
    """The kept one of a study's models."""

    FEDERATED = "federated"
    BEST = "best"


class KeptModel(Frozen):
    """``version`` of the shared model, and its mean loss on the validation examples where that chose it."""

    version: int
    validation_loss: float | None = None


def kept_model(journal: StudyJournal, which: Kept) -> KeptModel | None:
    return journal.read(_facts(journal, which), KeptModel)


def save_kept(journal: StudyJournal, which: Kept, facts: KeptModel, model: NDArray[np.float32]) -> None:
    """Values first, then the facts. Shapes: float32[D]"""
    write_tensors(_values(journal, which, facts.version), {MODEL: model})
    journal.write(_facts(journal, which), facts)
    for path in journal.folder.glob(f"{which.value}-*.safetensors"):
        if path != _values(journal, which, facts.version):
            path.unlink()


def load_kept(journal: StudyJournal, which: Kept, facts: KeptModel) -> NDArray[np.float32]:
    """float32[D]. Raises: ConfigurationError where the file is missing"""
    return read_tensors(_values(journal, which, facts.version))[MODEL]


def _values(journal: StudyJournal, which: Kept, version: int) -> Path:
    return journal.folder / f"{which.value}-{version:06d}.safetensors"


def _facts(journal: StudyJournal, which: Kept) -> Path:
    return journal.folder / f"{which.value}.json"
