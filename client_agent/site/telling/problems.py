"""Problems of an agent, study by study, until they are solved: for people, beside the running agent.

problems.json   the last problem of each study; of none ("") what concerns all of them
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from client_agent.site.events import AgentEvent, EventKind, EventSink, ShownLines
from host.files import write_durably
from protocol.errors import StorageFull

PROBLEMS: Final = "problems.json"
_OVER: Final = frozenset({EventKind.ROUND, EventKind.FINISHED})


class Problem(BaseModel):
    """``since_s`` is when this text came first, since 1970; the text says what to do, where somebody can."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str
    round: int | None = None
    text: ShownLines
    since_s: float


_FILE: Final = TypeAdapter(tuple[Problem, ...])


class Problems:
    """Written when it changes; a round that ended, or a start that went well, takes a study's problem away."""

    def __init__(self, state_dir: Path, clock: Callable[[], float]) -> None:
        self._path = state_dir / PROBLEMS
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {one.study: one for one in read_problems(state_dir)}

    def noting(self, emit: EventSink) -> EventSink:
        """The same sink, every event of which is noted here first."""

        def noted(event: AgentEvent) -> None:
            if event.kind is EventKind.PROBLEM:
                self._note(event)
            elif event.kind in _OVER:
                self.mended(event.study)
            emit(event)

        return noted

    def mended(self, study: str) -> None:
        with self._lock:
            if self._known.pop(study, None) is not None:
                self._write()

    def _note(self, event: AgentEvent) -> None:
        with self._lock:
            known = self._known.get(event.study)
            if known is None or known.text != event.text:
                self._known[event.study] = Problem(
                    study=event.study, round=event.round, text=event.text, since_s=self._clock()
                )
                self._write()

    def _write(self) -> None:
        with suppress(OSError, StorageFull):  # the problem may be that the disk is full
            write_durably(self._path, _FILE.dump_json(tuple(self._known.values())))


def read_problems(state_dir: Path) -> tuple[Problem, ...]:
    """Read the problems; empty where the file is missing or cannot be read, since nothing rests on it."""
    try:
        return _FILE.validate_json((state_dir / PROBLEMS).read_bytes())
    except (OSError, ValidationError):
        return ()
