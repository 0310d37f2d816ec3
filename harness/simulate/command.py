"""The runs of ``moiety simulate STUDY.TOML`` and ``merge``, and what is printed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from client_agent.cli.tables import console as console_for
from client_agent.learning.scores import words_of
from harness.datasets.public_data import data_folder, fetch_missing
from harness.datasets.registry import source_of
from harness.demo.report import accuracy_text, print_run
from harness.simulate.case import Case, case_of
from harness.simulate.case_run import CaseOptions, CaseProgress, run_case
from harness.simulate.energy import measured
from harness.simulate.options import StudyOptions
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import Protection
from harness.simulate.store import Results, append_line, read_lines
from harness.simulate.study_files import parse_names, parse_seeds, parse_shard, read_study_file
from harness.simulate.study_run import run_simulation
from harness.simulate.summary import summarise_case, table_of, write_summary
from harness.simulate.tuning import TUNING, TuningLine
from harness.simulate.workers import cluster_of, computing_of
from host.extensions import load_plugins
from host.output_files import rewrite, writable
from protocol.errors import ConfigurationError

_SPEED_OVER_S: Final = 600.0
SIMULATED: Final = Path("simulated")
"""The folder where a case keeps its runs if nobody names another."""


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

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: CaseProgress) -> None:
        text = f"{progress.doing}: {progress.runs_done} of {progress.runs} runs"
        self._bar.update(self._task, description=text, completed=progress.rounds_done, total=progress.rounds)
        if not self._console.is_terminal and progress.runs_done and text != self._printed:
            self._console.print(text, highlight=False)
            self._printed = text


def _case_options(asked: StudyOptions, out: Path) -> CaseOptions:
    cluster = cluster_of(asked.address, asked.cpus_per_run, asked.gpus_per_run)
    return CaseOptions(
        out,
        Path(asked.data) if asked.data else None,
        parse_seeds(asked.seeds) if asked.seeds else None,
        parse_names(asked.only, "--only") if asked.only else None,
        Protection(asked.protection),
        asked.jobs,
        computing=computing_of(cluster, asked.device),
        requesters=parse_names(asked.requesters, "--requesters") if asked.requesters else None,
        shard=parse_shard(asked.shard) if asked.shard else None,
        cluster=cluster,
    )


def merge_results(folders: Sequence[Path], out: Path) -> tuple[RunLine, ...]:
    """Every run of ``folders`` into ``out``, which may hold none yet; returns them by seed, requester and variant.

    What was tried to choose settings is joined too, so that ``moiety simulate`` goes on in ``out``.

    Raises: ConfigurationError for runs of two cases, two versions of a study or of the code, two protections, the same
            run twice, or a folder without a run; nothing is written then
    """
    lines = [(folder, line) for folder in folders for line in _lines_of(folder)]
    _require_alike(lines)
    tried = _tuning_of(folders)
    results = Results(out)
    with results.held():
        if results.lines():
            raise ConfigurationError(f"{out} holds runs already: merge into a new folder")
        for one in tried:
            append_line(out / TUNING, one)
        ordered = sorted((line for _, line in lines), key=lambda line: line.seed)
        for line in ordered:
            results.append(line)
    return tuple(ordered)


def _lines_of(folder: Path) -> tuple[RunLine, ...]:
    lines = Results(folder).lines()
    if not lines:
        raise ConfigurationError(f"{folder} holds no finished run: leave it out, or finish its simulation first")
    return lines


def _require_alike(lines: Sequence[tuple[Path, RunLine]]) -> None:
    """The case, the code and the protection of all; the study of a variant, and its settings at a requester."""
    seen: dict[Hashable, tuple[Path, str]] = {}
    runs: dict[Hashable, Path] = {}
    for folder, line in lines:
        for what, key, value in (
            ("case", "", line.case),
            ("code", "", line.code_digest),
            ("protection", "", line.protection),
            ("study", line.variant, line.study_digest),
            ("rule's settings", (line.variant, line.requester), str(sorted(line.settings.items()))),
        ):
            first, known = seen.setdefault((what, key), (folder, value))
            if known != value:
                raise ConfigurationError(
                    f"{first} and {folder} hold runs of two different {what}s"
                    f"{f' for {line.variant!r}' if key else ''} ({known[:40]} and {value[:40]}), and those are not "
                    "mixed in one table"
                )
        if line.key in runs:
            raise ConfigurationError(f"run {line.key} is in {runs[line.key]} and in {folder}: leave one of them out")
        runs[line.key] = folder


def _tuning_of(folders: Sequence[Path]) -> tuple[TuningLine, ...]:
    """Every combination once. Raises: ConfigurationError where two folders found different accuracies for one"""
    found: dict[Hashable, TuningLine] = {}
    for folder in folders:
        for line in read_lines(folder / TUNING, TuningLine):
            key = (line.variant, line.requester, line.seed, str(line.settings))
            if found.setdefault(key, line) != line:
                raise ConfigurationError(f"{folder} chose settings of {line.variant!r} on other results than the rest")
    return tuple(found.values())


def _simulate_study(asked: StudyOptions, console: Console) -> None:
    """A study over its seeds, into ``simulation.json`` and a line. Raises: ConfigurationError"""
    place = writable(None if asked.out is None else asked.out / "simulation.json")
    result = run_simulation(asked, lambda history: print_run(console, history))
    if place is not None:
        rewrite(place, result.model_dump_json(indent=2) + "\n")
    if asked.as_json:
        typer.echo(result.model_dump_json())
    else:
        mean, error = accuracy_text(result.accuracy)
        metric = words_of(result.metric)
        console.print(f"{result.study}, {result.protection}: test {metric} {mean}{error and f' +- {error}'}")


def merge(out: Path, folders: Sequence[Path], *, as_json: bool) -> None:
    """Join the runs of several folders of one case into ``out``, and print the table. Raises: ConfigurationError"""
    lines = merge_results(folders, out)
    summary = summarise_case(lines)
    write_summary(summary, lines, out)
    if as_json:
        typer.echo(summary.model_dump_json())
    else:
        console_for(stderr=False).print(table_of(summary))


def run(asked: StudyOptions) -> None:
    """A study's runs or a case's, by what the file holds. Raises: ConfigurationError"""
    load_plugins(asked.plugin or ())
    with measured(asked.energy, asked.out):
        console, file = console_for(stderr=asked.as_json), read_study_file(asked.study_file)
        if asked.save_model is not None and file.is_case:
            raise ConfigurationError("--save-model: a case has many models; name a study's file without [case]")
        if file.is_case:
            _simulate_case(case_of(file), asked, console)
        else:
            _simulate_study(asked, console)


def _simulate_case(case: Case, asked: StudyOptions, console: Console) -> None:
    options = _case_options(asked, asked.out or SIMULATED / case.name)
    files = source_of(case.table.data).files
    if asked.download and files:
        fetch_missing(files, data_folder(options.data), lambda text: console.print(text, highlight=False))
    with CaseBar(console) as bar:
        lines = run_case(case, options, bar.show)
    summary = summarise_case(lines)
    write_summary(summary, lines, options.out)
    if asked.as_json:
        typer.echo(summary.model_dump_json())
    else:
        console.print(table_of(summary))
        console.print(f"every run is in {options.out}", highlight=False)
