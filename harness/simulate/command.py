"""``moiety simulate``: what a person asks, and what is printed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer.core import TyperGroup

from client_agent.cli.tables import console as console_for
from client_agent.scoring.score import words_of
from harness.datasets.public_data import data_folder, fetch_missing
from harness.datasets.registry import source_of
from harness.demo.live import print_run
from harness.demo.report import accuracy_text
from harness.simulate.case import Case, case_of
from harness.simulate.case_run import CaseOptions, CaseProgress, run_case
from harness.simulate.comparison import PersonalCase, personal_case_of
from harness.simulate.comparison_report import PersonalOptions, run_personal_case, summary_json, summary_table
from harness.simulate.energy import measured_into
from harness.simulate.ranking import rank_sites
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import Protection
from harness.simulate.store import Results, append_line, read_lines
from harness.simulate.study_files import ALL_RUNS, parse_names, parse_seeds, parse_shard, read_study_file
from harness.simulate.study_run import SimulationOptions, run_simulation
from harness.simulate.summary import summarise_case, table_of, write_summary
from harness.simulate.table_one import summarise_sites
from harness.simulate.tracking import log_all, tracker_of
from harness.simulate.tuning import TUNING, TuningLine
from harness.simulate.workers import Engine, cluster_of, computing_of
from host.command_line import command
from host.extensions import load_plugins
from host.output_files import rewrite, writable
from protocol.errors import ConfigurationError

_SPEED_OVER_S: Final = 600.0
_STUDY: Final = "study"
SIMULATED: Final = Path("simulated")
"""Where a case keeps its runs if nobody says otherwise."""


class _StudyFirst(TyperGroup):
    """``moiety simulate STUDY.TOML`` is ``moiety simulate study STUDY.TOML``; the group's help has its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # typer keeps a click of its own
        named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named else [_STUDY, *args])

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        super().format_help(ctx, formatter)
        formatter.write_paragraph()
        study = self.commands[_STUDY]
        study.format_help(study.make_context(_STUDY, [], parent=ctx, resilient_parsing=True), formatter)


app = typer.Typer(cls=_StudyFirst, help="Run studies in one process: STUDY.TOML by itself, or one of the commands.")


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


