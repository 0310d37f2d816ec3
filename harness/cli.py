"""``moiety demo`` and ``moiety simulate``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from harness.demo.live import console_for
from harness.demo.results import summarise
from harness.demo.run import DemoOptions, run_demo
from harness.simulating import Asked, run_asked
from harness.simulation.run_one import Protection
from harness.training.energy import measured_into
from protocol.wire.messages import StudyProtection


def demo(
    out: Annotated[Path, typer.Option(help="Where report.html and summary.json go.")] = Path("demo-out"),
    data: Annotated[Path | None, typer.Option(help="PATH/heart_disease: the four real hospitals instead.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the first study.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes splits, batches and, on this machine, every secret.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds and two seeds, to see that it works.")] = False,
    protection: Annotated[
        StudyProtection, typer.Option(help="ckks: server A sums ciphertexts instead (extra he); FedAvg and WFedAvg.")
    ] = StudyProtection.SHARES,
    keep: Annotated[bool, typer.Option("--keep", help="Keep every process's folder and log below OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON; progress on stderr.")] = False,
) -> None:
    """Two servers and five sites on this machine, from certificates to a report."""
    signal.signal(signal.SIGTERM, _end)
    options = DemoOptions(out=out, data=data, rounds=rounds, quick=quick, seed=seed, keep=keep, protection=protection)
    result = run_demo(options, console_for(stderr=as_json))
    if as_json:
        typer.echo(summarise(result).model_dump_json())


StudyFile = Annotated[
    Path,
    typer.Argument(metavar="STUDY.TOML", help="A study as for 'study create', or a case."),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="A study: breast_cancer (the default), digits, or a folder that holds one folder a site. A case: the "
        "folder with the public data sets (or MOIETY_DATA)."
    ),
]
Protected = Annotated[
    Protection, typer.Option(help="plain: in the open. secure: shares and sketches. ckks: ciphertexts (extra he).")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; a case goes on where it stopped.")]
Download = Annotated[
    bool, typer.Option("--download", help="A case: fetch missing public files into the data folder first.")
]
Energy = Annotated[str | None, typer.Option(help="Three-letter country: estimate energy and CO2 into OUT/energy.json.")]
Device = Annotated[str, typer.Option(help="A case: auto, cpu, cuda or cuda:N; plain local SGD only.")]
Batched = Annotated[
    bool | None,
    typer.Option(
        "--batched/--one-by-one",
        help="A case: all sites' steps of a round in one call; by default on a GPU only.",
    ),
]


def simulate(
    study_file: StudyFile,
    data: Data = None,
    requester: Annotated[str | None, typer.Option(help="A study: the requester's folder, with a folder.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Whole numbers separated by commas; the case's, or 0.")] = None,
    protection: Protected = Protection.PLAIN,
    only: Annotated[str | None, typer.Option(help="A case: names of variants separated by commas.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="A case: so many runs at a time, one thread each.")] = 1,
    out: Out = None,
    download: Download = False,
    energy: Energy = None,
    device: Device = "auto",
    batched: Batched = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """A study, or all runs of a case, in one process or several, without HTTP, over several seeds."""
    asked = Asked(study_file, data, requester, seeds, protection, only, jobs, out, download, device, batched, as_json)
    with measured_into(out, energy):
        run_asked(asked, console_for(stderr=as_json))


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
