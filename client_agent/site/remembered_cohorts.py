"""Over whom this site's data were summed as they are, what they answered, its key for rounding (docs/protocol.md 17).

    cohorts/KEY/rounds.json     rounds of class counts and of summaries that were not skipped, in all studies
                rounding.key    32 random bytes, drawn once: the same rows are counted the same for ever

Both are written before the first share of such a round leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.site.key_folder import drawn_once, folder_of_key, read_remembered
from host.files import new_folder, write_durably
from protocol.policy.cohorts import Cohort, check_cohort, check_questions
from protocol.policy.site_policy import SitePolicy

_ROUNDS: Final = "rounds.json"
_KEY: Final = "rounding.key"
_MEMORY: Final = "cohorts"


def cohort_memory(state_dir: Path, came_with: str, draw: Callable[[], bytes]) -> CohortMemory:
    """The memory of the site that came with this signing key, whichever keys it has now and whichever study asks."""
    return CohortMemory(folder_of_key(state_dir, _MEMORY, came_with), draw)


class Remembered(BaseModel):
    """The contents of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cohorts: tuple[Cohort, ...] = ()


class CohortMemory:
    """All studies of an agent share it, one at a time. ``draw``: 32 bytes, asked for once in the life of the folder.

    Raises: ConfigurationError when the file is not what was written
    """

    def __init__(self, folder: Path, draw: Callable[[], bytes]) -> None:
        self._folder = new_folder(folder)
        self._draw = draw
        self._lock = threading.RLock()
        kept = folder / _ROUNDS
        self._cohorts = read_remembered(kept, Remembered, _MEMORY).cohorts if kept.exists() else ()

    def rounds(self) -> frozenset[tuple[str, int]]:
        """All rounds that this memory has a word on."""
        with self._lock:
            return frozenset(one.name for one in self._cohorts)

    def agree(self, cohort: Cohort, colluders: int, policy: SitePolicy) -> None:
        """Remember a round durably, if earlier ones allow it. Until its end is known, its last list counts.

        Raises: PolicyRefusal, clause ``cohort`` or ``question``; then nothing is remembered
        """
        with self._lock:
            check_cohort(cohort, self._cohorts, colluders, policy.most_cohorts)
            check_questions(cohort, self._cohorts, policy.most_questions)
            self.rounding_key()
            if not any(one.released is not None for one in self._of(cohort.name)):
                self._keep((*(one for one in self._cohorts if one.name != cohort.name), cohort))

    def settle(self, name: tuple[str, int], released: Sequence[str]) -> None:
        """A release named the contributors that were summed; repeating it changes nothing."""
        with self._lock:
            settled = {one: one.model_copy(update={"released": tuple(released)}) for one in self._of(name)}
            if settled:
                self._keep(tuple(settled.get(one, one) for one in self._cohorts))

    def drop(self, name: tuple[str, int]) -> None:
        """Both servers signed that the round ended without a sum."""
        with self._lock:
            if any(one.released is None for one in self._of(name)):
                self._keep(tuple(one for one in self._cohorts if one.name != name))

    def rounding_key(self) -> bytes:
        """Return the key that decides whether a count is rounded up. Raises: ConfigurationError"""
        otherwise = "under another key the same rows would be rounded otherwise"
        with self._lock:
            return drawn_once(self._folder / _KEY, self._draw, lambda: bool(self._cohorts), otherwise)

    def _of(self, name: tuple[str, int]) -> tuple[Cohort, ...]:
        return tuple(one for one in self._cohorts if one.name == name)

    def _keep(self, cohorts: tuple[Cohort, ...]) -> None:
        write_durably(self._folder / _ROUNDS, Remembered(cohorts=cohorts).model_dump_json().encode())
        self._cohorts = cohorts