@dataclass(frozen=True)
class Asked:
    """A study, or all runs of a case, in one process or several, without HTTP, over several seeds."""

    study_file: Annotated[
        Path,
        typer.Argument(metavar="STUDY.TOML", help="A study as for 'study create', or a case."),
    ]
    data: Annotated[
        str | None,
        typer.Option(
            help="A study: breast_cancer (the default), digits, or a folder that holds one folder per site. A case: "
            "the folder with the public data sets (or MOIETY_DATA)."
        ),
    ] = None
    requester: Annotated[str | None, typer.Option(help="A study: the requester's folder, with a folder.")] = None
    seeds: Annotated[
        str | None, typer.Option(help="Whole numbers and ranges, such as 0-9,12. [the case's, the study's, or 0]")
    ] = None
    requesters: Annotated[
        str | None, typer.Option(help="A case: sites that are the requester in turn, separated by commas, or each.")
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(help="A case: i/n, only the i-th of n parts of all runs; 'simulate merge' joins them."),
    ] = None
    protection: Annotated[
        Protection, typer.Option(help="plain: in the open. secure: shares and sketches. ckks: ciphertexts (extra he).")
    ] = Protection.PLAIN
    only: Annotated[str | None, typer.Option(help="A case: names of variants separated by commas.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="A case: so many runs at a time, one thread each.")] = 1
    engine: Annotated[
        Engine, typer.Option(help="A case: processes of this machine, or tasks of a Ray cluster (extra scale).")
    ] = Engine.PROCESSES
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; without: one of this machine alone, --jobs CPUs large.")
    ] = None
    cpus_per_run: Annotated[float | None, typer.Option(help="What a run asks of the Ray cluster. [1]")] = None
    gpus_per_run: Annotated[float | None, typer.Option(help="Likewise; 0.25: four runs share one. [0]")] = None
    site_plugin: Annotated[
        Path | None, typer.Option(help="A study: the Python file that sites would have as their plug-in.")
    ] = None
    save_model: Annotated[
        Path | None,
        typer.Option(help="A study: a new folder for the last model, as 'model export' makes it; by seed, if several."),
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; a case goes on where it stopped. [simulated/<case>]")
    ] = None
    download: Annotated[
        bool, typer.Option("--download", help="A case: fetch missing public files into the data folder first.")
    ] = False
    energy: Annotated[
        str | None, typer.Option(help="Three-letter country: estimate energy and CO2 into OUT/energy.json.")
    ] = None
    device: Annotated[str, typer.Option(help="A case: auto, cpu, cuda or cuda:N; plain local SGD only.")] = "auto"
    batched: Annotated[
        bool | None,
        typer.Option(
            "--batched/--one-by-one",
            help="A case: all sites' steps of a round in one call; by default on a GPU only.",
        ),
    ] = None
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="A case: a Python file with RULES, DATASETS, MODELS, METRICS of your own; may be repeated."),
    ] = None
    track: Annotated[
        str | None, typer.Option(help="A case: tensorboard, mlflow or both, separated by commas; into OUT.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False

    @property
    def folder(self) -> Path | None:
        return Path(self.data) if self.data else None

    @property
    def parsed_seeds(self) -> tuple[int, ...] | None:
        return parse_seeds(self.seeds) if self.seeds else None

    @property
    def variants(self) -> tuple[str, ...] | None:
        return parse_names(self.only, "--only") if self.only else None

    def case_options(self, out: Path) -> CaseOptions:
        """Raises: ConfigurationError"""
        cluster = cluster_of(self.engine, self.address, self.jobs, self.cpus_per_run, self.gpus_per_run)
        return CaseOptions(
            out,
            self.folder,
            self.parsed_seeds,
            self.variants,
            self.protection,
            self.jobs,
            computing=computing_of(cluster, self.device, self.batched),
            requesters=parse_names(self.requesters, "--requesters") if self.requesters else None,
            shard=parse_shard(self.shard) if self.shard else ALL_RUNS,
            cluster=cluster,
        )

    def out_for(self, what: str) -> Path:
        """Raises: ConfigurationError where no folder was given"""
        if self.out is None:
            raise ConfigurationError(f"{what} needs --out: the folder in which its runs are kept")
        return self.out


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


def simulate_study(asked: Asked, console: Console) -> None:
    """A study over its seeds, into ``simulation.json`` and a line. Raises: ConfigurationError"""
    options = SimulationOptions(
        asked.study_file,
        asked.data or "breast_cancer",
        asked.requester,
        asked.parsed_seeds,
        asked.protection,
        site_plugin=asked.site_plugin,
        save_model=asked.save_model,
    )
    place = writable(None if asked.out is None else asked.out / "simulation.json")
    result = run_simulation(options, lambda history: print_run(console, history))
    if place is not None:
        rewrite(place, result.model_dump_json(indent=2) + "\n")
    if asked.as_json:
        typer.echo(result.model_dump_json())
    else:
        mean, error = accuracy_text(result.accuracy)
        metric = words_of(result.metric)
        console.print(f"{result.study}, {result.protection}: test {metric} {mean}{error and f' +- {error}'}")


def simulate_case(
    case: Case, options: CaseOptions, asked: Asked, console: Console, log: Callable[[Sequence[RunLine]], None]
) -> None:
    """All runs of a case, into its folder and a table; ``log`` gets them all. Raises: ConfigurationError"""
    files = source_of(case.table.data).files
    if asked.download and files:
        fetch_missing(files, data_folder(options.data), lambda text: console.print(text, highlight=False))
    with CaseBar(console) as bar:
        lines = run_case(case, options, bar.show)
    summary = summarise_case(lines)
    write_summary(summary, lines, options.out)
    log(lines)
    if asked.as_json:
        typer.echo(summary.model_dump_json())
    else:
        console.print(table_of(summary))
        console.print(f"every run is in {options.out}", highlight=False)


@app.command()
def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    folders: Annotated[list[Path], typer.Argument(metavar="IN...", help="Folders of one case's runs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Join the runs of several folders of one case, such as shards, into a new one."""
    lines = merge_results(folders, out)
    summary = summarise_case(lines)
    write_summary(summary, lines, out)
    if as_json:
        typer.echo(summary.model_dump_json())
    else:
        console_for(stderr=False).print(table_of(summary))


def _run(asked: Asked) -> None:
    """A study's runs, a case's or a comparison's, by what the file holds. Raises: ConfigurationError"""
    load_plugins(asked.plugin or ())
    with measured_into(asked.out, asked.energy):
        console, file = console_for(stderr=asked.as_json), read_study_file(asked.study_file)
        if asked.save_model is not None and (file.is_case or file.is_personal_case):
            raise ConfigurationError("--save-model: a case has many models; name a study's file without [case]")
        if file.is_personal_case:
            _compare(personal_case_of(file), asked, console)
        elif file.is_case:
            _simulate_case(case_of(file), asked, console)
        else:
            simulate_study(asked, console)


simulate = command(Asked, _run)
app.command(_STUDY)(simulate)
app.command("rank")(rank_sites)
app.command("summary")(summarise_sites)


def _simulate_case(case: Case, asked: Asked, console: Console) -> None:
    options = asked.case_options(asked.out or SIMULATED / case.name)
    trackers = [tracker_of(name, options.out) for name in parse_names(asked.track, "--track")] if asked.track else []
    simulate_case(case, options, asked, console, lambda lines: log_all(trackers, lines))


def _compare(case: PersonalCase, asked: Asked, console: Console) -> None:
    options = PersonalOptions(
        asked.out_for("a comparison of personal models"),
        asked.folder,
        asked.parsed_seeds,
        asked.variants or (),
        asked.device,
        asked.batched,
        asked.protection,
    )
    lines = run_personal_case(case, options, lambda text: console.print(text, highlight=False))
    if asked.as_json:
        typer.echo(summary_json(lines))
    else:
        console.print(summary_table(lines))
