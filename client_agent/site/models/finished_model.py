"""The model that a requester has finished alone, beside the shared one, in its journal of the study.

finish.json            the study's [finish], from the outbox
finished.safetensors   the finished model
finished.json          how it was finished, written last: without it the finish is done again, to the same bits
shared_scores.json     the shared model's metrics, as scores.json has those of the finished one
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.site.journal import StudyJournal
from host.files import write_durably
from protocol.errors import ConfigurationError

FINISH: Final = "finish.json"
SHARED_SCORES: Final = "shared_scores.json"
_FACTS: Final = "finished.json"
_VALUES: Final = "finished.safetensors"
_MODEL: Final = "model"


class FinishedModel(BaseModel):
    """The finish of the model ``shared_version``: ``pull``, None where it stayed as it is, chosen by ``choose``.

    ``seen`` and ``held`` count the training examples that the shared rounds had and had not. ``failed``: why there is
    no finished model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    choose: Literal["held_out", "leave_one_out"]
    shared_version: int
    pull: float | None = None
    seen: int = 0
    held: int = 0
    failed: str = ""

    @property
    def text(self) -> str:
        """In one line."""
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
    """Return the finish of the model; None before it. Raises: ConfigurationError"""
    return journal.read(journal.folder / _FACTS, FinishedModel)


def save_finished(journal: StudyJournal, facts: FinishedModel, vector: NDArray[np.float32] | None) -> None:
    """Values first, then the facts that say they are whole. Shapes: float32[D]"""
    from safetensors.numpy import save

    if vector is not None:
        write_durably(journal.folder / _VALUES, save({_MODEL: vector}))
    journal.write(journal.folder / _FACTS, facts)


def load_finished(journal: StudyJournal) -> NDArray[np.float32]:
    """The finished model, float32[D]. Raises: ConfigurationError where it is missing"""
    from safetensors.numpy import load_file

    path = journal.folder / _VALUES
    if not path.exists():
        raise ConfigurationError(f"{path} is missing although the journal says it is there; restore it from a backup")
    return np.asarray(load_file(path)[_MODEL], dtype=np.float32)
