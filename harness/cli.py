"""``moiety demo``; ``moiety simulate`` with a study, a case or a comparison of personal models."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console

from client_agent.cli.tables import console as console_for
from harness.demo.results import summarise
from harness.demo.run import DemoOptions, run_demo
from harness.personal.case import PersonalCase, personal_case_of
from harness.personal.run_case import PersonalOptions, run_personal_case
from harness.personal.summary import summary_json, summary_table
from harness.simulation.case import Case, case_of
from harness.simulation.command.asked import Asked
from harness.simulation.command.cases import simulate_case, simulate_study
from harness.simulation.files.study_files import read_study_file
from harness.simulation.options import parse_names
from harness.tracking import log_all, tracker_of
from harness.training.energy import measured_into
from host.commands.subcommand import command
from host.extensions import load_plugins
from host.placed_files import writable_folder
from protocol.errors import ConfigurationError
from protocol.protection.plan import USUAL, StudyProtection

SIMULATED: Final = Path("simulated")
"""Where a case keeps its runs if nobody says otherwise."""


def demo(
    out: Annotated[Path, typer.Option(callback=writable_folder, help="Where report.html and summary.json go.")] = Path(
        "demo-out"
    ),
    data: Annotated[Path | None, typer.Option(help="PATH/heart_disease: the four real hospitals instead.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the first study.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes splits, batches and, on this machine, every secret.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds and two seeds, to see that it works.")] = False,
    protection: Annotated[
        StudyProtection, typer.Option(help="ckks: server A sums ciphertexts instead (extra he); FedAvg and WFedAvg.")
    ] = USUAL,
    keep: Annotated[bool, typer.Option("--keep", help="Keep every process's folder and log below OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON; progress on stderr.")] = False,
) -> None:
    """Two servers and five sites on this machine, from certificates to a report."""
    signal.signal(signal.SIGTERM, _end)
    options = DemoOptions(out=out, data=data, rounds=rounds, quick=quick, seed=seed, keep=keep, protection=protection)
    result = run_demo(options, console_for(stderr=as_json))
    if as_json:
        typer.echo(summarise(result).model_dump_json())


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)


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
