"""The demo's display while it runs: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from client_agent.learning.scores import shown_score
from client_agent.site.events import RoundEnd, RoundRecord, after_each
from client_agent.study.plain_words import RULE_NAMES
from harness.datasets.site_data import Federation, describe
from harness.demo.report import accuracy_text
from harness.demo.results import Accuracy, StudyResult
from harness.engine.history import RunHistory
from harness.federation.federated_run import Progress


class LiveRun:
    """Progress of one study. Without a terminal: one line per round."""

    def __init__(self, console: Console, title: str, rounds: int) -> None:
        self._console = console
        self._title = title
        self._rounds = rounds
        self._printed = 0
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Bring the display up to date."""
        if self._live is not None:
            self._live.update(self.picture(progress))
            return
        for before, record in list(after_each(progress.records))[self._printed :]:
            self._console.print(_line(self._title, self._rounds, record, before), soft_wrap=True, highlight=False)
        self._printed = len(progress.records)

    def picture(self, progress: Progress) -> Group:
        """Return the terminal's content now."""
        done = len(progress.records)
        head = Text(f"{self._title}: round {progress.round} of {self._rounds}, {progress.phase}", style="bold")
        if not done:
            return Group(head)
        last = progress.records[-1]
        if last.state is RoundEnd.ALONE:
            return Group(head, Text(_totals(progress)))
        table = Table("site", "weight", "distance", box=None)
        for alpha in last.alphas:
            table.add_row(alpha.site, f"{alpha.value:.3f}", _distance(last, alpha.site))
        return Group(head, table, Text(_totals(progress)))


def print_split(console: Console, federation: Federation, why: str) -> None:
    """The split as it was fixed beforehand."""
    console.print(Text(f"\n{federation.title}", style="bold"))
    table = Table(box=None)
    for name in ("site", "train", "validation", "test", *federation.class_names, ""):
        table.add_column(name, no_wrap=True)
    for row in describe(federation):
        counts = (str(n) for n in (row.train, row.validation, row.test, *row.class_counts))
        table.add_row(row.site, *counts, row.note)
    console.print(table)
    console.print(Text(why), soft_wrap=True)


def print_accuracies(console: Console, study: StudyResult) -> None:
    """The table of test accuracy, whichever wins."""
    seeds = len(study.rules[0].seeds)
    console.print(Text(f"\n{study.title}: the requester's test accuracy over {seeds} seeds", style="bold"))
    table = Table("rule", "mean", "standard error", box=None)
    for result in study.rules:
        table.add_row(RULE_NAMES[result.rule], *accuracy_text(Accuracy.of(result.accuracies)))
    console.print(table)


def print_run(console: Console, history: RunHistory) -> None:
    """One finished run in a line."""
    last = history.rounds[-1]
    scored = ", ".join(shown_score(score) for score in last.test_scores) or f"test loss {last.test_loss:.4f}"
    text = f"seed {history.seed}: {scored}, {history.end.value}: {history.reason}"
    console.print(text, soft_wrap=True, highlight=False)


def _line(title: str, rounds: int, record: RoundRecord, before: RoundRecord | None) -> str:
    sites = ", ".join(f"{alpha.site} {alpha.value:.3f}/{_distance(record, alpha.site)}" for alpha in record.alphas)
    alone = record.state is RoundEnd.ALONE
    shown = "" if alone or not sites else f", weight/distance: {sites}"
    isolation = "" if record.isolation is None else f", isolation {record.isolation:.2f}"
    accuracy = "" if record.test_accuracy is None else f", accuracy {record.test_accuracy:.3f}"
    traffic = "" if alone else f", {record.bytes_up + record.bytes_down:,} bytes"
    reason = f" ({record.reason_after(before)})" if record.reason and not alone else ""
    head = f"{title}: round {record.round}/{rounds} {record.state}{reason}"
    return f"{head}{accuracy}{isolation}{shown}{traffic}, {record.seconds:.2f} s"


def _distance(record: RoundRecord, site: str) -> str:
    return next((f"{entry.value:.3f}" for entry in record.distances if entry.site == site), "-")


def _totals(progress: Progress) -> str:
    up, down = (sum(r.bytes_up for r in progress.records), sum(r.bytes_down for r in progress.records))
    seconds = sum(record.seconds for record in progress.records)
    accuracy = progress.records[-1].test_accuracy
    shown = "" if accuracy is None else f"accuracy {accuracy:.3f}, "
    return f"{shown}requester's bytes up {up:,}, down {down:,}, {seconds:.1f} s"
