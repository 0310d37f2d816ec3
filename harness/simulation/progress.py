"""Progress of a case's runs on the terminal, with an estimate of the time that is left."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from harness.simulation.case_run import CaseProgress

_SPEED_OVER_S: Final = 600.0


class CaseBar:
    """A bar over all rounds. Without a terminal: one line a finished run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=_SPEED_OVER_S,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("reading the data", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, progress: CaseProgress) -> None:
        """Bring the display up to date."""
        text = f"{progress.doing}: {progress.runs_done} of {progress.runs} runs"
        self._bar.update(self._task, description=text, completed=progress.rounds_done, total=progress.rounds)
        if not self._console.is_terminal and progress.runs_done and text != self._printed:
            self._console.print(text, highlight=False)
            self._printed = text
